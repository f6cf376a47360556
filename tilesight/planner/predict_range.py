"""Predictions over the whole range, from those at the sizes of the search."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..problem.space import Config
from ..tuner.observers import Observer
from .kernel_choice import ChoiceColumns
from .plan_options import PlanLimits
from .plan_problem import PlanProblem
from .size_predictions import Pair, SizePredictions
from .sizes import Cell

BEST_OF_ANCHOR = 3  # configs of each anchor that outline the range
PER_CELL = 32  # configs that are predicted in a cell, those of different tiles first


class RangePredictor:
    """Decides which configs are predicted at which sizes."""

    def __init__(
        self,
        problem: PlanProblem,
        predictions: SizePredictions,
        columns: ChoiceColumns,
        limits: PlanLimits,
        observer: Observer,
    ) -> None:
        self._problem, self._predictions, self._columns = problem, predictions, columns
        self._limits, self._observer = limits, observer

    def outline(self) -> list[tuple[Cell, float]]:
        """The best predicted time of each cell in microseconds, among the best configs of the anchors."""
        predictions, cells = self._predictions, self._columns.cells
        best: dict[Config, None] = {}
        for anchor in predictions.anchors:
            times = predictions.times(predictions.configs, anchor)
            best.update(dict.fromkeys(sorted(times, key=lambda config: times[config])[:BEST_OF_ANCHOR]))
        predictions.predict(((config, cell.last) for config in best for cell in cells), lower=False)
        rows = [predictions.row(config, [cell.last for cell in cells]) for config in best]
        if not rows:
            return []
        known = np.where(np.isnan(rows), np.inf, rows).min(axis=0)
        return [(cell, float(us)) for cell, us in zip(cells, known, strict=True) if math.isfinite(us)]

    def predict_at(self, sizes: Sequence[int]) -> None:
        """Predict explored configs from cached profiles, promising and default ones in any case.

        Then predict the best configs around each cell in that cell, from cached profiles.
        """
        predictions, problem = self._predictions, self._problem
        self._observer.phase("predict", None)
        defaults = self.defaults(sizes)
        explored = [(c, size) for size in sizes for c in predictions.configs if problem.works(size, c)]
        predictions.predict(explored, lower=False)
        count = self._limits.promising
        promising = [(config, size) for size in sizes for config in predictions.promising(size, count)]
        predictions.predict([*defaults, *promising])
        predictions.configs.update(dict.fromkeys(config for config, _ in defaults))
        predictions.anchors = sorted({*predictions.anchors, *sizes})
        ends = [cell.last for cell in self._columns.cells]
        inside = [(config, end) for end in ends for config in predictions.promising(end, PER_CELL)]
        predictions.predict(inside, lower=False)
        counts = f"{predictions.count} predictions at {len(sizes)} sizes and between them"
        self._observer.phase_done(f"{counts}, {predictions.lowered} lowered in all")

    def predict_listed(self, listed: Sequence[Config], sizes: Sequence[int]) -> None:
        """Predict configs of the short list over the range; the first ones even if that takes lowering."""
        works = self._problem.works
        first = listed[: max(1, self._limits.explore // len(sizes))]
        self._predictions.predict((c, size) for c in first for size in sizes if works(size, c))
        columns = self._columns.sizes(sizes)
        self._predictions.predict(
            ((c, size) for c in listed for size in columns if works(size, c)), lower=False
        )

    def defaults(self, sizes: Sequence[int]) -> list[Pair]:
        """The default config of each size that has one, and the size."""
        return [(default, size) for size in sizes if (default := self._problem.default(size)) is not None]
