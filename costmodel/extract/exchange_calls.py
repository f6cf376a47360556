"""Counts the work of block-wide reductions and scans from TileLang's device library."""

from __future__ import annotations

import math
import re
from typing import Any

from ...profile.values import Access, Space
from .counting import CountingContext, text
from .element_types import element_type
from .expressions import constant
from .patterns import BANKS
from .scope import Scope

SEGMENT = 32  # elements of a line that a warp scans together
REDUCTION = re.compile(r"tl::(?:AllReduce|allreduce)\w*<\s*([\w:]+)[^,]*,\s*(\d+)\s*,\s*(\d+)")
_SCAN = re.compile(r"tl::Cum(?:Sum|Max)([12])D<\s*(\d+)(?:\s*,\s*(\d))?")


def count_exchange(context: CountingContext, name: str, call: Any, scope: Scope) -> bool:
    """Count a call of the device function `name`. Returns False if it is neither a reduction nor a scan."""
    reduction, scan = REDUCTION.match(name), _SCAN.match(name)
    if reduction:
        batch = re.search(r",\s*(\d+),\s*\d+>::run_batch$", name)
        _all_reduce(context, scope, int(reduction[2]), int(reduction[3]), int(batch[1]) if batch else 1)
    elif scan:
        sizes = [constant(a) for a in call.args if constant(a) is not None and text(a) != name]
        if not sizes or (scan[1] == "2" and len(sizes) < 3):
            return False
        whole = [size for size in sizes if size is not None]
        rows, columns, stride = (1, whole[0], 1) if scan[1] == "1" else (whole[0], whole[1], whole[2])
        _scan(
            context,
            scope,
            (rows, columns),
            1 if scan[1] == "1" or scan[3] == "1" else stride,
            element_type(str(call.dtype)).bytes,
        )
    else:
        return False
    return True


def _all_reduce(context: CountingContext, scope: Scope, threads: int, scale: int, batch: int) -> None:
    """Count tl::AllReduce<Op, threads, scale>: a butterfly over `threads / scale` lanes for `batch` values.

    Steps wider than a warp go through shared memory, with a barrier on each side. The reductions of unrolled
    iterations advance together.
    """
    step, counts = threads // 2, context.phase.counts
    unrolled = scope.kept * math.prod(loop.extent for loop in scope.loops if loop.unrolled)
    while step >= max(1, scale):
        counts["exchange_steps"] += scope.times * scope.warps / unrolled
        counts["vector_ops"] += scope.issued_lanes * batch
        if step >= scope.launch.warp_threads:
            counts["block_syncs"] += 2 * scope.times * scope.warps
            for write in (True, False) * batch:
                context.count_shared_words(scope, write=write)
        else:
            counts["shuffles"] += scope.issued_lanes * batch
        step //= 2


def _scan(
    context: CountingContext, scope: Scope, shape: tuple[int, int], stride: int, element_bytes: float
) -> None:
    """Count tl::CumSum2D and similar scans in shared memory.

    One warp scans each line of the tile, one segment of 32 elements after another. A segment takes five steps
    and one more to add the carry. Each of the five waits for the one before: 114 to 124 cycles a segment were
    measured in a cumulative sum by others (an H200).

    Args:
        context: receives the counts.
        scope: the threads that execute the scan.
        shape: rows and columns of the tile.
        stride: distance between neighbours of the scanned dimension, in elements.
        element_bytes: bytes of one element.
    """
    lines, extent = shape if stride == 1 else shape[::-1]
    times = scope.times * scope.warps
    segments = times * lines * math.ceil(extent / SEGMENT)
    steps = int(math.log2(SEGMENT)) + 1
    context.phase.counts["shuffles"] += segments * SEGMENT * steps
    context.phase.counts["vector_ops"] += segments * SEGMENT * 2 * steps  # an operation and a selection
    in_turn = math.ceil(lines * scope.launch.warp_threads / scope.threads) * math.ceil(extent / SEGMENT)
    context.phase.counts["exchange_steps"] += times * in_turn * math.log2(SEGMENT)
    conflicts = math.gcd(round(stride * element_bytes / 4) or 1, BANKS)
    for write in (False, True):
        total = times * lines * extent * element_bytes
        words = Access(
            Space.SHARED,
            "scan",
            write,
            "st" if write else "ld",
            total,
            segments * conflicts,
            segments,
            footprint_bytes=total,
        )
        context.phase.accesses.append(words)
