"""Further sizes to sample: ends of segments far from all sampled sizes, then sizes in the widest gaps.

A segment's kernel serves sizes that were never measured. Its time changes most at the ends of the segment:
the first size begins a tile, whose rows are mostly masked, and the last size fills one.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping

from ..dispatch.table.table_file import DispatchTable
from ..problem.space import Config
from .sizes import Cell, SizeRange, cell_weights, evenly_spaced, farthest_first, widest_gaps

NEAR = 0.15  # doublings of size and whole tiles together: a sampled size this near is enough


def sizes_to_try(
    table: DispatchTable,
    tried: Collection[int],
    whole_tiles: Callable[[int, Config], int],
    most: int,
    given: Mapping[int, float] | None = None,
) -> list[int]:
    """Sizes to sample next, most useful first.

    Args:
        table: the present choice.
        tried: sampled sizes.
        whole_tiles: rounds a size up to whole tiles of a config: sizes in one tile are near each other.
        most: number of sizes, at most.
        given: weights of sizes; an end counts by the weight of its segment.
    """
    ends = {size: index for index, piece in enumerate(table.segments) for size in (piece.first, piece.last)}
    weights = [1.0] * len(table.segments)
    if given:
        weights = cell_weights([Cell(piece.first, piece.last) for piece in table.segments], given)

    def distance(size: int, other: int) -> float:
        config = table.kernels[table.segments[ends[size]].kernel]
        rounded = whole_tiles(size, config), whole_tiles(other, config)
        return abs(math.log2(size / other)) + abs(math.log2(rounded[0] / rounded[1]))

    found = farthest_first(ends, tried, most, distance, lambda size: weights[ends[size]], NEAR)
    spare = evenly_spaced(SizeRange(table.vary, table.first, table.last), 4 * (len(tried) + most))
    return found + widest_gaps(spare, [*tried, *found], most - len(found))
