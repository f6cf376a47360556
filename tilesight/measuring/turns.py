"""Sampling: turns of one or several calls, until enough is known of them.

Turns that were disturbed are taken again, a bounded number of times: those with an outlier in them, and whole batches during
which the clock dropped (`conditions.py`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles

from ..protocol import Protocol
from .conditions import Conditions
from .intervals import half_width, median_interval
from .timing import Call, Timer

LEAST_TURNS = 3  # however slow they are
EARLY_TURNS = 6  # the fewest of which a median has an interval
EARLY_WARM_UP_MS = 2.0
# Slower than the rival by so much: sampling stops, even before the device is warm. With the fastest of each workload as the
# rival, 57 % of 6,498 kernels measured on an H200 stop at six samples and 27 % at twenty, none that was within a tenth.
SLOWER, MUCH_SLOWER = 1.1, 1.5
OUTLIER, OUTLIER_SPREADS = 0.1, 6  # above the median by this share of it, and by so many distances of its quartiles
OUTLIER_SHARE = 0.1  # of all turns: more of them are no outliers
BATCH_RETAKES = 3

Column = Sequence[float]


@dataclass(frozen=True, slots=True)
class Taken:
    """`samples_us` of each call, equally many; those at one place were taken in one turn."""

    samples_us: tuple[tuple[float, ...], ...]
    retaken: int = 0
    stopped_early: bool = False
    launches: tuple[int, ...] = ()  # that one sample covers, of each call


def collect(
    timer: Timer,
    calls: Sequence[Call],
    protocol: Protocol,
    conditions: Conditions | None = None,
    rival_us: float | None = None,
    enough: Callable[[Sequence[Column]], bool] | None = None,
) -> Taken:
    """Sample the calls in turns, after a warm-up, until the median of each is known as well as the protocol asks, and
    `enough` agrees. Of a call that is certainly slower than `rival_us` by a tenth no more is asked. Raises what the calls raise.
    """
    if not calls:
        return Taken(())
    try:
        return _Sampling(timer, calls, protocol, conditions or Conditions(), rival_us, enough or (lambda _: True)).run()
    finally:
        timer.release()


class _Sampling:
    def __init__(
        self,
        timer: Timer,
        calls: Sequence[Call],
        protocol: Protocol,
        conditions: Conditions,
        rival_us: float | None,
        enough: Callable[[Sequence[Column]], bool],
    ) -> None:
        self._timer, self._calls, self._protocol, self._conditions = timer, calls, protocol, conditions
        self._rival_us, self._enough = rival_us, enough
        self._rows: list[tuple[float, ...]] = []
        self._retaken, self._batches_dropped, self._outliers_left = 0, 0, protocol.retakes

    def run(self) -> Taken:
        timer, protocol = self._timer, self._protocol
        before = timer.retaken
        short_ms = min(EARLY_WARM_UP_MS, protocol.warmup_ms)
        call_ms = [self._warm_up(call, short_ms) for call in self._calls]
        stretches = [timer.stretch(call) for call in self._calls]
        stretches = [replace(s, busy_ms=s.launches * ms) for s, ms in zip(stretches, call_ms, strict=True)]
        turn_ms = sum(s.busy_ms for s in stretches) * (1 + protocol.rest)
        launches = tuple(s.launches for s in stretches)
        if self._rival_us is not None:
            early = timer.turns(stretches, EARLY_TURNS if turn_ms * EARLY_TURNS < protocol.max_ms else LEAST_TURNS)
            if min(map(min, early)) > MUCH_SLOWER * self._rival_us:
                return Taken(_columns(early), timer.retaken - before, True, launches)
        for stretch in stretches:
            self._warm_up(stretch.run, protocol.warmup_ms - short_ms)
        begin, budget_ms, stopped = time.perf_counter(), protocol.max_ms * len(stretches), False
        while not stopped:
            left_ms = budget_ms - (time.perf_counter() - begin) * 1e3
            affordable = max(LEAST_TURNS - len(self._rows), int(left_ms / turn_ms))
            count = min(self._wanted(), protocol.max_samples - len(self._rows), affordable)
            if count <= 0:
                break
            self._take(timer.turns(stretches, count, self._conditions.look))
            stopped = self._slower()
            if not stopped and len(self._rows) >= protocol.min_samples and self._known():
                break
        return Taken(_columns(self._rows), self._retaken + timer.retaken - before, stopped, launches)

    def _warm_up(self, call: Call, duration_ms: float) -> float:
        begin = time.perf_counter()
        call_ms = self._timer.warm_up(call, duration_ms)
        self._timer.rest((time.perf_counter() - begin) * 1e3)
        return call_ms

    def _wanted(self) -> int:
        least = self._protocol.min_samples
        return least - len(self._rows) if len(self._rows) < least else least

    def _take(self, rows: list[tuple[float, ...]]) -> None:
        if self._conditions.disturbed() and self._batches_dropped < BATCH_RETAKES:
            self._batches_dropped += 1
            self._retaken += len(rows)
            return
        self._rows += rows
        wild = _wild(self._rows)
        if len(wild) > min(self._outliers_left, OUTLIER_SHARE * len(self._rows)):
            return  # so many are the kernel's own
        for row in wild:
            self._rows.remove(row)
        self._outliers_left -= len(wild)
        self._retaken += len(wild)

    def _slower(self) -> bool:
        if self._rival_us is None or len(self._rows) < EARLY_TURNS:
            return False
        return all(median_interval(column)[0] > SLOWER * self._rival_us for column in _columns(self._rows))

    def _known(self) -> bool:
        columns = _columns(self._rows)
        return all(half_width(column) <= self._protocol.precision for column in columns) and self._enough(columns)


def _columns(rows: Sequence[tuple[float, ...]]) -> tuple[tuple[float, ...], ...]:
    return tuple(zip(*rows, strict=True))


def _wild(rows: Sequence[tuple[float, ...]]) -> list[tuple[float, ...]]:
    """Turns in which a call took far longer than it usually does."""
    if len(rows) < EARLY_TURNS:
        return []
    limits = []
    for column in _columns(rows):
        low, _, high = quantiles(column, n=4)
        middle = median(column)
        limits.append(middle + max(OUTLIER * middle, OUTLIER_SPREADS * (high - low)))
    return [row for row in rows if any(time_us > limit for time_us, limit in zip(row, limits, strict=True))]
