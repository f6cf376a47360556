"""Where to measure next: at ends of segments that lie far from all sizes that were tried, then where least is known.

Within a segment one kernel serves sizes that were never measured. What it takes there changes most at its ends: the first size
begins a tile, whose rows are mostly masked, and the last one fills it.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from ..dispatch.table import DispatchTable
from ..space import Config
from .sizes import Cell, Vary, even, farthest, weights_of, widest_gaps

NEAR = 0.15  # doublings of the size, and of its whole tiles, together within which a size that was tried says enough


def sizes_to_try(
    table: DispatchTable,
    tried: Collection[int],
    whole: Callable[[int, Config], int],
    most: int,
    given: Mapping[int, float] | None = None,
) -> list[int]:
    """Up to `most` ends of the table's segments, each the one that lies farthest from what was `tried` and from those before it.
    `whole` rounds a size up to whole tiles of a config, by which what is near is decided for the kernel that serves. Where
    weights of sizes are `given`, ends count by the weight of their segments. Where too few ends lie far from what was tried,
    sizes in the widest gaps are added."""
    ends = {size: place for place, piece in enumerate(table.segments) for size in (piece.first, piece.last)}
    worth = weights_of([Cell(piece.first, piece.last) for piece in table.segments], given) if given else [1.0] * len(table.segments)

    def apart(size: int, other: int) -> float:
        config = table.kernels[table.segments[ends[size]].kernel]
        return abs(math.log2(size) - math.log2(other)) + abs(math.log2(whole(size, config)) - math.log2(whole(other, config)))

    found = farthest(ends, tried, most, apart, lambda size: worth[ends[size]], NEAR)
    spare = even(Vary(table.vary, table.first, table.last), 4 * (len(tried) + most))
    return found + widest_gaps(spare, [*tried, *found], most - len(found))
