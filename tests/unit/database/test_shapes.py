"""Shapes on the curve: among what `nearest` returns are those that looking at all of them would find."""

from __future__ import annotations

import bisect
import random
from collections.abc import Mapping, Sequence

import pytest

from tilesight.database import shapes
from tilesight.workload import MAX_DIMENSION

Dims = Mapping[str, int]


class Asked:
    """Shapes held in memory, with a note of how many were read."""

    def __init__(self, held: Sequence[Dims]) -> None:
        self._held = sorted((shapes.code_of(dims), number) for number, dims in enumerate(held))
        self.read_shapes = self.calls = 0

    def _within(self, found: shapes.Range) -> list[tuple[int, int]]:
        most = shapes.CROWD + 1 if found[1] > found[0] else len(self._held)
        begin = bisect.bisect_left(self._held, (found[0], 0))
        return [entry for entry in self._held[begin : begin + most] if entry[0] <= found[1]]

    def beside(self, code: int) -> list[tuple[int, int]]:
        at = bisect.bisect_left(self._held, (code, 0))
        return self._held[max(0, at - shapes.BESIDE) : at + shapes.BESIDE]

    def read(self, ranges: Sequence[shapes.Range]) -> list[tuple[int, int, int]]:
        self.calls += 1
        found = [(part, code, number) for part, one in enumerate(ranges) for code, number in self._within(one)]
        self.read_shapes += len(found)
        return found


def drawn(rng: random.Random, names: str, kind: str) -> Dims:
    if kind == "spread":
        return {name: min(MAX_DIMENSION, int(2 ** (31 * rng.random()))) for name in names}
    if kind == "clustered":
        return {name: rng.choice([4096, 8192]) + rng.randrange(3) for name in names}
    return {name: rng.randrange(1, 2000) if name == names[0] else 8192 for name in names}


@pytest.mark.parametrize("names", ["m", "mk", "kmn", "abcdef", "abcdefghijklm"])
@pytest.mark.parametrize("kind", ["spread", "clustered", "line"])
def test_nearest_are_those_that_looking_at_all_would_find(names: str, kind: str) -> None:
    rng = random.Random(f"{names}{kind}")
    held = [drawn(rng, names, kind) for _ in range(300)]
    for number in range(12):
        # also shapes far from all, and one that is held itself
        wanted = held[7] if number == 0 else drawn(rng, names, kind if number % 2 else "spread")
        by_distance = sorted(shapes.distance(wanted, dims) for dims in held)
        for count in (1, 4, 30):
            asked = Asked(held)
            found = shapes.nearest(wanted, count, asked.beside, asked.read)
            distances = sorted(shapes.distance(wanted, held[number]) for number in found)
            assert distances[:count] == pytest.approx(by_distance[:count], abs=1e-12)
            assert len(set(found)) == len(found)


def test_more_than_there_are() -> None:
    asked = Asked([{"m": 8}, {"m": 2}])
    assert sorted(shapes.nearest({"m": 1}, 5, asked.beside, asked.read)) == [0, 1]
    assert shapes.nearest({"m": 1}, 5, Asked([]).beside, Asked([]).read) == []


def test_few_of_many_are_read() -> None:
    rng = random.Random(1)
    held = [drawn(rng, "kmn", "spread") for _ in range(5_000)]
    reads = []
    for _ in range(20):
        asked = Asked(held)
        shapes.nearest(drawn(rng, "kmn", "spread"), 4, asked.beside, asked.read)
        reads.append(asked.read_shapes)
        assert asked.calls <= 12
    assert sorted(reads)[10] < 300


def test_codes_lie_within_63_bits_and_keep_to_the_names_order() -> None:
    for count in (0, 1, 3, 5, 6, 12, 31, 62, 63, 100):
        for size in (1, MAX_DIMENSION):
            code = shapes.code_of({f"d{n}": size for n in range(count)})
            assert 0 <= code < 2**63
    assert shapes.code_of({"m": 3, "k": 70}) == shapes.code_of({"k": 70, "m": 3}) != shapes.code_of({"m": 70, "k": 3})


def test_shapes_that_share_the_first_bits_share_a_box() -> None:
    # one bit of each dimension more, and each is known twice as exactly
    box = shapes.Box(0, 36, (0, 0, 0), (4096, 4096, 4096))
    for dims in ({"a": 1, "b": 2, "c": 3}, {"a": 5000, "b": 60, "c": 7}, {"a": MAX_DIMENSION, "b": 1, "c": 2**20}):
        code, inside = shapes.code_of(dims), box
        while inside.free:
            inside = next(part for part in inside.parts() if part.codes[0] <= code <= part.codes[1])
        assert inside.size == (1, 1, 1)
        assert inside.distance2([step + 0.5 for step in inside.low]) == 0
        assert inside.distance2([inside.low[0] - 3, *inside.low[1:]]) == 9
