"""Timing: samples of one or several calls, taken in turns, until their medians are known well enough.

On a GPU a sample is the time between two events around one launch, after L2 was flushed: the host runs ahead while the
flush keeps the device busy, so that its own overhead does not show. On a processor it is wall time of as many calls as
make a measurable stretch.
"""

from __future__ import annotations

import math
import resource
import statistics
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from .target import Target

Call = Callable[[], object]
LEAST_SAMPLES = 3  # of a call however slow it is
DISTURBED = 0.02  # share of a sample above which it is taken again


@dataclass(frozen=True, slots=True)
class Protocol:
    """How samples are taken; stored with every measurement."""

    warmup_ms: float = 20.0
    min_samples: int = 20
    max_samples: int = 100
    max_ms: float = 300.0  # spent on the samples of one call
    precision: float = 0.003  # relative standard error of the median at which sampling stops
    flush_l2: bool = True  # GPU: before each sample
    min_sample_us: float = 0.0  # processor: calls are repeated within a sample until it is that long
    retakes: int = 0  # processor: of a sample during which the system gave the core to another process
    seed: int = 0  # of the inputs, which are random

    @staticmethod
    def of(target: Target) -> Protocol:
        """The usual protocol for a kind of target: enough to rank candidates."""
        if target.is_gpu:
            return Protocol()
        return Protocol(warmup_ms=10.0, min_samples=5, max_samples=50, precision=0.005, flush_l2=False, min_sample_us=1000.0, retakes=8)

    @staticmethod
    def careful(target: Target) -> Protocol:
        """More and longer, for the figures that are reported."""
        usual = Protocol.of(target)
        return replace(usual, min_samples=2 * usual.min_samples, max_samples=2 * usual.max_samples, max_ms=1000.0, precision=0.001)

    def record(self) -> dict[str, str | int | float | bool]:
        return asdict(self)


class Timer(ABC):
    """Takes samples on one device."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until the device has done all that it was given. Raises what went wrong on it."""

    @abstractmethod
    def rounds(self, calls: Sequence[Call], count: int) -> list[list[float]]:
        """`count` samples in microseconds of each call, one of each in turn, beginning with another one each time."""

    def warm_up(self, call: Call, duration_ms: float) -> float:
        """Call for so long, at least twice; the time of one call in ms, roughly."""
        begin, done = time.perf_counter(), 0
        while done < 2 or (time.perf_counter() - begin) * 1e3 < duration_ms:
            call()
            self.synchronize()
            done += 1
        return (time.perf_counter() - begin) * 1e3 / done


class GpuTimer(Timer):
    """Through torch, on the current CUDA or HIP device and stream."""

    def __init__(self, flush_bytes: int) -> None:
        """`flush_bytes` are written before each sample; at least twice the size of L2."""
        import torch

        self._torch: Any = torch
        self._flushed = torch.empty(flush_bytes, dtype=torch.int8, device="cuda") if flush_bytes else None

    def synchronize(self) -> None:
        self._torch.cuda.synchronize()

    def rounds(self, calls: Sequence[Call], count: int) -> list[list[float]]:
        def event() -> Any:
            return self._torch.cuda.Event(enable_timing=True)

        pairs = [[(event(), event()) for _ in range(count)] for _ in calls]
        for turn in range(count):
            for index in _order(len(calls), turn):
                if self._flushed is not None:
                    self._flushed.zero_()
                begin, end = pairs[index][turn]
                begin.record()
                calls[index]()
                end.record()
        self.synchronize()
        return [[begin.elapsed_time(end) * 1e3 for begin, end in row] for row in pairs]


class CpuTimer(Timer):
    """Wall time in this thread. On a machine that does other work too, a sample from which the system took the core away
    says nothing of the kernel: it is taken again, up to `retakes` times, and then the least disturbed one counts."""

    def __init__(self, min_sample_us: float, retakes: int) -> None:
        self._min_sample_us, self._retakes = min_sample_us, retakes

    def synchronize(self) -> None:
        pass

    def rounds(self, calls: Sequence[Call], count: int) -> list[list[float]]:
        repeats = [max(1, math.ceil(self._min_sample_us / max(self._once(call, 1)[0], 0.01))) for call in calls]
        samples: list[list[float]] = [[] for _ in calls]
        for turn in range(count):
            for index in _order(len(calls), turn):
                samples[index].append(self._sample(calls[index], repeats[index]))
        return samples

    def _sample(self, call: Call, repeats: int) -> float:
        taken = []
        for _ in range(1 + self._retakes):
            time_us, disturbed = self._once(call, repeats)
            if disturbed <= DISTURBED:
                return time_us
            taken.append((disturbed, time_us))
        return min(taken)[1]

    @staticmethod
    def _once(call: Call, repeats: int) -> tuple[float, float]:
        """(time of one call in us, share of it during which the system had given the core to others)."""
        switches, on_core, begin = _forced_switches(), time.thread_time_ns(), time.perf_counter_ns()
        for _ in range(repeats):
            call()
        wall, on_core = time.perf_counter_ns() - begin, time.thread_time_ns() - on_core
        # a thread that waits for its helpers is off its core too, but by its own will
        disturbed = 1 - on_core / wall if _forced_switches() > switches else 0.0
        return wall / 1e3 / repeats, disturbed


def _forced_switches() -> int:
    return resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw


def collect(timer: Timer, calls: Sequence[Call], protocol: Protocol) -> list[list[float]]:
    """Samples of each call in microseconds, equally many, taken in turns after a warm-up. Raises what the calls raise."""
    if not calls:
        return []
    round_ms = sum(timer.warm_up(call, protocol.warmup_ms) for call in calls)
    budget_ms = protocol.max_ms * len(calls)
    samples: list[list[float]] = [[] for _ in calls]
    begin = time.perf_counter()
    while True:
        left_ms = budget_ms - (time.perf_counter() - begin) * 1e3
        affordable = max(LEAST_SAMPLES - len(samples[0]), int(left_ms / round_ms))
        count = min(protocol.min_samples, protocol.max_samples - len(samples[0]), affordable)
        if count <= 0:
            return samples
        for kept, new in zip(samples, timer.rounds(calls, count), strict=True):
            kept.extend(new)
        if len(samples[0]) >= protocol.min_samples and all(median_error(s) <= protocol.precision for s in samples):
            return samples


def median_error(samples: Sequence[float]) -> float:
    """Relative standard error of the median, from the quartiles (outliers do not count); infinite below three samples."""
    if len(samples) < LEAST_SAMPLES:
        return math.inf
    low, middle, high = statistics.quantiles(samples, n=4)
    # of a normal distribution: sigma is the quartiles' distance / 1.349, the median's error 1.2533 sigma / sqrt(n)
    return 1.2533 / 1.349 * (high - low) / math.sqrt(len(samples)) / middle if middle else math.inf


def _order(count: int, turn: int) -> list[int]:
    return [(turn + i) % count for i in range(count)]
