"""Timers: take samples of calls on one device, in turns.

On a GPU a sample is the time between two events. Eager launches are timed one by one, each after the
last-level cache was overwritten; that keeps the device busy while the host runs ahead, which hides the host's
overhead. For launches in a graph another replay keeps the device busy, and leaves the cache warm. On a
processor a sample is wall time.

A GPU that is kept busy with matrix products lowers its clock after some 30 ms, when its power limit acts, by
up to 12 % within a tenth of a second. Samples before and after that step cannot be compared. A timer
therefore either rests often enough that the limit never acts, or keeps the device busy until the limit has
acted.
"""

from __future__ import annotations

import math
import resource
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

Call = Callable[[], object]
MAX_DISTURBED_SHARE = 0.02  # of a sample on a processor; a more disturbed sample is retaken
MAX_LAUNCHES = 256  # in one graph


@dataclass(frozen=True, slots=True)
class Stretch:
    """The work of one sample: `run` makes `launches` launches of a call, in roughly `busy_ms`."""

    run: Call
    launches: int = 1
    busy_ms: float = 0.0


class Timer(ABC):
    """Takes samples on one device."""

    retaken = 0  # samples that the timer itself has retaken
    disturbed = 0  # samples that it returned although they were disturbed
    broken = False  # the process cannot measure any more

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has finished all work. Raises errors of that work."""

    @abstractmethod
    def stretch(self, call: Call) -> Stretch:
        """Prepare a call for sampling; it must have succeeded before. Raises errors of the call."""

    @abstractmethod
    def turns(
        self, stretches: Sequence[Stretch], count: int, meanwhile: Call | None = None
    ) -> list[tuple[float, ...]]:
        """Take `count` turns of one sample of each stretch, in microseconds per launch.

        Each turn begins with the next stretch. `meanwhile` is called once; on a GPU, while it is busy with
        the last turns.
        """

    def release(self) -> None:
        """Free the resources of all stretches; these cannot be run any more."""

    def rest(self, busy_ms: float) -> None:
        """Let the device idle after `busy_ms` of work, if the protocol asks for it."""

    def warm_up(self, call: Call, duration_ms: float) -> float:
        """Call for `duration_ms`, at least twice. Returns the rough time of one call in ms."""
        begin, done = time.perf_counter(), 0
        while done < 2 or (time.perf_counter() - begin) * 1e3 < duration_ms:
            call()
            self.synchronize()
            done += 1
        return (time.perf_counter() - begin) * 1e3 / done


class GpuTimer(Timer):
    """Single launches through torch, on the current CUDA or HIP device and stream."""

    def __init__(self, flush_bytes: int, burst_ms: float = 0.0, rest: float = 0.0) -> None:
        """Make a timer.

        Args:
            flush_bytes: Written before each sample, at least twice the size of the last-level cache; 0: the
                cache stays warm.
            burst_ms: Work after which the device rests.
            rest: Duration of a rest, relative to the work before it; 0: the device never rests.
        """
        import torch

        self._torch: Any = torch
        self._burst_ms, self._rest, self._busy_ms = burst_ms, rest, 0.0
        self._flushed = torch.empty(flush_bytes, dtype=torch.int8, device="cuda") if flush_bytes else None

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def stretch(self, call: Call) -> Stretch:
        return Stretch(call)

    def turns(
        self, stretches: Sequence[Stretch], count: int, meanwhile: Call | None = None
    ) -> list[tuple[float, ...]]:
        pairs = [[(self._event(), self._event()) for _ in stretches] for _ in range(count)]
        behind = True  # the host is not ahead of the device, as after every wait for it
        for turn, row in enumerate(pairs):
            for index in turn_order(len(stretches), turn):
                stretch, (begin, end) = stretches[index], row[index]
                if self._rest and self._busy_ms >= self._burst_ms:
                    self.synchronize()
                    self.rest(self._busy_ms)
                    behind = True
                if behind or (self._flushed is None and len(stretches) > 1):
                    self._flush()
                    stretch.run()  # lets the host run ahead, and fills a cache that stays warm
                    self._busy_ms += stretch.busy_ms
                self._flush()
                begin.record()
                stretch.run()
                end.record()
                self._busy_ms += stretch.busy_ms
                behind = False
        if meanwhile is not None:
            meanwhile()
        self.synchronize()
        return [
            tuple(
                begin.elapsed_time(end) * 1e3 / s.launches
                for (begin, end), s in zip(row, stretches, strict=True)
            )
            for row in pairs
        ]

    def rest(self, busy_ms: float) -> None:
        if self._rest:
            time.sleep(self._rest * busy_ms / 1e3)
            self._busy_ms = 0.0

    def _flush(self) -> None:
        if self._flushed is not None:
            self._flushed.zero_()

    def _event(self) -> Any:
        return self._torch.cuda.Event(enable_timing=True)


class GraphTimer(GpuTimer):
    """Launches in CUDA graphs, enough of them in one graph to take `stretch_us`.

    The timer makes a new stream the current one, since the default stream cannot be captured. Calls must be
    bound to the current stream after the timer was made.
    """

    def __init__(self, stretch_us: float) -> None:
        super().__init__(0)
        self._stretch_us = stretch_us
        self._graphs: list[Any] = []
        self._torch.cuda.set_stream(self._torch.cuda.Stream())

    def stretch(self, call: Call) -> Stretch:
        launches = max(1, min(MAX_LAUNCHES, math.ceil(self._stretch_us / self._rough_us(call))))
        graph = self._torch.cuda.CUDAGraph()
        self.synchronize()
        graph.capture_begin(capture_error_mode="thread_local")
        try:
            for _ in range(launches):
                call()
        except BaseException:
            self.broken = True  # torch's allocator may still be in the state of the capture
            with suppress(RuntimeError):
                graph.capture_end()
            raise
        try:
            graph.capture_end()
            self._graphs.append(graph)
            graph.replay()
            self.synchronize()
        except RuntimeError:
            self.broken = True
            raise
        return Stretch(graph.replay, launches)

    def release(self) -> None:
        for graph in self._graphs:
            with suppress(RuntimeError):  # the device is unusable
                graph.reset()
        self._graphs.clear()

    def _rough_us(self, call: Call) -> float:
        begin, end = self._event(), self._event()
        begin.record()
        for _ in range(5):
            call()
        end.record()
        self.synchronize()
        return max(0.1, float(begin.elapsed_time(end)) * 1e3 / 5)


class CpuTimer(Timer):
    """Wall time in this thread.

    A sample during which the system gave the core to another process is retaken, up to `retakes` times; then
    the least disturbed one counts.
    """

    def __init__(self, stretch_us: float, retakes: int) -> None:
        self._stretch_us, self._retakes = stretch_us, retakes

    def synchronize(self) -> None:
        pass

    def stretch(self, call: Call) -> Stretch:
        return Stretch(call, max(1, math.ceil(self._stretch_us / max(self._once(call, 1)[0], 0.01))))

    def turns(
        self, stretches: Sequence[Stretch], count: int, meanwhile: Call | None = None
    ) -> list[tuple[float, ...]]:
        rows = []
        for turn in range(count):
            row = [0.0] * len(stretches)
            for index in turn_order(len(stretches), turn):
                row[index] = self._sample(stretches[index].run, stretches[index].launches)
            rows.append(tuple(row))
        if meanwhile is not None:
            meanwhile()
        return rows

    def _sample(self, call: Call, repeats: int) -> float:
        taken = []
        for retake in range(1 + self._retakes):
            self.retaken += retake > 0
            time_us, disturbed = self._once(call, repeats)
            if disturbed <= MAX_DISTURBED_SHARE:
                return time_us
            taken.append((disturbed, time_us))
        self.disturbed += 1
        return min(taken)[1]

    @staticmethod
    def _once(call: Call, repeats: int) -> tuple[float, float]:
        """(time of one call in us, share of it during which another process had the core)."""
        switches, on_core, begin = _forced_switches(), time.thread_time_ns(), time.perf_counter_ns()
        for _ in range(repeats):
            call()
        wall, on_core = time.perf_counter_ns() - begin, time.thread_time_ns() - on_core
        # a thread that waits for other threads is off its core too, but by a voluntary switch
        disturbed = 1 - on_core / wall if _forced_switches() > switches else 0.0
        return wall / 1e3 / repeats, disturbed


def _forced_switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def turn_order(count: int, turn: int) -> list[int]:
    """The order of calls in a turn: each turn begins with the next one."""
    return [(turn + i) % count for i in range(count)]
