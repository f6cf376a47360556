from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tilesight.costmodel.analytical.schedule import list_makespan, uniform_makespan
from tilesight.costmodel.analytical.tiles import tile_coordinates
from tilesight.costmodel.analytical.traffic import Traffic, atomic_us, traffic
from tilesight.problem.rasterization import Rasterization
from tilesight.profile.values import Access, KernelProfile, Phase, Role, Space, Tensor, Trips, Work
from tilesight.target.spec import load_target

LINEAR = Rasterization()


def read(tensor: str, tile_bytes: float, axes: str, *, moves: bool = True) -> Access:
    return Access(
        Space.GLOBAL, tensor, False, "tma", tile_bytes, tile_bytes / 32, 1,
        axes=frozenset(axes), loop_dependent=moves, footprint_bytes=tile_bytes, asynchronous=True,
    )  # fmt: skip


def kernel(
    grid: tuple[int, int, int],
    accesses: tuple[Access, ...],
    trips: float,
    tensors: tuple[Tensor, ...],
    order: Rasterization,
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


def test_tensors_are_read_at_least_once_and_at_most_as_requested() -> None:
    t = traffic(matmul_like(2, 2, 4), load_target("h200"), 1)
    assert 4 * 4 * 16384 <= t.dram_read <= t.l2_read


def test_blocks_start_in_step_and_drift_apart_only_later() -> None:
    # 128 blocks at once: panels far beyond the L2, but all blocks walk them in step
    t = traffic(matmul_like(8, 16, 2048), load_target("h200"), 128)
    assert t.dram_read == pytest.approx((8 + 16) * 2048 * 16384)


def test_a_tile_is_as_long_as_its_longest_reader() -> None:
    # one panel for all blocks, of which each reads a step more than the one before
    access = read("a", 16384.0, "")
    phase = Phase(Trips((1.0, 2.0, 3.0, 4.0), frozenset("x")), Work(accesses=(access,)), is_loop=True)
    p = KernelProfile(
        "cuda", "sm_90a", (4, 1, 1), 128, 1, 0, (Role("all", 128, (phase,)),), (Tensor("a", 4 * 16384, 2),)
    )
    assert traffic(p, load_target("h200"), 4).dram_read == 4 * 16384


def test_repeated_plain_loads_of_a_core_hit_its_first_level_cache() -> None:
    # a vector that all blocks read, by plain loads and by copies that pass the first-level cache by
    def through(mechanism: str) -> float:
        vector = Access(
            Space.GLOBAL,
            "v",
            False,
            mechanism,
            4096.0,
            128.0,
            32.0,
            asynchronous=mechanism != "ld",
            footprint_bytes=4096.0,
        )
        return traffic(
            kernel((1320, 1, 1), (vector,), 1, (Tensor("v", 4096, 4),), LINEAR), load_target("h200"), 132
        ).l2_read

    assert through("cp_async") == 1320 * 4096
    assert through("ld") == 132 * 4096


def test_rows_that_a_block_reads_again_are_in_its_first_level_cache_or_not() -> None:
    """Its oldest lines go first: nothing is left of a row that is a little longer than the cache."""

    def served(row_bytes: float) -> float:
        row = Access(
            Space.GLOBAL,
            "x",
            False,
            "ld",
            row_bytes / 64,
            row_bytes / 64 / 32,
            row_bytes / 64 / 512,
            16,
            axes=frozenset("x"),
            loop_dependent=True,
            footprint_bytes=row_bytes / 64,
        )
        loop = Phase(Trips((64.0,)), Work(accesses=(row,)), is_loop=True)
        twice = KernelProfile(
            "cuda",
            "sm_90a",
            (132, 1, 1),
            1024,
            1,
            0,
            (Role("all", 1024, (loop, loop)),),
            (Tensor("x", round(132 * row_bytes), 2),),
        )
        t = traffic(twice, load_target("h200"), 132)
        return 2 - t.l2_read / (132 * row_bytes)

    assert served(131072) == pytest.approx(1.0)
    assert 0.0 < served(188416) < 1.0
    assert served(262144) == pytest.approx(0.0)


def test_what_an_iteration_requests_twice_needs_no_room_for_whole_rows() -> None:
    near = Access(
        Space.GLOBAL,
        "x",
        False,
        "ld",
        2 * 8192.0,
        2 * 256.0,
        32.0,
        16,
        axes=frozenset("x"),
        loop_dependent=True,
        footprint_bytes=8192.0,
    )
    t = traffic(
        kernel((132, 1, 1), (near,), 64, (Tensor("x", 132 * 64 * 8192, 2),), LINEAR), load_target("h200"), 132
    )
    assert t.l2_read < 0.8 * 2 * 132 * 64 * 8192


def test_whole_boxes_cross_to_the_core_but_only_their_inside_is_fetched() -> None:
    access = Access(
        Space.GLOBAL,
        "a",
        False,
        "tma",
        1024.0,
        32.0,
        1,
        axes=frozenset("x"),
        box_bytes=16384.0,
        footprint_bytes=1024.0,
    )
    t = traffic(kernel((8, 1, 1), (access,), 1, (Tensor("a", 8192, 2),), LINEAR), load_target("h200"), 8)
    assert (t.l2_read, t.dram_read) == (8 * 16384, 8 * 1024)


def test_data_that_several_blocks_write_is_written_back_once() -> None:
    access = Access(Space.GLOBAL, "y", True, "atomic", 4096.0, 128.0, 32.0, footprint_bytes=4096.0)
    t = traffic(kernel((64, 1, 1), (access,), 1, (Tensor("y", 4096, 4),), LINEAR), load_target("h200"), 64)
    assert (t.l2_write, t.dram_write) == (64 * 4096, 4096)


def atomic(lanes: int, tensor_bytes: int, blocks: int = 1024, warps: int = 1) -> float:
    """Microseconds of blocks that add 1000 times a warp, with `lanes` of each warp at one address."""
    each, threads = 1000 * warps, 32 * warps
    distinct = 1000 * 128.0 / lanes if lanes < 32 else 1000 * 4.0
    access = Access(
        Space.GLOBAL, "y", True, "atomic", each * 128.0, each * max(1.0, 4.0 / lanes), each,
        axes=frozenset("x"), footprint_bytes=distinct,
    )  # fmt: skip
    phase = Phase(Trips((1.0,)), Work(accesses=(access,)))
    tensors = (Tensor("y", tensor_bytes, 4),)
    profile = KernelProfile(
        "cuda", "sm_90a", (blocks, 1, 1), threads, 1, 0, (Role("all", threads, (phase,)),), tensors, LINEAR
    )
    return atomic_us(profile, load_target("h200"))


def test_lanes_that_add_to_one_address_queue() -> None:
    assert atomic(32, 1 << 24) > 20 * atomic(1, 1 << 24)
    # the busiest unit has more of few lines than of many
    assert atomic(32, 1 << 14) > 1.5 * atomic(32, 1 << 24)


def test_warps_that_add_to_the_same_addresses_do_not_make_an_instruction_slower() -> None:
    assert atomic(32, 1 << 24, warps=4) == pytest.approx(4 * atomic(32, 1 << 24))


def test_each_xcd_reads_for_itself() -> None:
    # one row panel that all blocks share: eight L2s fetch it eight times, the cache behind them once
    shared = kernel((64, 1, 1), (read("a", 16384.0, ""),), 8, (Tensor("a", 8 * 16384, 2),), Rasterization())
    t = traffic(shared, load_target("mi300x"), 64)
    assert t.dram_read == pytest.approx(8 * 16384)
    assert t.llc == pytest.approx(8 * 8 * 16384)


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


def test_blocks_of_a_cluster_along_z_are_launched_together() -> None:
    c = tile_coordinates((3, 2, 4), Rasterization(depth=2))
    assert list(c["z"]) == [0, 1] * 6 + [2, 3] * 6
    assert list(c["x"]) == [0, 0, 1, 1, 2, 2] * 4
    assert list(c["y"]) == ([0] * 6 + [1] * 6) * 2
    assert len(set(zip(c["x"], c["y"], c["z"], strict=True))) == 24


def test_parts_of_a_cluster_keep_rows_of_blocks_apart_in_time() -> None:
    """Two rows of blocks of two parts: a wave has both rows, or both parts and reads all of `b` twice."""
    tile, steps, columns = 16384.0, 4096, 64
    tensors = (Tensor("b", int(2 * columns * steps * tile), 2),)

    def dram(order: Rasterization) -> float:
        p = kernel((columns, 2, 2), (read("b", tile, "xz"),), steps, tensors, order)
        return traffic(p, load_target("h200"), 2 * columns).dram_read

    whole = tensors[0].bytes
    assert dram(LINEAR) <= 1.5 * whole  # rows are launched 64 blocks apart, so some tiles are fetched again
    assert dram(Rasterization(depth=2)) == pytest.approx(2 * whole)


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


def test_counters_show_another_hit_rate_than_the_bytes() -> None:
    streamed = Traffic(l2_read=1e6, l2_write=1e6, dram_read=1e6, dram_write=1e6)
    assert streamed.counted_hit_share == streamed.hit_share == 0.5  # nothing is read twice: nothing is merged
    reused = Traffic(l2_read=1e7, l2_write=0.0, dram_read=1e6, dram_write=0.0)
    assert reused.counted_hit_share < reused.hit_share == 0.9
    assert Traffic(0.0, 0.0, 0.0, 0.0).counted_hit_share == 1.0


def test_short_runs_take_longer_at_device_memory() -> None:
    """Runs of 64 bytes take half again as long, long and unknown ones no longer."""
    stretches = []
    for run in (32.0, 64.0, 128.0, 4096.0, 0.0):
        moved = replace(read("t0", 4096, "x"), mechanism="ld", asynchronous=False, run_bytes=run)
        launch = kernel((1024, 1, 1), (moved,), 1, (Tensor("t0", 1 << 22, 4),), LINEAR)
        stretches.append(traffic(launch, load_target("h200"), 132).read_stretch)
    assert stretches[0] == stretches[1] == pytest.approx(1.5)
    assert 1.1 < stretches[2] < 1.25
    assert stretches[3] == pytest.approx(1.0, abs=0.01)
    assert stretches[4] == 1.0


def test_short_runs_take_longer_even_if_neighbours_have_the_rest() -> None:
    """Of 64 bytes 7.5 %, where the next block reads the bytes beside them (experiments/stripes)."""
    stretches = []
    for own in (32.0, 64.0, 128.0, 0.0):
        moved = replace(
            read("t0", 4096, "x"), mechanism="ld", asynchronous=False, run_bytes=4096.0, own_run_bytes=own
        )
        launch = kernel((1024, 1, 1), (moved,), 1, (Tensor("t0", 1 << 22, 4),), LINEAR)
        stretches.append(traffic(launch, load_target("h200"), 132).read_stretch)
    assert 1.3 < stretches[0] < 1.4
    assert stretches[1] == pytest.approx(1.075)
    assert 1.01 < stretches[2] < 1.02
    assert stretches[3] == pytest.approx(1.0, abs=0.01)


@pytest.mark.parametrize(("write", "times"), [(False, 2), (True, 4)])
def test_a_sector_in_two_parts_is_fetched_for_each_and_before_it_is_written(
    write: bool, times: float
) -> None:
    def stretch(run: float) -> float:
        lanes = replace(
            read("t0", 4096, "x"), write=write, mechanism="st" if write else "ld", asynchronous=False,
            transactions=4096 / run, run_bytes=run,
        )  # fmt: skip
        launch = kernel((1024, 1, 1), (lanes,), 1, (Tensor("t0", 1 << 22, 4),), LINEAR)
        found = traffic(launch, load_target("h200"), 132)
        return found.write_stretch if write else found.read_stretch

    assert stretch(16.0) == pytest.approx(times * stretch(32.0))
    assert stretch(8.0) == stretch(16.0)  # shorter ones were not measured
