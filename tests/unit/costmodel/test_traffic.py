from __future__ import annotations

import numpy as np
import pytest

from tilesight.costmodel.schedule import list_makespan, uniform_makespan
from tilesight.costmodel.traffic import tile_coordinates, traffic
from tilesight.profile import Access, KernelProfile, Phase, Rasterization, Role, Space, Tensor, Trips, Work
from tilesight.target import load_target

LINEAR = Rasterization()


def read(tensor: str, tile_bytes: float, axes: str, *, moves: bool = True) -> Access:
    return Access(
        Space.GLOBAL, tensor, False, "tma", tile_bytes, tile_bytes / 32, 1,
        axes=frozenset(axes), loop_dependent=moves, footprint_bytes=tile_bytes, asynchronous=True,
    )  # fmt: skip


def kernel(
    grid: tuple[int, int, int], accesses: tuple[Access, ...], trips: float, tensors: tuple[Tensor, ...], order: Rasterization
) -> KernelProfile:
    phase = Phase(Trips((trips,)), Work(accesses=accesses), is_loop=True)
    return KernelProfile("cuda", "sm_90a", grid, 128, 1, 0, (Role("all", 128, (phase,)),), tensors, order)


def matmul_like(tiles_m: int, tiles_n: int, steps: int, order: Rasterization = LINEAR) -> KernelProfile:
    tile = 16384.0
    tensors = (Tensor("a", int(tiles_m * steps * tile), 2), Tensor("b", int(tiles_n * steps * tile), 2))
    return kernel((tiles_n, tiles_m, 1), (read("a", tile, "y"), read("b", tile, "x")), steps, tensors, order)


def test_one_wave_reads_each_tile_once() -> None:
    t = traffic(matmul_like(8, 8, 16), load_target("h200"), 64)
    assert t.l2_read == 64 * 2 * 16 * 16384
    assert t.dram_read == 16 * 16 * 16384  # 8 row panels and 8 column panels of 16 steps


def test_a_wave_of_one_row_reads_all_of_b_for_each_row() -> None:
    # 64 tiles of b a row, far beyond L2 together: every row of blocks fetches b again
    p = matmul_like(4, 64, 512)
    t = traffic(p, load_target("h200"), 64)
    panel = 512 * 16384
    assert t.dram_read == pytest.approx(4 * (64 + 1) * panel, rel=0.1)


def test_panels_lower_the_traffic_of_wide_grids() -> None:
    linear = traffic(matmul_like(64, 64, 512), load_target("h200"), 128)
    panels = traffic(matmul_like(64, 64, 512, Rasterization("row", 8)), load_target("h200"), 128)
    assert panels.dram_read < 0.75 * linear.dram_read


def test_tensors_are_never_read_less_than_once_nor_more_than_asked() -> None:
    t = traffic(matmul_like(2, 2, 4), load_target("h200"), 1)
    assert 4 * 4 * 16384 <= t.dram_read <= t.l2_read


def test_each_xcd_reads_for_itself() -> None:
    # one row panel that all blocks share: eight L2s fetch it eight times, the cache behind them once
    shared = kernel((64, 1, 1), (read("a", 16384.0, ""),), 8, (Tensor("a", 8 * 16384, 2),), Rasterization())
    assert traffic(shared, load_target("mi300x"), 64).dram_read == pytest.approx(8 * 16384)


def test_rasterization_is_a_permutation_and_walks_panels() -> None:
    c = tile_coordinates((6, 8, 2), Rasterization("row", 4))
    assert len({(x, y, z) for x, y, z in zip(c["x"], c["y"], c["z"], strict=True)}) == 6 * 8 * 2
    assert list(c["y"][:4]) == [0, 1, 2, 3]
    assert list(c["x"][:4]) == [0, 0, 0, 0]
    # the second panel runs backwards
    assert (c["x"][24], c["y"][24]) == (5, 4)
    column = tile_coordinates((6, 8, 1), Rasterization("column", 3))
    assert list(column["x"][:3]) == [0, 1, 2]
    assert list(column["y"][:3]) == [0, 0, 0]


def test_a_short_last_panel_is_walked_at_its_own_height() -> None:
    c = tile_coordinates((4, 5, 1), Rasterization("row", 4))
    assert np.all(c["y"][16:] == 4)
    assert sorted(c["x"][16:]) == [0, 1, 2, 3]


def test_full_waves_and_tail() -> None:
    def time_of(resident: float) -> float:
        return 10 * resident

    assert uniform_makespan(264, 132, 1, time_of) == 20
    assert uniform_makespan(265, 132, 1, time_of) == 30
    # two resident blocks a core; the tail of 132 leaves one on each
    assert uniform_makespan(396, 132, 2, time_of) == 20 + 10


def test_uneven_blocks_go_where_a_place_is_free() -> None:
    assert list_makespan([4, 1, 1, 1, 1], 2) == 4
    assert list_makespan([1, 1, 1, 1, 4], 2) == 6  # the long one last
    assert list_makespan([3.0], 100) == 3
