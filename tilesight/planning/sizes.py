"""Sizes of the varied dimension: the range that is asked for, the cells in which kernels cost the same, and the sizes at which
kernels are measured."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..workload import MAX_DIMENSION


@dataclass(frozen=True, slots=True)
class Vary:
    """Dimension `dim` takes all values in `first` .. `last`."""

    dim: str
    first: int
    last: int

    def __contains__(self, size: object) -> bool:
        return isinstance(size, int) and self.first <= size <= self.last


@dataclass(frozen=True, slots=True)
class Cell:
    """Sizes `first` .. `last` between two multiples of tiles: every tile cuts them into equally many parts."""

    first: int
    last: int


def read_vary(text: str) -> Vary:
    """`m=1..16384`. Raises `InputError`."""
    match = re.fullmatch(r"\s*([A-Za-z_]\w*)\s*=\s*(\d{1,12})\s*\.\.\s*(\d{1,12})\s*", text)
    if match is None:
        raise InputError(f"vary '{text}' must name a dimension and its range, e.g. m=1..16384")
    found = Vary(match[1], int(match[2]), int(match[3]))
    if not 1 <= found.first <= found.last <= MAX_DIMENSION:
        raise InputError(f"vary '{text}': the range must rise, within 1 .. {MAX_DIMENSION}; dimensions vary, attributes do not")
    return found


def cells(vary: Vary, steps: Sequence[int], most: int) -> list[Cell]:
    """The range cut at multiples of `steps`, the tiles that kernels may have. Where that makes more than `most` cells, those of
    large sizes are joined: there one more tile changes little. Cuts at multiples of large tiles are kept before others."""
    cuts = _cuts(vary, sorted(set(steps)), most)
    return [Cell(first, last) for first, last in zip([vary.first, *(cut + 1 for cut in cuts)], [*cuts, vary.last], strict=True)]


def _cuts(vary: Vary, steps: Sequence[int], most: int) -> list[int]:
    """Sizes below `vary.last` after which a cell ends."""
    # bins of equal width in log size, one cut each; where multiples lie further apart than bins are wide, all of them
    width = math.log2(vary.last / vary.first + 1) / max(1, most)
    found: dict[int, int] = {}  # bin -> cut
    for step in reversed(steps):  # multiples of larger tiles go first
        begin = max(1, -(-vary.first // step))
        if step * begin >= vary.last:
            continue
        for cut in _multiples(step, begin, vary.last, width):
            found.setdefault(int(math.log2(cut / vary.first + 1e-9) / width) if width else cut, cut)
    return sorted({cut for cut in found.values() if vary.first <= cut < vary.last})[: most - 1 if most > 1 else 0]


def _multiples(step: int, begin: int, end: int, width: float) -> list[int]:
    """Multiples of `step` below `end`, from `begin` times it on: all while they are further apart than `width` in log size, then
    one for each `width`."""
    found, count = [], begin
    while step * count < end:
        found.append(step * count)
        count = max(count + 1, int(count * 2**width))
    return found


def even(vary: Vary, count: int, tile: int = 1) -> list[int]:
    """Up to `count` sizes, the ends among them, spaced evenly in log size; below `tile`, where all sizes cost nearly the same, wider
    apart."""
    if vary.last - vary.first < count:
        return list(range(vary.first, vary.last + 1))
    if count < 2:
        return [vary.last]
    soft = max(0, tile - vary.first)
    begin, ratio = vary.first + soft, (vary.last + soft) / (vary.first + soft)
    return sorted({round(begin * ratio ** (place / (count - 1)) - soft) for place in range(count)})


def awkward(vary: Vary, count: int, times: Sequence[tuple[Cell, float]]) -> list[int]:
    """`count` sizes to measure at: the ends of the range, and one of each stripe of it, stripes being equally wide in log size.

    `times` are the best predicted times of the cells, in their order. Stripes take turns: the first size after the cell behind
    which the time jumps most (a wave of blocks more, a tile begun), the last size before it (the wave full), and a size in the
    middle. Below the smallest tile, where all sizes cost nearly the same, stripes are wider.
    """
    if vary.last - vary.first < count:
        return list(range(vary.first, vary.last + 1))
    found = {vary.first, vary.last} if count > 1 else {vary.last}
    stripes = count - len(found)
    soft = times[0][0].last - vary.first if times else 0
    begin, ratio = vary.first + soft, (vary.last + soft) / (vary.first + soft)
    for stripe in range(stripes):
        low = begin * ratio ** (stripe / stripes) - soft
        high = begin * ratio ** ((stripe + 1) / stripes) - soft
        found.add(_of_stripe(vary, low, high, stripe % 3, times, found))
    # stripes of small sizes may hold no whole number of their own
    return sorted([*found, *widest_gaps(even(vary, 4 * count), found, count - len(found))])


def widest_gaps(sizes: Iterable[int], others: Iterable[int], count: int) -> list[int]:
    """Up to `count` of `sizes`, each the one that lies farthest in log size from the `others` and from those before it."""
    return farthest(sizes, others, count, lambda size, other: abs(math.log(size / other)))


def farthest(
    sizes: Iterable[int],
    others: Iterable[int],
    count: int,
    apart: Callable[[int, int], float],
    worth: Callable[[int], float] = lambda _: 1.0,
    least: float = 0.0,
) -> list[int]:
    """Up to `count` of `sizes`, each the one for which most is `worth` times how far it lies from the `others` and from those
    before it; none that lies no farther than `least`. `apart` says how far a size lies from another."""
    known = set(others)
    left = {size: min((apart(size, other) for other in known), default=math.inf) for size in sizes if size not in known}
    found: list[int] = []
    while len(found) < count and (far := [size for size, nearest in left.items() if nearest > least]):
        found.append(max(far, key=lambda size: worth(size) * left[size]))
        del left[found[-1]]
        left = {size: min(nearest, apart(size, found[-1])) for size, nearest in left.items()}
    return found


def _of_stripe(vary: Vary, low: float, high: float, turn: int, times: Sequence[tuple[Cell, float]], taken: set[int]) -> int:
    middle = max(vary.first, min(vary.last, round(math.sqrt(low * high))))
    jumps = [
        (after_us / before_us, before.last)
        for (before, before_us), (_, after_us) in itertools.pairwise(times)
        if low <= before.last < high and before.last + 1 <= vary.last
    ]
    if turn == 2 or not jumps:
        return middle if middle not in taken else min(vary.last, middle + 1)
    # of equal jumps the one nearest to the middle
    cut = max(jumps, key=lambda jump: (round(jump[0], 3), -abs(math.log(jump[1] / middle))))[1]
    return cut + 1 if turn == 0 else cut


def around_each(sizes: Sequence[int], whole: Vary | Cell) -> list[Cell]:
    """The whole range divided among `sizes`, which rise: each has what lies nearest to it in log size."""
    cuts = [min(after - 1, max(before, math.isqrt(before * after))) for before, after in itertools.pairwise(sizes)]
    firsts = [whole.first, *(cut + 1 for cut in cuts)]
    return [Cell(first, last) for first, last in zip(firsts, [*cuts, whole.last], strict=True)]


def divided(parts: Sequence[Cell], sizes: Sequence[int]) -> list[Cell]:
    """The cells, those that hold several of `sizes` divided among them: rows that a tile lacks may cost something too."""
    found: list[Cell] = []
    for part in parts:
        inside = [size for size in sizes if part.first <= size <= part.last]
        found += around_each(inside, part) if len(inside) > 1 else [part]
    return found


def weights_of(parts: Sequence[Cell], given: Mapping[int, float] | None = None) -> list[float]:
    """How much each cell counts; they add up to 1. Without `given` each doubling of the size counts the same; with it (size to
    how often or how long it is asked for), nine tenths go by that."""
    width = [math.log2((part.last + 1) / part.first) for part in parts]
    total = sum(width)
    spread = [w / total for w in width]
    if not given:
        return spread
    inside = {size: weight for size, weight in given.items() if parts[0].first <= size <= parts[-1].last}
    asked = sum(inside.values())
    if asked <= 0:
        return spread
    shares = [sum(weight for size, weight in inside.items() if part.first <= size <= part.last) / asked for part in parts]
    return [0.1 * even_share + 0.9 * share for even_share, share in zip(spread, shares, strict=True)]
