"""The dispatch table of the chosen kernels: segments of sizes, and evidence at the sampled sizes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..dispatch.table.table_file import DispatchTable, Evidence, Segment
from ..problem.space import Config
from . import segments
from .plan_state import PlanState
from .sizes import Cell, cell_weights


def make_table(
    state: PlanState,
    chosen: Sequence[Config],
    parts: Sequence[Cell],
    weights: Mapping[int, float] | None,
    *,
    measured: bool,
) -> DispatchTable:
    """The table of the chosen kernels, without those that are the best of no cell.

    Args:
        state: of the plan.
        chosen: configs of the kernels.
        parts: the cells at whose ends segments may end.
        weights: how much sizes count.
        measured: the times are those of the problem's device, as far as they are known.
    """
    problem = state.problem
    times = state.expected(chosen, [_size_of(part, state.sizes) for part in parts]).times
    found = segments.cut(times, cell_weights(parts, weights))
    used = list(dict.fromkeys(row for _, _, row in found))
    pieces = tuple(
        Segment(parts[first].first, parts[last].last, used.index(row)) for first, last, row in found
    )
    kernels = tuple(chosen[row] for row in used)
    context = problem.context(state.sizes[-1])
    return DispatchTable(
        operator=problem.base.operator,
        dtype=problem.base.dtype,
        attrs=problem.base.attrs,
        dims=tuple(problem.base.dims),
        fixed=problem.fixed,
        vary=problem.vary.dim,
        dynamic=problem.dynamic,
        template=context.template,
        template_version=context.template_version,
        target=context.target,
        target_fingerprint=context.target_fingerprint,
        arch=context.arch,
        device=context.device if measured else "",
        protocol=context.protocol if measured else "",
        software=context.code_software,
        model=context.model,
        kernels=kernels,
        segments=pieces,
        evidence=tuple(_evidence(state, kernels, pieces, measured=measured)),
    )


def _evidence(
    state: PlanState, kernels: Sequence[Config], pieces: Sequence[Segment], *, measured: bool
) -> list[Evidence]:
    expected = state.expected(state.configs, state.sizes).times
    rows = {config: row for row, config in enumerate(state.configs)}
    found = []
    for column, size in enumerate(state.sizes):
        kernel = next(piece.kernel for piece in pieces if piece.first <= size <= piece.last)
        measured_us, best_us = state.measured_us(kernels[kernel], size), state.best_us(size)
        chosen_us = float(expected[rows[kernels[kernel]], column]) if measured_us is None else measured_us
        best_expected_us = float(expected[:, column].min())
        # a single measurement does not show which config is the best, unless none is expected to be faster
        is_measured = best_us is not None and (state.measured_count(size) > 1 or best_us <= best_expected_us)
        if best_us is None or not is_measured:
            best_us = best_expected_us
        if math.isfinite(chosen_us):  # else its time is unknown
            best_us = min(best_us, chosen_us)
            scale = 1.0 if measured else _time_by_score(state, kernels[kernel], size)
            times = rounded(chosen_us * scale), rounded(best_us * scale)
            found.append(Evidence(size, kernel, *times, measured_us is not None, is_measured))
    return found


def _time_by_score(state: PlanState, config: Config, size: int) -> float:
    """The predicted time of a config over its ranking score, 1 if it has no prediction at that size.

    Where nothing is measured, expected times are ranking scores. Measurements turn them into times.
    """
    found = state.predictions.prediction_at(config, size)
    return 1.0 if found is None else found.prediction.latency_us / found.prediction.ranking_us


def _size_of(part: Cell, sizes: Sequence[int]) -> int:
    """The size whose time counts for a cell: the largest sampled size in it, else its last size."""
    return max((size for size in sizes if part.first <= size <= part.last), default=part.last)


def rounded(time_us: float) -> float:
    """A time to the digits of a table."""
    return float(f"{time_us:.5g}")
