"""From the chosen kernels to the table: segments of sizes, and the evidence for each of them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..dispatch.table import DispatchTable, Evidence, Segment
from ..space import Config
from . import segments
from .board import Board
from .sizes import Cell, weights_of


def make_table(
    board: Board, chosen: Sequence[Config], fine: Sequence[Cell], weights: Mapping[int, float] | None, *, measured: bool
) -> DispatchTable:
    """The table of the chosen kernels; of those that are the best nowhere nothing is said. `fine` are the cells at whose edges
    segments may end, `measured`: whether its times are those of the subject's device, as far as there are any."""
    subject = board.subject
    parts = [(part, _standing_for(part, board.sizes)) for part in fine]
    times = board.expected(chosen, [size for _, size in parts]).times
    found = segments.cut(times, weights_of([part for part, _ in parts], weights))
    used = list(dict.fromkeys(row for _, _, row in found))
    pieces = tuple(Segment(parts[first][0].first, parts[last][0].last, used.index(row)) for first, last, row in found)
    kernels = tuple(chosen[row] for row in used)
    context = subject.context(board.sizes[-1])
    return DispatchTable(
        operator=subject.base.operator,
        dtype=subject.base.dtype,
        attrs=subject.base.attrs,
        dims=tuple(subject.base.dims),
        fixed=subject.fixed,
        vary=subject.vary.dim,
        open=subject.open,
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
        evidence=tuple(_evidence(board, kernels, pieces)),
    )


def _evidence(board: Board, kernels: Sequence[Config], pieces: Sequence[Segment]) -> list[Evidence]:
    expected = board.expected(board.configs, board.sizes).times
    number = {config: row for row, config in enumerate(board.configs)}
    found = []
    for column, size in enumerate(board.sizes):
        kernel = next(piece.kernel for piece in pieces if piece.first <= size <= piece.last)
        mine, best = board.measured_us(kernels[kernel], size), board.best_us(size)
        chosen_us = mine if mine is not None else float(expected[number[kernels[kernel]], column])
        said = float(expected[:, column].min())
        # one measurement alone says nothing of what is best there
        is_measured = best is not None and (board.measured_count(size) > 1 or best <= said)
        best_us = best if best is not None and is_measured else said
        if math.isfinite(chosen_us):  # else nothing is known of it there
            best_us = min(best_us, chosen_us)
            found.append(Evidence(size, kernel, rounded(chosen_us), rounded(best_us), mine is not None, is_measured))
    return found


def _standing_for(part: Cell, sizes: Sequence[int]) -> int:
    """The size of a cell whose time counts for it: one that was sampled there, else its last."""
    return max((size for size in sizes if part.first <= size <= part.last), default=part.last)


def rounded(time_us: float) -> float:
    """To the digits that a table shows."""
    return float(f"{time_us:.5g}")
