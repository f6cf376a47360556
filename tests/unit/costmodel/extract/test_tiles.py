"""Tiles that blocks share, however a kernel computes them from its block index."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.costmodel import sample_kernels as kernels
from tests.unit.costmodel.extract.reading import accesses, read
from tilesight.costmodel.analytical.streams import streams_of
from tilesight.costmodel.analytical.tiles import Tiles, waves_of
from tilesight.costmodel.analytical.traffic import traffic
from tilesight.costmodel.extract.numbering import digits_of
from tilesight.problem.rasterization import Rasterization
from tilesight.profile.values import Space
from tilesight.target.spec import load_target

H200 = load_target("h200")


@pytest.mark.parametrize("group", [1, 4])
def test_a_1d_grid_shares_the_tiles_of_a_2d_grid(group: int) -> None:
    one, two = (
        read(kernels.product_in_groups(2048, 1024, 512, 128, 64, group)),
        read(kernels.product_in_groups(2048, 1024, 512, 128, 64, 0)),
    )
    loads = {a.tensor: a for a in accesses(one)}
    assert {t: Tiles.of(a).count(one.grid) for t, a in loads.items()} == {"t0": 16, "t1": 8}
    assert all(a.tile_ids == () for a in loads.values())  # digits: small, and the same for larger grids
    assert traffic(one, H200, 128).dram_read == pytest.approx(traffic(two, H200, 128).dram_read)


def test_tiles_of_plain_axes_are_left_as_they_are() -> None:
    for access in accesses(read(kernels.product_in_groups(1024, 1024, 256, 128, 64, 0))):
        assert (access.tile_digits, access.tile_ids, access.turns) == ((), (), 1)


@pytest.mark.parametrize(
    ("values", "digits"),
    [
        ([0, 0, 1, 1, 2, 2], [("x", 2, 3)]),
        ([5, 7, 5, 7], [("x", 1, 2)]),
        ([0, 1, 0, 1, 2, 3, 2, 3], [("x", 1, 2), ("x", 4, 2)]),
        ([3, 3, 3], []),
        ([0, 1, 2, 1, 0], None),
    ],
)
def test_digits_distinguish_exactly_the_different_values(values: list[int], digits: object) -> None:
    assert digits_of(np.asarray(values), "x") == digits


def test_waves_count_tiles_by_digits_and_by_listing_alike() -> None:
    grid, order = (64, 1, 1), Rasterization()
    digits = waves_of(Tiles(frozenset("x"), digits=(("x", 4, 4),)), grid, order, 16, 1)
    listed = waves_of(Tiles(frozenset("x"), ids=tuple(b // 4 % 4 for b in range(64))), grid, order, 16, 1)
    assert digits.tiles.tolist() == listed.tiles.tolist() == [4.0] * 4
    assert digits.again.tolist() == listed.again.tolist() == [0.0, 4.0, 4.0, 4.0]


def test_repeated_reads_of_a_block_come_from_caches() -> None:
    p = read(kernels.row_read_twice(4096, 2048))
    assert traffic(p, H200, 132 * 8).dram_read == pytest.approx(4096 * 2048 * 4)


def test_data_that_all_blocks_add_to_is_written_back_once() -> None:
    p = read(kernels.added_to_one_row(4096, 1024))
    assert sorted(t.bytes for t in p.tensors) == [1024 * 4, 4096 * 1024 * 4]
    found = traffic(p, H200, 132 * 8)
    assert found.dram_write == 1024 * 4
    assert found.l2_write >= 4096 * 1024 * 4


def test_a_load_with_one_address_in_an_unrolled_loop_is_made_once() -> None:
    p = read(kernels.scaled_columns(64, 1024, 8))
    (label,) = [t.label for t in p.tensors if t.bytes == 512]
    (scale,) = [a for a in accesses(p) if a.tensor == label]
    assert (scale.instructions, scale.bytes) == (4, 512)


def test_one_loop_over_the_iterations_of_all_tiles_goes_from_tile_to_tile() -> None:
    """50 tiles of 5 columns for 16 blocks: two of them have four tiles, the others three."""
    profile = read(kernels.tiles_in_turn(10, 5, 12, 16))
    loads = {a.tensor: a for a in accesses(profile)}
    assert {t: (a.turns, len(set(a.tile_ids))) for t, a in loads.items()} == {"t0": (4, 10), "t1": (4, 5)}
    reads, _ = streams_of(profile)
    # samples of iterations that some blocks do not have lie outside of A
    assert [s.largest_bytes for s in reads] == pytest.approx([12 * 64 * 64 * 2] * 2, rel=0.06)
    every = (10 + 5) * 12 * 64 * 64 * 2
    assert traffic(profile, H200, 16).dram_read == pytest.approx(every, rel=0.06)


def test_what_follows_the_last_iteration_of_a_tile_counts_once_a_tile() -> None:
    """The condition holds in one of 100 iterations, which few samples of iterations meet."""
    profile = read(kernels.tiles_in_turn(10, 5, 100, 16))
    stored = sum(
        a.bytes * p.trips.mean * profile.blocks
        for r in profile.roles
        for p in r.phases
        for a in p.work.accesses
        if a.space is Space.GLOBAL and a.write
    )
    assert stored == pytest.approx(50 * 64 * 64 * 2, rel=0.06)
