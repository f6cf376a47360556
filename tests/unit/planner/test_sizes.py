"""Ranges, cells and sampled sizes."""

from __future__ import annotations

import itertools

import pytest

from tilesight.errors import InputError
from tilesight.planner.sizes import (
    Cell,
    SizeRange,
    cell_weights,
    cells,
    evenly_spaced,
    nearest_cells,
    read_vary,
    sizes_at_jumps,
    split_cells,
    widest_gaps,
)

WIDE = SizeRange("m", 1, 16384)
TILES = (16, 32, 64, 128, 192, 256)


def test_a_range_is_read() -> None:
    assert read_vary("m=1..16384") == WIDE
    assert read_vary(" seq_len = 128 .. 128 ") == SizeRange("seq_len", 128, 128)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "m",
        "m=",
        "m=1",
        "m=1..",
        "m=1...5",
        "m=-1..5",
        "m=1.5..9",
        "m=1..9,n=2",
        "m=5..4",
        "m=0..4",
        "m=1..9999999999",
    ],
)
def test_a_wrong_range_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="vary"):
        read_vary(text)


@pytest.mark.parametrize(
    ("vary", "tile_sizes", "most"),
    [
        (WIDE, TILES, 128),
        (WIDE, TILES, 10_000),
        (WIDE, (1,), 100),
        (SizeRange("m", 5, 5), TILES, 10),
        (SizeRange("m", 17, 40), TILES, 1),
        (SizeRange("m", 3, 2**31 - 2**16), TILES, 64),
    ],
)
def test_cells_cover_the_range_without_gaps(vary: SizeRange, tile_sizes: tuple[int, ...], most: int) -> None:
    found = cells(vary, tile_sizes, most)
    assert found[0].first == vary.first
    assert found[-1].last == vary.last
    assert all(cell.first <= cell.last for cell in found)
    assert all(after.first == before.last + 1 for before, after in itertools.pairwise(found))
    assert len(found) <= most


def test_cells_end_at_multiples_of_tiles() -> None:
    found = cells(WIDE, TILES, 128)
    assert all(cell.last % 16 == 0 for cell in found)
    assert {16, 32, 64, 128, 256, 512, 1024} <= {cell.last for cell in found}
    assert cells(SizeRange("m", 1, 64), TILES, 128) == [Cell(1, 16), Cell(17, 32), Cell(33, 48), Cell(49, 64)]


def test_evenly_spaced_sizes_contain_the_ends() -> None:
    assert evenly_spaced(WIDE, 8) == [1, 4, 16, 64, 256, 1024, 4096, 16384]
    assert evenly_spaced(SizeRange("m", 3, 5), 8) == [3, 4, 5]
    assert evenly_spaced(WIDE, 1) == [16384]
    assert evenly_spaced(WIDE, 8, 16) == [1, 28, 101, 297, 825, 2248, 6076, 16384]


def test_sizes_at_jumps_have_the_requested_number() -> None:
    parts = cells(WIDE, TILES, 128)
    times = [(part, 1.0 + -(-part.last // 1024)) for part in parts]  # jumps behind multiples of 1024
    found = sizes_at_jumps(WIDE, 24, times)
    assert len(found) == 24
    assert found == sorted(set(found))
    assert {1, 16384} <= set(found)
    assert any(size % 1024 == 1 and size > 1 for size in found)
    assert any(size % 1024 == 0 for size in found)
    assert sum(size <= 16 for size in found) <= 4  # where one tile covers all, few are enough


def test_sizes_at_jumps_need_no_times() -> None:
    assert len(sizes_at_jumps(WIDE, 10, [])) == 10
    assert sizes_at_jumps(SizeRange("m", 7, 9), 10, []) == [7, 8, 9]
    assert sizes_at_jumps(WIDE, 1, []) == [16384]
    assert sizes_at_jumps(SizeRange("m", 1, 40), 20, [])[0] == 1


def test_each_size_gets_the_cell_of_nearest_sizes() -> None:
    assert nearest_cells([1, 4, 16], SizeRange("m", 1, 32)) == [Cell(1, 2), Cell(3, 8), Cell(9, 32)]
    assert nearest_cells([5, 6, 7], SizeRange("m", 5, 7)) == [Cell(5, 5), Cell(6, 6), Cell(7, 7)]
    assert nearest_cells([9], SizeRange("m", 9, 9)) == [Cell(9, 9)]


def test_without_given_weights_each_doubling_counts_the_same() -> None:
    parts = [Cell(1, 1), Cell(2, 3), Cell(4, 7)]
    assert cell_weights(parts) == pytest.approx([1 / 3] * 3)
    asked = cell_weights(parts, {2: 30.0, 3: 60.0, 4: 10.0, 99: 5.0})
    assert sum(asked) == pytest.approx(1)
    assert asked == pytest.approx([0.1 / 3, 0.1 / 3 + 0.81, 0.1 / 3 + 0.09])
    assert cell_weights(parts, {99: 5.0}) == cell_weights(parts)


def test_the_widest_gaps_are_filled_first() -> None:
    assert widest_gaps([2, 8, 100, 1000], [1, 64, 4096], 2) == [8, 1000]
    assert widest_gaps([2, 8], [2, 8], 2) == []
    assert widest_gaps([5, 7], [], 1) == [5]
    assert widest_gaps([5], [1], 0) == []


def test_cells_that_hold_several_sampled_sizes_are_divided_among_them() -> None:
    parts = [Cell(1, 16), Cell(17, 32), Cell(33, 48)]
    assert split_cells(parts, [1, 3, 10, 16, 20, 100]) == [
        Cell(1, 1),
        Cell(2, 5),
        Cell(6, 12),
        Cell(13, 16),
        Cell(17, 32),
        Cell(33, 48),
    ]
    assert split_cells(parts, [16, 33]) == parts
