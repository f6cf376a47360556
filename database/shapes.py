"""Shapes on a curve, so that an index finds the nearest ones.

The logarithms of a shape's dimensions are taken in fixed-point steps, and their bits are interleaved, the highest first, in
the order of the dimensions' names: a Z-order curve (Morton 1966). Shapes that share the first bits of their code lie in one box,
and a box is one range of codes. `nearest` looks into the boxes that can hold a nearer shape than those known, and into no others.
"""

from __future__ import annotations

import bisect
import heapq
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, TypeVar

WHOLE_BITS = 5  # dimensions lie below 2**31
# added to logarithms: sizes are often powers of two, and those would lie on the edges of boxes small and large, with neighbours in
# all of them. A third is far from the edges of all
SHIFT = 1 / 3
MOST_BITS = 12  # of one dimension: steps of 2**-7, half a percent
CODE_BITS = 62
BESIDE = 8  # shapes before and after a code
CROWD = 12  # shapes in a box that are read rather than divided
_DIVIDE_BITS = 3  # a box is divided into eight
TOGETHER = 8  # boxes that are read at once

T = TypeVar("T")
Range = tuple[int, int]  # of codes, both included


class Box(NamedTuple):
    """Shapes whose codes begin with the same bits. Edges are in steps, `low` belongs to it and `low + size` does not."""

    first: int  # code
    free: int  # bits of the code that are not fixed
    low: tuple[int, ...]
    size: tuple[int, ...]

    @property
    def codes(self) -> Range:
        return self.first, self.first + (1 << self.free) - 1

    def distance2(self, place: Sequence[float]) -> float:
        """Square of the least distance, in steps, from a place to any of its shapes."""
        total = 0.0
        for low, size, at in zip(self.low, self.size, place, strict=True):
            gap = low - at if at < low else at - low - size if at > low + size else 0.0
            total += gap * gap
        return total

    def parts(self) -> list[Box]:
        """The boxes that it is divided into."""
        boxes = [self]
        for _ in range(min(_DIVIDE_BITS, self.free)):
            boxes = [half for box in boxes for half in box._halves()]
        return boxes

    def _halves(self) -> tuple[Box, Box]:
        first, free, low, size = self[0], self[1] - 1, self[2], self[3]
        axis = len(low) - 1 - free % len(low)  # the last bit is the last dimension's
        half = size[axis] // 2
        size = (*size[:axis], half, *size[axis + 1 :])
        upper = (*low[:axis], low[axis] + half, *low[axis + 1 :])
        return Box(first, free, low, size), Box(first + (1 << free), free, upper, size)


