"""Sampling: takes turns of one or several calls until their medians are precise enough.

Disturbed turns are retaken, a bounded number of times: turns with an outlier, and whole batches during which
the clock dropped (`conditions.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

from ..records.intervals import half_width, median_interval
from ..records.protocol import MeasurementProtocol
from .conditions import Conditions
from .timers import Call, Timer

MIN_TURNS = 3  # even of slow calls
EARLY_TURNS = 6  # the fewest that give a median an interval
EARLY_WARM_UP_MS = 2.0
# Sampling stops for a call slower than the rival by this factor: before the warm-up (the larger one) or after
# it. With the fastest kernel of each workload as the rival, 57 % of 6,528 kernels measured on an H200 stop at
# six samples and 27 % at twenty; none of them was within a tenth of the rival.
SLOWER, MUCH_SLOWER = 1.1, 1.5
OUTLIER, OUTLIER_SPREADS = (
    0.1,
    6,
)  # above the median by this share of it, and by this many interquartile ranges
OUTLIER_SHARE = 0.1  # of all turns; if more are slow, they are not outliers
BATCH_RETAKES = 3

Column = Sequence[float]


@dataclass(frozen=True, slots=True)
class TurnSamples:
    """Samples of each call, equally many; those with the same index are from the same turn.

    `launches` counts the launches that one sample covers, for each call. `disturbed` is the share of the
    samples that were kept although another process had the core, or although the clock had dropped.
    """

    samples_us: tuple[tuple[float, ...], ...]
    retaken: int = 0
    disturbed: float = 0.0
    stopped_early: bool = False
    launches: tuple[int, ...] = ()


def collect_samples(
    timer: Timer,
    calls: Sequence[Call],
    protocol: MeasurementProtocol,
    conditions: Conditions | None = None,
    rival_us: float | None = None,
    enough: Callable[[Sequence[Column]], bool] | None = None,
) -> TurnSamples:
    """Sample calls in turns, after a warm-up, until each median is as precise as the protocol requires.

    Args:
        timer: Takes the samples.
        calls: What to time.
        protocol: Precision and limits.
        conditions: The state of the device; batches taken in a disturbed state are retaken.
        rival_us: Sampling stops once all calls are slower than this by a tenth with confidence.
        enough: A further condition for the end, given the samples of each call.

    Raises:
        Exception: Any error of the calls.
    """
    if not calls:
        return TurnSamples(())
    try:
        return _Sampling(
            timer, calls, protocol, conditions or Conditions(), rival_us, enough or (lambda _: True)
        ).run()
    finally:
        timer.release()


class _Sampling:
    def __init__(
        self,
        timer: Timer,
        calls: Sequence[Call],
        protocol: MeasurementProtocol,
        conditions: Conditions,
        rival_us: float | None,
        enough: Callable[[Sequence[Column]], bool],
    ) -> None:
        self._timer, self._calls, self._protocol, self._conditions = timer, calls, protocol, conditions
        self._rival_us, self._enough = rival_us, enough
        self._rows: list[tuple[float, ...]] = []
        self._retaken, self._batches_dropped, self._outliers_left = 0, 0, protocol.retakes
        self._disturbed = 0  # samples in batches that were kept although the clock had dropped

    def run(self) -> TurnSamples:
        timer, protocol = self._timer, self._protocol
        before, disturbed_before = timer.retaken, timer.disturbed
        short_ms = min(EARLY_WARM_UP_MS, protocol.warmup_ms)
        call_ms = [self._warm_up(call, short_ms) for call in self._calls]
        stretches = [timer.stretch(call) for call in self._calls]
        stretches = [replace(s, busy_ms=s.launches * ms) for s, ms in zip(stretches, call_ms, strict=True)]
        turn_ms = sum(s.busy_ms for s in stretches) * (1 + protocol.rest)
        launches = tuple(s.launches for s in stretches)
        if self._rival_us is not None:
            early = timer.turns(
                stretches, EARLY_TURNS if turn_ms * EARLY_TURNS < protocol.max_ms else MIN_TURNS
            )
            if min(map(min, early)) > MUCH_SLOWER * self._rival_us:
                share = (timer.disturbed - disturbed_before) / (len(early) * len(self._calls))
                return TurnSamples(_columns(early), timer.retaken - before, share, True, launches)
        for stretch in stretches:
            self._warm_up(stretch.run, protocol.warmup_ms - short_ms)
        begin, budget_ms, stopped = time.perf_counter(), protocol.max_ms * len(stretches), False
        while not stopped:
            left_ms = budget_ms - (time.perf_counter() - begin) * 1e3
            affordable = max(MIN_TURNS - len(self._rows), int(left_ms / turn_ms))
            count = min(self._batch_size(), protocol.max_samples - len(self._rows), affordable)
            if count <= 0:
                break
            self._add_batch(timer.turns(stretches, count, self._conditions.sample))
            stopped = self._is_slower()
            if not stopped and len(self._rows) >= protocol.min_samples and self._is_precise():
                break
        disturbed = self._disturbed + timer.disturbed - disturbed_before
        share = min(1.0, disturbed / (len(self._rows) * len(self._calls)))
        retaken = self._retaken + timer.retaken - before
        return TurnSamples(_columns(self._rows), retaken, share, stopped, launches)

    def _warm_up(self, call: Call, duration_ms: float) -> float:
        begin = time.perf_counter()
        call_ms = self._timer.warm_up(call, duration_ms)
        self._timer.rest((time.perf_counter() - begin) * 1e3)
        return call_ms

    def _batch_size(self) -> int:
        minimum = self._protocol.min_samples
        return minimum - len(self._rows) if len(self._rows) < minimum else minimum

    def _add_batch(self, rows: list[tuple[float, ...]]) -> None:
        if self._conditions.disturbed():
            if self._batches_dropped < BATCH_RETAKES:
                self._batches_dropped += 1
                self._retaken += len(rows)
                return
            self._disturbed += len(rows) * len(self._calls)
        self._rows += rows
        slow = _outlier_turns(self._rows)
        if len(slow) > min(self._outliers_left, OUTLIER_SHARE * len(self._rows)):
            return  # this many slow turns are the kernel's own
        for row in slow:
            self._rows.remove(row)
        self._outliers_left -= len(slow)
        self._retaken += len(slow)

    def _is_slower(self) -> bool:
        if self._rival_us is None or len(self._rows) < EARLY_TURNS:
            return False
        return all(median_interval(column)[0] > SLOWER * self._rival_us for column in _columns(self._rows))

    def _is_precise(self) -> bool:
        columns = _columns(self._rows)
        return all(half_width(column) <= self._protocol.precision for column in columns) and self._enough(
            columns
        )


def _columns(rows: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
    return tuple(zip(*rows, strict=True))


def _outlier_turns(rows: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Turns in which a call took far longer than usual."""
    if len(rows) < EARLY_TURNS:
        return []
    limits = []
    for column in _columns(rows):
        low, _, high = quantiles(column, n=4)
        middle = median(column)
        limits.append(middle + max(OUTLIER * middle, OUTLIER_SPREADS * (high - low)))
    return [row for row in rows if any(time_us > limit for time_us, limit in zip(row, limits, strict=True))]
