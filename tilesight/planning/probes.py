"""Where to measure next: at ends of segments that lie far from all sizes that were tried, then where least is known.

Within a segment one kernel serves sizes that were never measured. What it takes there changes most at its ends: the first size
begins a tile, whose rows are mostly masked, and the last one fills it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

import numpy as np

from ..dispatch.table import DispatchTable
from ..space import Config
from .correction import Row, places
from .sizes import Cell, Vary, even, weights_of, widest_gaps

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
    serves = {size: table.kernels[table.segments[place].kernel] for size, place in ends.items()}
    worth = weights_of([Cell(piece.first, piece.last) for piece in table.segments], given) if given else [1.0] * len(table.segments)
    left = {size: _apart(size, tried, serves[size], whole) for size in ends if size not in tried}
    found: list[int] = []
    while len(found) < most and (far := [size for size, apart in left.items() if apart > NEAR]):
        found.append(max(far, key=lambda size: worth[ends[size]] * left[size]))
        del left[found[-1]]
        left = {size: min(apart, _apart(size, found[-1:], serves[size], whole)) for size, apart in left.items()}
    spare = even(Vary(table.vary, table.first, table.last), 4 * (len(tried) + most))
    return found + widest_gaps(spare, [*tried, *found], most - len(found))


def _apart(size: int, others: Iterable[int], config: Config, whole: Callable[[int, Config], int]) -> float:
    known = list(others)
    there: Row = places(known, [whole(other, config) for other in known])
    here = places([size], [whole(size, config)])
    return float(np.abs(there - here).sum(axis=1).min())
