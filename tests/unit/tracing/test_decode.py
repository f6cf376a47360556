"""Words that blocks have written become times."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.support.stamps import (
    CLOCK_MHZ,
    ITERATION,
    SPECIALISED,
    TRIPS,
    Stamps,
    run_of,
    specialised_program,
    specialised_trace,
    us,
    written,
)
from tilesight.tracing import layout
from tilesight.tracing.decode import loop_runs, read_trace
from tilesight.tracing.iterations import Basis, interior, loop_times, roles_of
from tilesight.tracing.layout import begin_code, end_code
from tilesight.tracing.values import KernelTrace, StampedKernel, StampedLoop


def test_blocks_have_their_times_and_cores() -> None:
    trace = specialised_trace()
    assert len(trace.blocks) == SPECIALISED.blocks == 128
    assert [block.core for block in trace.blocks] == list(range(128))
    assert trace.clock_mhz == pytest.approx(CLOCK_MHZ, rel=1e-3)
    for block in trace.blocks:
        assert block.start_us == 0
        assert block.us == pytest.approx(us(7_500 + TRIPS * ITERATION), rel=1e-3)
    assert not trace.is_cut


def test_sampled_blocks_lie_all_over_the_grid_along_each_axis() -> None:
    for grid in ((4, 32, 1), (132, 1, 1), (8, 1, 64), (1, 1, 1), (3, 1, 1), (8192, 1, 1), (1, 2, 64)):
        kernel = replace(SPECIALISED, grid=grid)
        chosen = layout.sampled(kernel)
        blocks = kernel.blocks
        assert chosen
        assert all(0 <= block < blocks for block in chosen)
        assert len(chosen) >= min(blocks, layout.SAMPLED_BLOCKS) // 2
        if grid[0] in (3, 4, 8) and blocks > grid[0]:
            assert len({block % grid[0] for block in chosen}) == grid[0], grid


def test_the_steady_iteration_is_without_the_first_and_the_last_one() -> None:
    times = {(t.role, t.loop): t for t in loop_times(specialised_trace())}
    assert list(times) == [("producer", 0), ("consumer 1", 1), ("consumer 2", 1)]
    for timed in times.values():
        assert timed.iterations == TRIPS
        assert timed.steady_us == pytest.approx(us(ITERATION), rel=1e-3)
        assert timed.basis is Basis.STEADY
    # single iterations differ in turn; their median says nothing
    assert times["consumer 1", 1].single_us != pytest.approx(us(ITERATION), rel=0.05)


def test_idle_warps_of_a_producer_are_no_role() -> None:
    assert [(role.name, role.warp) for role in roles_of(specialised_trace())] == [
        ("producer", 0),
        ("consumer 1", 4),
        ("consumer 2", 8),
    ]


def nested_trace(turns: int = 3, steps: int = 20) -> KernelTrace:
    """A persistent kernel: a loop of tiles, one within it, and an epilogue of 700 cycles in each turn."""
    loops = (StampedLoop(0, None, False, True), StampedLoop(1, 0, True, True))
    kernel = StampedKernel("persistent", (132, 1, 1), 128, loops)

    def program(_block: int, _warp: int) -> tuple[Stamps, int]:
        stamps: Stamps = []
        at = 500
        for _ in range(turns):
            stamps.append((begin_code(0), at))
            stamps += run_of(1, at + 50, [300] * steps)
            at += 50 + 300 * steps + 700
        return [*stamps, (end_code(0), at)], at + 100

    return read_trace(written(kernel, program), kernel)


def test_an_outer_loop_has_the_time_that_is_not_of_its_inner_loop() -> None:
    outer, inner = loop_times(nested_trace(turns=5))
    assert (outer.role, outer.iterations, inner.iterations) == ("all threads", 5, 100)
    assert outer.steady_us == pytest.approx(us(750), rel=1e-2)
    assert inner.steady_us == pytest.approx(us(300), rel=1e-3)
    assert inner.outer == 0


def test_sums_of_iterations_lie_within_their_block() -> None:
    for trace in (specialised_trace(), nested_trace()):
        for block in trace.sampled:
            for warp in block.warps:
                for run in warp.runs:
                    assert all(start <= end for start, end in run.spans)
                    assert run.starts[0] >= block.time.start_us
                    assert run.end_us is not None
                    assert run.end_us <= warp.end_us <= block.time.end_us + 1e-6


def test_loops_of_different_length_and_without_iterations() -> None:
    codes = [begin_code(0), begin_code(0), end_code(0), end_code(1), begin_code(0), end_code(0)]
    runs = loop_runs((code, float(at), None) for at, code in enumerate(codes, 1))
    assert [(run.loop, run.starts, run.end_us) for run in runs] == [(0, (1.0, 2.0), 3.0), (0, (5.0,), 6.0)]


def test_a_cut_trace_keeps_its_first_iterations() -> None:
    def program(_block: int, _warp: int) -> tuple[Stamps, int]:
        return run_of(0, 100, [10] * (layout.RECORDS + 5)), 200_000

    kernel = StampedKernel("long", (2, 1, 1), 32, (StampedLoop(0, None, False, True),))
    trace = read_trace(written(kernel, program), kernel)
    assert trace.is_cut
    (warp,) = trace.sampled[0].warps
    (run,) = warp.runs
    assert run.end_us is None
    assert len(run.starts) == layout.RECORDS - 1
    assert len(run.spans) == layout.RECORDS - 2


@pytest.mark.parametrize(("count", "kept"), [(0, 0), (2, 0), (3, 1), (4, 2), (8, 5), (100, 95)])
def test_interior(count: int, kept: int) -> None:
    assert len(interior(list(range(count)))) == kept


def test_few_iterations_are_said_to_be_few() -> None:
    def program(_block: int, _warp: int) -> tuple[Stamps, int]:
        return run_of(0, 100, [500, 700]), 2_000

    kernel = StampedKernel("short", (64, 1, 1), 64, (StampedLoop(0, None, False, True),))
    (timed,) = loop_times(read_trace(written(kernel, program), kernel))
    assert timed.basis is Basis.FEW
    assert timed.steady_us == pytest.approx(us(600), rel=3e-2)


def test_a_coarse_clock_of_the_chip_spoils_no_length() -> None:
    starts = {block: 160_000 * (block // 66) + 1_000 * block for block in range(SPECIALISED.blocks)}
    words = written(
        SPECIALISED, specialised_program, cores=66, start_cycles=starts.__getitem__, timer_ns=1024
    )
    trace = read_trace(words, SPECIALISED)
    assert trace.timer_ns == 1024
    assert trace.clock_mhz == pytest.approx(CLOCK_MHZ, rel=0.02)
    for block in trace.blocks:
        assert block.us == pytest.approx(us(7_500 + TRIPS * ITERATION), rel=0.02)


def test_memory_that_nothing_has_written_to_is_no_trace() -> None:
    with pytest.raises(match="128 of 128 blocks wrote no times"):
        read_trace(np.zeros(layout.words(SPECIALISED), np.uint32), SPECIALISED)


def test_a_loop_whose_iterations_overlap_is_stamped_as_a_whole() -> None:
    """The word after its end is the number of its iterations, also where it looks like a stamp."""
    kernel = StampedKernel("gemv", (64, 1, 1), 64, (StampedLoop(0, None, False, False, True),))

    def program(_block: int, _warp: int) -> tuple[Stamps, int]:
        return [(begin_code(0), 100), (end_code(0), 100 + 8 * 1000)], 9_000

    words = written(kernel, program)
    for slot in range(len(layout.sampled(kernel)) * kernel.warps):
        words[layout.first_record(kernel) + slot * layout.RECORDS + 3] = 8 if slot else 0  # one had none
    for block in layout.sampled(kernel):
        for warp in range(kernel.warps):
            words[block * layout.row_words(kernel) + 4 + 4 * warp + 3] += 1
    trace = read_trace(words, kernel)
    (run,) = trace.sampled[1].warps[0].runs
    assert (run.count, len(run.spans)) == (8, 1)
    assert [run.count for run in trace.sampled[0].warps[0].runs] == [0]
    (timed,) = loop_times(trace)
    count = len(trace.sampled)
    assert (timed.iterations, timed.basis) == (8 * (count - 1) / count, Basis.MEAN)
    assert timed.steady_us == pytest.approx(us(1000), rel=1e-2)
