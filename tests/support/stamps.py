"""The memory of a stamped kernel, written as its blocks would write it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import numpy as np

from tilesight.tracing import layout
from tilesight.tracing.decode import read_trace
from tilesight.tracing.layout import begin_code, end_code
from tilesight.tracing.values import KernelTrace, StampedKernel, StampedLoop

if TYPE_CHECKING:
    from tilesight.tracing.decode import Words

CLOCK_MHZ = 1500
BEGAN_NS = 1_700_000_000_123_456_000  # of the first block; the high word counts
FIRST_CYCLES = (1 << 32) - 5_000  # the counter of a core wraps while its first block runs

Stamps = list[tuple[int, int]]  # codes, with cycles since the block began
PRODUCER = StampedLoop(0, None, loads=True, computes=False)
CONSUMER = StampedLoop(1, None, loads=False, computes=True)
SPECIALISED = StampedKernel("matmul_kernel", (4, 32, 1), 384, (PRODUCER, CONSUMER))


def run_of(loop: int, start: int, lengths: Sequence[int]) -> Stamps:
    """The stamps of one run of a loop, from the lengths of its iterations in cycles."""
    found, at = [], start
    for cycles in lengths:
        found.append((begin_code(loop), at))
        at += cycles
    return [*found, (end_code(loop), at)]


def written(
    kernel: StampedKernel,
    program: Callable[[int, int], tuple[Stamps, int]],
    *,
    cores: int = 132,
    start_cycles: Callable[[int], int] = lambda _: 0,
    timer_ns: int = 32,
) -> Words:
    """What the blocks of a kernel write.

    Args:
        kernel: The kernel.
        program: Stamps of a warp of a block, and when it ends, in cycles since the block began.
        cores: Blocks are dealt to these in turn.
        start_cycles: When a block begins.
        timer_ns: Resolution of the clock of the chip.
    """
    words = np.zeros(layout.words(kernel), np.uint32)
    sampled = list(layout.sampled(kernel))
    table = words[: layout.rows(kernel) * layout.row_words(kernel)].reshape(layout.rows(kernel), -1, 4)
    first = layout.first_record(kernel)
    for block in range(layout.rows(kernel)):
        begin = start_cycles(block)
        table[block, 0] = (*_time(begin, timer_ns), _counted(begin), block % cores)
        for warp in range(kernel.warps):
            stamps, end = program(block, warp)
            place = layout.RECORDS
            if block in sampled:
                place = first + (sampled.index(block) * kernel.warps + warp) * layout.RECORDS + 1
                for code, cycles in stamps:
                    if place % layout.RECORDS:
                        words[place] = (_counted(begin + cycles) * layout.CODES + code) % (1 << 32)
                        place += 1
            table[block, 1 + warp] = (*_time(begin + end, timer_ns), _counted(begin + end), place)
    return words


def _counted(cycles: int) -> int:
    return (FIRST_CYCLES + cycles) % (1 << 32)


def _time(cycles: int, timer_ns: int) -> tuple[int, int]:
    ns = BEGAN_NS + cycles * 1000 // CLOCK_MHZ
    ns -= ns % timer_ns
    return ns % (1 << 32), ns >> 32


ITERATION, TRIPS = 1200, 128  # cycles of a consumer


def specialised_program(_: int, warp: int) -> tuple[Stamps, int]:
    """A producer, whose first warp loads, and two groups of consumers, all of one loop.

    The first iteration of a consumer waits for its data, and every second one is longer than the other.
    """
    end = 2_000 + 2_500 + TRIPS * ITERATION
    if warp >= 4:
        lengths = [2_500 + ITERATION, *(ITERATION - 100, ITERATION + 100) * (TRIPS // 2 - 1), ITERATION]
        return run_of(1, 1_000 + 10 * (warp // 4), lengths), end + 3_000
    return (run_of(0, 900, [ITERATION] * TRIPS) if warp == 0 else []), end


def specialised_trace(kernel: StampedKernel = SPECIALISED) -> KernelTrace:
    return read_trace(written(kernel, specialised_program), kernel)


def us(cycles: float) -> float:
    return cycles / CLOCK_MHZ
