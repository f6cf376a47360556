"""Chooses kernels by their expected times at cells and sampled sizes."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..dispatch.table.table_file import DispatchTable
from ..errors import NoCandidateError
from ..problem.space import Config
from .cover import Times, choose_kernels
from .make_table import make_table
from .plan_options import PlanOptions
from .plan_problem import PlanProblem
from .plan_state import PlanState
from .size_predictions import Pair
from .sizes import Cell, cell_weights, cells, nearest_cells, split_cells

COARSE_CELLS, FINE_CELLS = 128, 384  # of the range, at most: to choose kernels, and to cut segments


class ChoiceColumns:
    """The sizes at which a choice compares kernels: the last size of each cell, and the sampled sizes.

    Cells and sampled sizes have half of the weight each.
    """

    def __init__(self, problem: PlanProblem, options: PlanOptions) -> None:
        self._problem, self._options = problem, options
        self.cells: list[Cell] = cells(problem.vary, problem.tile_sizes, COARSE_CELLS)

    def sizes(self, sampled: Sequence[int]) -> list[int]:
        return [*(cell.last for cell in self.cells), *sampled]

    def weights(self, sampled: Sequence[int]) -> Times:
        """A weight for each of `sizes`."""
        given = self._options.weights
        return 0.5 * np.array([*cell_weights(self.cells, given), *self.sampled_weights(sampled)])

    def sampled_weights(self, sampled: Sequence[int]) -> list[float]:
        """The weight of each sampled size: the weight of the sizes that are nearest to it."""
        return cell_weights(nearest_cells(sampled, self._problem.vary), self._options.weights)


class KernelChoice:
    """Chooses kernels from the state of a plan."""

    def __init__(
        self, problem: PlanProblem, options: PlanOptions, state: PlanState, columns: ChoiceColumns
    ) -> None:
        self._problem, self._options, self._state, self.columns = problem, options, state, columns

    def expected(self) -> Times:
        """Expected times of all configs in microseconds: a column for each cell and sampled size."""
        return self._state.expected(self._state.configs, self.columns.sizes(self._state.sizes)).times

    def choose(self, *, measured_only: bool = False) -> list[Config]:
        """The chosen configs.

        Args:
            measured_only: choose among configs that were measured at some size, if there are any.

        Raises:
            NoCandidateError: no config works.
        """
        state, times = self._state, self.expected()
        is_measured = [
            any(state.measured_us(config, size) is not None for size in state.sizes)
            for config in state.configs
        ]
        if measured_only and any(is_measured):
            times[np.logical_not(is_measured)] = np.inf
        if not np.isfinite(times).any():
            reasons = [f"{failure.kind}: {failure.message}" for failure in list(state.failed.values())[:3]]
            raise NoCandidateError(
                f"{self._problem.label}: none of the {len(state.configs)} configs that were tried works: "
                + "; ".join(dict.fromkeys(reasons))
            )
        rows = {config: row for row, config in enumerate(state.configs)}
        sizes = self.columns.sizes(state.sizes)
        found = [self._problem.default(size) for size in sizes]
        defaults = [None if default is None else rows.get(default) for default in found]
        weights = self.columns.weights(state.sizes).tolist()
        cover = choose_kernels(times, weights, self._options.kernels, defaults)
        return [state.configs[row] for row in cover.chosen]

    def served(self, chosen: Sequence[Config]) -> list[Pair]:
        """The fastest chosen config at each sampled size, and the size."""
        sizes = self._state.sizes
        times = self._state.expected(chosen, sizes).times
        works = [column for column in range(len(sizes)) if np.isfinite(times[:, column]).any()]
        return [(chosen[int(times[:, column].argmin())], sizes[column]) for column in works]

    def table(self, chosen: Sequence[Config], *, measured: bool) -> DispatchTable:
        """The dispatch table of the chosen configs. `measured`: its times are a device's, where known."""
        all_cells = cells(self._problem.vary, self._problem.tile_sizes, FINE_CELLS)
        parts = split_cells(all_cells, self._state.sizes, self._problem.vary.step)
        self._state.predictions.predict(
            ((config, part.last) for config in chosen for part in parts), lower=False
        )
        return make_table(self._state, chosen, parts, self._options.weights, measured=measured)
