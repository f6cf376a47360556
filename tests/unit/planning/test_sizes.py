"""Ranges, cells and sampled sizes."""

from __future__ import annotations

import itertools

import pytest

from tilesight.errors import InputError
from tilesight.planning.sizes import Cell, Vary, around_each, awkward, cells, divided, even, read_vary, weights_of, widest_gaps

WIDE = Vary("m", 1, 16384)
TILES = (16, 32, 64, 128, 192, 256)


def test_a_range_is_read() -> None:
    assert read_vary("m=1..16384") == WIDE
    assert read_vary(" seq_len = 128 .. 128 ") == Vary("seq_len", 128, 128)


@pytest.mark.parametrize(
    "text", ["", "m", "m=", "m=1", "m=1..", "m=1...5", "m=-1..5", "m=1.5..9", "m=1..9,n=2", "m=5..4", "m=0..4", "m=1..9999999999"]
)
def test_a_wrong_range_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="vary"):
        read_vary(text)


@pytest.mark.parametrize(
    ("vary", "steps", "most"),
    [
        (WIDE, TILES, 128),
        (WIDE, TILES, 10_000),
        (WIDE, (1,), 100),
        (Vary("m", 5, 5), TILES, 10),
        (Vary("m", 17, 40), TILES, 1),
        (Vary("m", 3, 2**31 - 2**16), TILES, 64),
    ],
)
def test_cells_cover_the_range_side_by_side(vary: Vary, steps: tuple[int, ...], most: int) -> None:
    found = cells(vary, steps, most)
    assert found[0].first == vary.first
    assert found[-1].last == vary.last
    assert all(cell.first <= cell.last for cell in found)
    assert all(after.first == before.last + 1 for before, after in itertools.pairwise(found))
    assert len(found) <= most


def test_cells_end_at_multiples_of_tiles() -> None:
    found = cells(WIDE, TILES, 128)
    assert all(cell.last % 16 == 0 for cell in found)
    assert {16, 32, 64, 128, 256, 512, 1024} <= {cell.last for cell in found}
    assert cells(Vary("m", 1, 64), TILES, 128) == [Cell(1, 16), Cell(17, 32), Cell(33, 48), Cell(49, 64)]


def test_even_sizes_hold_the_ends() -> None:
    assert even(WIDE, 8) == [1, 4, 16, 64, 256, 1024, 4096, 16384]
    assert even(Vary("m", 3, 5), 8) == [3, 4, 5]
    assert even(WIDE, 1) == [16384]
    assert even(WIDE, 8, 16) == [1, 28, 101, 297, 825, 2248, 6076, 16384]


def test_awkward_sizes_are_as_many_as_asked_and_lie_at_jumps() -> None:
    parts = cells(WIDE, TILES, 128)
    times = [(part, 1.0 + -(-part.last // 1024)) for part in parts]  # jumps behind multiples of 1024
    found = awkward(WIDE, 24, times)
    assert len(found) == 24
    assert found == sorted(set(found))
    assert {1, 16384} <= set(found)
    assert any(size % 1024 == 1 and size > 1 for size in found)
    assert any(size % 1024 == 0 for size in found)
    assert sum(size <= 16 for size in found) <= 4  # where one tile covers all, few are enough


def test_awkward_sizes_need_no_times() -> None:
    assert len(awkward(WIDE, 10, [])) == 10
    assert awkward(Vary("m", 7, 9), 10, []) == [7, 8, 9]
    assert awkward(WIDE, 1, []) == [16384]
    assert awkward(Vary("m", 1, 40), 20, [])[0] == 1


def test_each_size_stands_for_what_lies_nearest() -> None:
    assert around_each([1, 4, 16], Vary("m", 1, 32)) == [Cell(1, 2), Cell(3, 8), Cell(9, 32)]
    assert around_each([5, 6, 7], Vary("m", 5, 7)) == [Cell(5, 5), Cell(6, 6), Cell(7, 7)]
    assert around_each([9], Vary("m", 9, 9)) == [Cell(9, 9)]


def test_weights_are_even_in_doublings_unless_sizes_are_asked_for() -> None:
    parts = [Cell(1, 1), Cell(2, 3), Cell(4, 7)]
    assert weights_of(parts) == pytest.approx([1 / 3] * 3)
    asked = weights_of(parts, {2: 30.0, 3: 60.0, 4: 10.0, 99: 5.0})
    assert sum(asked) == pytest.approx(1)
    assert asked == pytest.approx([0.1 / 3, 0.1 / 3 + 0.81, 0.1 / 3 + 0.09])
    assert weights_of(parts, {99: 5.0}) == weights_of(parts)


def test_gaps_are_filled_the_widest_first() -> None:
    assert widest_gaps([2, 8, 100, 1000], [1, 64, 4096], 2) == [8, 1000]
    assert widest_gaps([2, 8], [2, 8], 2) == []
    assert widest_gaps([5, 7], [], 1) == [5]
    assert widest_gaps([5], [1], 0) == []


def test_cells_that_hold_several_sampled_sizes_are_divided_among_them() -> None:
    parts = [Cell(1, 16), Cell(17, 32), Cell(33, 48)]
    assert divided(parts, [1, 3, 10, 16, 20, 100]) == [Cell(1, 1), Cell(2, 5), Cell(6, 12), Cell(13, 16), Cell(17, 32), Cell(33, 48)]
    assert divided(parts, [16, 33]) == parts
