"""Where to measure next: at ends of segments that lie far from all sizes that were tried.

Within a segment one kernel serves sizes that were never measured. What it takes there changes most at its ends: the first size
begins a tile, so most of the last tile is masked; the last one fills it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np

from ..dispatch.table import DispatchTable
from ..space import Config
from .correction import Row, places

NEAR = 0.15  # doublings of the size, and of its whole tiles, together within which a size that was tried says enough


def ends_to_try(table: DispatchTable, tried: Sequence[int], whole: Callable[[int, Config], int], most: int) -> list[int]:
    """Up to `most` ends of the table's segments, each the one that lies farthest from what was `tried` and from those before it.
    `whole` rounds a size up to whole tiles of a config, by which what is near is decided for the kernel that serves."""
    ends = {size: table.kernels[piece.kernel] for piece in table.segments for size in (piece.first, piece.last)}
    left = {size: _apart(size, tried, config, whole) for size, config in ends.items() if size not in tried}
    found: list[int] = []
    while len(found) < most and left:
        farthest = max(left, key=lambda size: left[size])
        if left.pop(farthest) <= NEAR:
            break
        found.append(farthest)
        left = {size: min(apart, _apart(size, [farthest], ends[size], whole)) for size, apart in left.items()}
    return found


def _apart(size: int, others: Iterable[int], config: Config, whole: Callable[[int, Config], int]) -> float:
    known = list(others)
    there: Row = places(known, [whole(other, config) for other in known])
    here = places([size], [whole(size, config)])
    return float(np.abs(there - here).sum(axis=1).min())