def bits_of(dimensions: int) -> int:
    """How many bits of a code each of so many dimensions has."""
    return min(MOST_BITS, CODE_BITS // max(1, dimensions))


def code_of(dims: Mapping[str, int]) -> int:
    """The place of a shape on the curve of its dimensions' names."""
    return _interleaved([int(at) for at in _place(dims)])


def _interleaved(steps: Sequence[int]) -> int:
    code = 0
    for bit in range(bits_of(len(steps)) - 1, -1, -1):
        for step in steps:
            code = code << 1 | (step >> bit & 1)
    return code


def distance(dims: Mapping[str, int], other: Mapping[str, int]) -> float:
    """Between shapes of the same dimensions: how far their logarithms (base 2) lie apart."""
    return math.dist([math.log2(dims[name]) for name in sorted(dims)], [math.log2(other[name]) for name in sorted(dims)])


def nearest(
    dims: Mapping[str, int],
    count: int,
    beside: Callable[[int], Iterable[tuple[int, T]]],
    read: Callable[[Sequence[Range]], Iterable[tuple[int, int, T]]],
) -> list[T]:
    """Shapes among which the `count` nearest to `dims` are, in no order: those that their codes cannot tell from them are there
    too. Fewer than `count` are all there are.

    `beside` gives some shapes that come next before and after a code: code, and what is to be returned for it. `read` gives those
    in each of some ranges, the number of the range before; it may stop a range beyond `CROWD + 1` shapes, unless that is a
    single code.
    """
    place = _place(dims)
    reach: _Reach[T] = _Reach(place, count)
    waiting: list[tuple[float, int, Box]] = []  # boxes that were not looked into, the nearest first

    def wait(boxes: Iterable[Box]) -> None:
        for box in boxes:
            heapq.heappush(waiting, (box.distance2(place), box.first, box))

    # neighbours on the curve are often neighbours: what they leave to be searched is small
    reach.add(beside(_interleaved([int(at) for at in place])))
    wait(_around(place, reach.worst))
    while waiting and waiting[0][0] <= reach.worst:
        boxes: list[Box] = []
        while waiting and waiting[0][0] <= reach.worst and len(boxes) < TOGETHER:
            boxes.append(heapq.heappop(waiting)[2])
        shapes: list[list[tuple[int, T]]] = [[] for _ in boxes]
        for number, code, value in read([box.codes for box in boxes]):
            shapes[number].append((code, value))
        for box, held in zip(boxes, shapes, strict=True):
            if len(held) > CROWD and box.free:
                wait(box.parts())
            else:
                reach.add(held)
    return reach.within()


class _Reach(Generic[T]):
    """The shapes found so far, and how far away those that are wanted may be: squares of distances, in steps."""

    def __init__(self, place: Sequence[float], count: int) -> None:
        self._place, self._count = place, count
        self._text = f"0{max(1, bits_of(len(place)) * len(place))}b"
        self._least: dict[T, float] = {}  # a code fixes each dimension to a step: at least so far away, at most so far
        self._most: list[float] = []
        self.worst = math.inf

    def add(self, shapes: Iterable[tuple[int, T]]) -> None:
        for code, value in shapes:
            if value not in self._least:
                self._least[value], most = self._distances2(code)
                if most < self.worst:
                    bisect.insort(self._most, most)
        if len(self._most) >= self._count:
            self.worst = self._most[self._count - 1]

    def within(self) -> list[T]:
        return [value for value, least in self._least.items() if least <= self.worst]

    def _distances2(self, code: int) -> tuple[float, float]:
        """The least and the greatest that a shape of that code can have."""
        bits, axes = format(code, self._text), len(self._place)
        least = most = 0.0
        for axis, at in enumerate(self._place):
            gap = int(bits[axis::axes], 2) - at if bits[axis::axes] else 0.0
            # the shape lies between gap and gap + 1 from here
            if gap > 0:
                least += gap * gap
                most += (gap + 1) * (gap + 1)
            elif gap < -1:
                least += (gap + 1) * (gap + 1)
                most += gap * gap
            else:
                most += max(gap * gap, (gap + 1) * (gap + 1))
        return least, most


def _around(place: Sequence[float], worst: float) -> list[Box]:
    """Boxes that hold all that is not further away: a few that are as small as can be."""
    axes, bits = len(place), bits_of(len(place))
    radius = min(math.sqrt(worst), 2.0**bits)
    spans = [(max(0, int(at - radius)), min((1 << bits) - 1, int(at + radius))) for at in place]
    for free in range(bits):
        sides = [range(first >> free, (last >> free) + 1) for first, last in spans]
        if math.prod(map(len, sides)) <= TOGETHER:
            corners = (tuple(side << free for side in sides) for sides in itertools.product(*sides))
            return [Box(_interleaved(low), free * axes, low, (1 << free,) * axes) for low in corners]
    return [Box(0, bits * axes, (0,) * axes, (1 << bits,) * axes)]


def _place(dims: Mapping[str, int]) -> list[float]:
    """In steps, by the dimensions' names."""
    scale = 2.0 ** (bits_of(len(dims)) - WHOLE_BITS)
    return [(math.log2(dims[name]) + SHIFT) * scale for name in sorted(dims)]
