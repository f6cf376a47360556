"""Sizes of the varied dimension: the range, cells in which kernels cost the same, sampled sizes."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..problem.workload import MAX_DIMENSION


@dataclass(frozen=True, slots=True)
class SizeRange:
    """The range of the varied dimension `dim`: values in `first` .. `last`.

    `step`: the operator takes `first`, `first` + `step`, ..., `last`.
    """

    dim: str
    first: int
    last: int
    step: int = 1

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.first <= size <= self.last

    def all(self) -> list[int]:
        """All sizes that the operator takes."""
        return list(range(self.first, self.last + 1, self.step))

    def next(self, size: int) -> int:
        """The least size that the operator takes and that is not below `size`."""
        return min(self.last, self.first + -(-(size - self.first) // self.step) * self.step)

    @property
    def count(self) -> int:
        """Number of sizes that the operator takes."""
        return (self.last - self.first) // self.step + 1


@dataclass(frozen=True, slots=True)
class Cell:
    """Sizes `first` .. `last` that each tile size cuts into the same number of tiles."""

    first: int
    last: int


def read_vary(text: str) -> SizeRange:
    """A range as text, `m=1..16384`. Raises `InputError`."""
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(\d{1,12})\s*\.\.\s*(\d{1,12})\s*", text)
    if match is None:
        raise InputError(f"vary '{text}' must name a dimension and its range, e.g. m=1..16384")
    found = SizeRange(match[1], int(match[2]), int(match[3]))
    if not 1 <= found.first <= found.last <= MAX_DIMENSION:
        limits = f"within 1 .. {MAX_DIMENSION}; dimensions vary, attributes do not"
        raise InputError(f"vary '{text}': the range must rise, {limits}")
    return found


def size_step(takes: Callable[[int], bool], vary: SizeRange, world: int) -> int:
    """The step of sizes that an operator takes: 1, or the world if it divides the dimension among devices."""
    return 1 if vary.first == vary.last or takes(vary.first + 1) else world


def cells(vary: SizeRange, tile_sizes: Sequence[int], most: int) -> list[Cell]:
    """The range cut at multiples of the tile sizes.

    More than `most` cells are joined at large sizes, where one more tile changes little. Cuts at multiples of
    large tiles are kept before others.
    """
    cuts = _cuts(vary, sorted(set(tile_sizes)), most)
    return [
        Cell(first, last)
        for first, last in zip([vary.first, *(cut + 1 for cut in cuts)], [*cuts, vary.last], strict=True)
    ]


def _cuts(vary: SizeRange, tile_sizes: Sequence[int], most: int) -> list[int]:
    """Sizes below `vary.last` after which a cell ends."""
    # bins of equal width in log size, with one cut each; if multiples are further apart than a bin, each is a
    # cut
    width = math.log2(vary.last / vary.first + 1) / max(1, most)
    found: dict[int, int] = {}  # bin -> cut
    for step in reversed(tile_sizes):  # multiples of larger tiles first
        begin = max(1, -(-vary.first // step))
        if step * begin >= vary.last:
            continue
        for cut in _multiples(step, begin, vary.last, width):
            found.setdefault(int(math.log2(cut / vary.first + 1e-9) / width) if width else cut, cut)
    return sorted({cut for cut in found.values() if vary.first <= cut < vary.last})[
        : most - 1 if most > 1 else 0
    ]


def _multiples(step: int, begin: int, end: int, width: float) -> list[int]:
    """Multiples of `step` below `end`, from `begin * step` on, at least `width` doublings apart."""
    found, count = [], begin
    while step * count < end:
        found.append(step * count)
        count = max(count + 1, int(count * 2**width))
    return found


def evenly_spaced(vary: SizeRange, count: int, tile: int = 1) -> list[int]:
    """Up to `count` sizes with the ends, evenly spaced in log size, further apart below `tile`."""
    if vary.count <= count:
        return vary.all()
    if count < 2:
        return [vary.last]
    soft = max(0, tile - vary.first)
    begin, ratio = vary.first + soft, (vary.last + soft) / (vary.first + soft)
    return sorted({vary.next(round(begin * ratio ** (place / (count - 1)) - soft)) for place in range(count)})


def sizes_at_jumps(vary: SizeRange, count: int, times: Sequence[tuple[Cell, float]]) -> list[int]:
    """Sizes to sample: the ends of the range, and one size of each stripe of equal width in log size.

    Stripes take turns: the first size after the cell with the largest jump of time (one more wave of blocks,
    or a new tile), the last size before it (a full wave), and the middle of the stripe. Below the smallest
    tile, where all sizes cost nearly the same, stripes are wider.

    Args:
        vary: the range.
        count: of sizes.
        times: the best predicted time of each cell in microseconds, in order.
    """
    if vary.count <= count:
        return vary.all()
    found = {vary.first, vary.last} if count > 1 else {vary.last}
    stripes = count - len(found)
    soft = times[0][0].last - vary.first if times else 0
    begin, ratio = vary.first + soft, (vary.last + soft) / (vary.first + soft)
    for stripe in range(stripes):
        low = begin * ratio ** (stripe / stripes) - soft
        high = begin * ratio ** ((stripe + 1) / stripes) - soft
        found.add(vary.next(_of_stripe(vary, low, high, stripe % 3, times, found)))
    # a stripe of small sizes may contain no whole number
    return sorted([*found, *widest_gaps(evenly_spaced(vary, 4 * count), found, count - len(found))])


def widest_gaps(sizes: Iterable[int], others: Iterable[int], count: int) -> list[int]:
    """Up to `count` of `sizes`, each farthest in log size from `others` and those before it."""
    return farthest_first(sizes, others, count, lambda size, other: abs(math.log(size / other)))


def farthest_first(
    sizes: Iterable[int],
    others: Iterable[int],
    count: int,
    distance: Callable[[int, int], float],
    weight: Callable[[int], float] = lambda _: 1.0,
    least: float = 0.0,
) -> list[int]:
    """Up to `count` of `sizes`, each far from the `others` and from those before it.

    Args:
        sizes: to choose from.
        others: known sizes.
        count: of sizes, at most.
        distance: of two sizes.
        weight: of a size; the size with the largest weight times distance is taken.
        least: sizes that are no farther than this are left out.
    """
    known = set(others)
    left = {
        size: min((distance(size, other) for other in known), default=math.inf)
        for size in sizes
        if size not in known
    }
    found: list[int] = []
    while len(found) < count and (far := [size for size, nearest in left.items() if nearest > least]):
        found.append(max(far, key=lambda size: weight(size) * left[size]))
        del left[found[-1]]
        left = {size: min(nearest, distance(size, found[-1])) for size, nearest in left.items()}
    return found


def _of_stripe(
    vary: SizeRange, low: float, high: float, turn: int, times: Sequence[tuple[Cell, float]], taken: set[int]
) -> int:
    middle = max(vary.first, min(vary.last, round(math.sqrt(low * high))))
    jumps = [
        (after_us / before_us, before.last)
        for (before, before_us), (_, after_us) in itertools.pairwise(times)
        if low <= before.last < high and before.last + 1 <= vary.last
    ]
    if turn == 2 or not jumps:
        return middle if middle not in taken else min(vary.last, middle + 1)
    # of equal jumps, the nearest to the middle
    cut = max(jumps, key=lambda jump: (round(jump[0], 3), -abs(math.log(jump[1] / middle))))[1]
    return cut + 1 if turn == 0 else cut


def nearest_cells(sizes: Sequence[int], span: SizeRange | Cell, step: int = 1) -> list[Cell]:
    """A cell for each of the rising `sizes`: the sizes of `span` that are nearest to it in log size.

    Each cell ends whole steps after its size.
    """
    cuts = [
        before + (min(after - 1, max(before, math.isqrt(before * after))) - before) // step * step
        for before, after in itertools.pairwise(sizes)
    ]
    firsts = [span.first, *(cut + 1 for cut in cuts)]
    return [Cell(first, last) for first, last in zip(firsts, [*cuts, span.last], strict=True)]


def split_cells(parts: Sequence[Cell], sizes: Sequence[int], step: int = 1) -> list[Cell]:
    """The cells, cut again so that each has at most one of `sizes`: masked rows may cost time."""
    found: list[Cell] = []
    for part in parts:
        inside = [size for size in sizes if part.first <= size <= part.last]
        found += nearest_cells(inside, part, step) if len(inside) > 1 else [part]
    return found


def cell_weights(parts: Sequence[Cell], given: Mapping[int, float] | None = None) -> list[float]:
    """The weight of each cell; they add up to 1.

    Args:
        parts: the cells, in order.
        given: weights of sizes, e.g. how often they are requested. They decide nine tenths of the weight; the
            rest, and without them all of it, is the same for each doubling of the size.
    """
    width = [math.log2((part.last + 1) / part.first) for part in parts]
    total = sum(width)
    spread = [w / total for w in width]
    if not given:
        return spread
    inside = {size: weight for size, weight in given.items() if parts[0].first <= size <= parts[-1].last}
    requested = sum(inside.values())
    if requested <= 0:
        return spread
    shares = [
        sum(weight for size, weight in inside.items() if part.first <= size <= part.last) / requested
        for part in parts
    ]
    return [0.1 * even_share + 0.9 * share for even_share, share in zip(spread, shares, strict=True)]
