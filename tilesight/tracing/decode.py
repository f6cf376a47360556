"""Reads the memory that a stamped kernel has written: words become times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Any

from ..errors import LaunchError
from . import layout
from .values import BlockTime, BlockTrace, KernelTrace, LoopRun, StampedKernel, WarpTrace

if TYPE_CHECKING:
    import numpy as np

    Words = np.ndarray[Any, np.dtype[np.uint32]]
    Times = np.ndarray[Any, np.dtype[np.int64]]

_WRAP = 1 << 32  # cycles are counted in 32 bits
_STAMP_WRAP = _WRAP // layout.CODES  # and in fewer in a stamp: two in a row lie less than 30 ms apart
_LONGEST_NS = 1_000_000_000  # of a span of which cycles tell the length: a counter wraps after two seconds


def read_trace(words: Words, kernel: StampedKernel) -> KernelTrace:
    """The times of one launch.

    A block's place in time is that of the chip's clock. Lengths are cycles of its core, which are finer, at
    the clock of all cores on average.

    Args:
        words: What the launch has written, `layout.words(kernel)` words.
        kernel: The kernel.

    Raises:
        LaunchError: A block has written nothing.
    """
    import numpy as np

    warps, count = kernel.warps, layout.rows(kernel)
    table = words[: count * layout.row_words(kernel)].reshape(count, 1 + warps, 4).astype(np.int64)
    begin_ns, end_ns = _ns(table[:, 0]), _ns(table[:, 1:])
    ended = table[:, 1:, 3] > 0
    silent = np.flatnonzero((begin_ns == 0) | ~ended.any(axis=1))
    if len(silent):
        raise LaunchError(
            f"{kernel.function}: {len(silent)} of {count} blocks wrote no times, block {silent[0]} first"
        )
    cycles = np.where(ended, (table[:, 1:, 2] - table[:, :1, 2]) % _WRAP, 0)
    last_ns = np.where(ended, end_ns, 0).max(axis=1)
    cores = table[:, 0, 3]
    clock_mhz = _clock_mhz(begin_ns, last_ns, table[:, 0, 2], cycles.max(axis=1), cores)
    starts_us = (begin_ns - begin_ns.min()) / 1e3
    lengths_us = np.where(
        last_ns - begin_ns < _LONGEST_NS, cycles.max(axis=1) / clock_mhz, (last_ns - begin_ns) / 1e3
    )
    blocks = tuple(
        BlockTime(block, int(core), float(start), float(start + length))
        for block, (core, start, length) in enumerate(zip(cores, starts_us, lengths_us, strict=True))
    )
    stamps = words[layout.first_record(kernel) :].reshape(-1, warps, layout.RECORDS)
    traced, is_cut = [], False
    for slot, block in enumerate(layout.sampled(kernel)):
        found = []
        for warp in np.flatnonzero(ended[block]):
            used = int(table[block, 1 + warp, 3]) % layout.RECORDS
            is_cut |= used == 0
            written = stamps[slot, warp, 1 : used or layout.RECORDS].astype(np.int64)
            end_us = float(cycles[block, warp] / clock_mhz + blocks[block].start_us)
            stamped = stamps_of(written.tolist(), kernel, int(table[block, 0, 2]))
            runs = loop_runs(
                (code, cycles / clock_mhz + blocks[block].start_us, count) for code, cycles, count in stamped
            )
            found.append(WarpTrace(int(warp), end_us, tuple(runs)))
        traced.append(BlockTrace(blocks[block], tuple(found)))
    return KernelTrace(kernel, blocks, tuple(traced), clock_mhz, _resolution(begin_ns, end_ns[ended]), is_cut)


def stamps_of(
    words: Iterable[int], kernel: StampedKernel, begin: int
) -> Iterator[tuple[int, int, int | None]]:
    """The stamps of one warp: code, cycles since the block began, and after a loop whose iterations overlap
    their number, else None.

    Args:
        words: What the warp has written.
        kernel: The kernel.
        begin: The cycles of the core when the block began.
    """
    counted = {layout.end_code(loop.number) for loop in kernel.loops if loop.overlaps}
    written, last, since = iter(words), begin, 0
    for word in written:
        code, cycles = word % layout.CODES, word // layout.CODES
        since += (cycles - last) % _STAMP_WRAP
        last = cycles
        yield code, since, next(written, 0) if code in counted else None


def loop_runs(stamps: Iterable[tuple[int, float, int | None]]) -> list[LoopRun]:
    """The executions of loops from the stamps of one warp, in the order in which they begin.

    A stamp is a code, a time, and the number of iterations if they have no stamps of their own.
    """
    runs: list[LoopRun] = []
    starts: dict[int, list[float]] = {}  # of the iterations of loops that are running
    places: dict[int, int] = {}
    for code, time_us, count in stamps:
        loop = code // 2
        if code == layout.begin_code(loop):
            if loop not in starts:
                starts[loop], places[loop] = [], len(runs)
                runs.append(LoopRun(loop, (), None, 0))
            starts[loop].append(time_us)
        elif loop in starts:
            begun = tuple(starts.pop(loop))
            runs[places.pop(loop)] = LoopRun(loop, begun, time_us, len(begun) if count is None else count)
    for loop, place in places.items():
        runs[place] = LoopRun(loop, tuple(starts[loop]), None, len(starts[loop]))
    return runs


def _ns(rows: Times) -> Times:
    """The chip's time, from its low and its high word."""
    found: Times = rows[..., 0] + rows[..., 1] * _WRAP
    return found


def _clock_mhz(begin_ns: Times, end_ns: Times, begin_cycles: Times, cycles: Times, cores: Times) -> float:
    """Cycles over time of each core, from the start of its first block to the end of its last one."""
    import numpy as np

    counted = passed = 0
    for core in np.unique(cores):
        own = np.flatnonzero(cores == core)
        first, last = own[begin_ns[own].argmin()], own[end_ns[own].argmax()]
        span = int(end_ns[last] - begin_ns[first])
        if 0 < span < _LONGEST_NS:
            passed += span
            counted += int((begin_cycles[last] + cycles[last] - begin_cycles[first]) % _WRAP)
    if not counted or not passed:
        raise LaunchError(
            "the clock of the chip did not advance while the kernel ran: it is too short to be traced"
        )
    return counted / passed * 1e3


def _resolution(begin_ns: Times, end_ns: Times) -> float:
    """The step of the chip's clock: the greatest one of which all differences are multiples."""
    import numpy as np

    return float(np.gcd.reduce(np.concatenate([begin_ns, end_ns]) - begin_ns.min()))
