"""Contenders: which predicted candidates are built next, and which built ones are measured next, best first.

Building runs a little ahead of measuring, so that a device waits for nothing that could be ready, and not further, since
each measurement may change what is worth building.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from .compiled import SPARE, SecondLook, clearly_worse
from .selection import choose
from .space import Config
from .trial import BuildResult, Prediction, Status, TrialRecord
from .trials import Trials

GAIN = 0.995  # a time is an improvement where it is below this share of the best before it
MOST_BUILDS = 4  # for each measurement wanted: where that many come to nothing, there is no end to expect
AHEAD = 2  # built candidates that wait for each device


class Contenders:
    """`limit`: measurements wanted in all, None for every candidate. `patience`: candidates that may come to nothing after
    the last improvement, None for any number. `width`: jobs that are built at once, `devices`: measured at once."""

    def __init__(
        self, trials: Trials, second_look: SecondLook, limit: int | None, patience: int | None, width: int, devices: int, spare: bool
    ) -> None:
        self._trials, self._second_look = trials, second_look
        self._limit, self._patience = limit, patience
        self._window = width + AHEAD * devices
        # compilers for GPUs say what they spilled: some of what is built will not be worth its measurement
        self._wanted = math.inf if limit is None else math.ceil((SPARE if spare else 1.0) * limit)
        self._builds_left = math.inf if limit is None else MOST_BUILDS * limit
        self._picks: deque[Config] = deque()
        self._picked_at = (-1, -1)  # measurements and candidates known when the picks were made
        self._building: set[Config] = set()
        self._measuring: set[Config] = set()
        self._tried: set[Config] = set()  # handed out for building
        self._before: dict[Config, Prediction] = {}  # predictions without the compiler's figures
        self._fruitless = 0  # since the last improvement, once all is explored
        self._is_explored = False
        self._best_us = trials.fastest_us
        self._waiting: dict[Config, None] = {}  # built, and neither measured nor being measured
        self.builds: dict[Config, BuildResult] = {}

    @property
    def wanted(self) -> int:
        """Measurements still to come, at most."""
        possible = sum(t.status in (Status.PREDICTED, Status.BUILT) for t in self._trials.records.values())
        return possible if self._limit is None else min(possible, max(0, self._limit - self._trials.measured_count))

    @property
    def is_over(self) -> bool:
        under_way = self._trials.measured_count + len(self._measuring)
        patient = not self._is_explored and self._best_us is not None  # more promising ones may come yet
        stale = not patient and self._patience is not None and self._fruitless >= self._patience
        return stale or (self._limit is not None and under_way >= self._limit)

    def explored(self) -> None:
        """No candidate is to be expected but near those that turned out fast: from here on patience counts."""
        self._is_explored, self._fruitless = True, 0

    def next_build(self, *, at_most: int | None = None) -> Config | None:
        """The most promising candidate that is not built; none while enough are on their way. `at_most`: handed out in all."""
        if self.is_over or self._builds_left <= 0:
            return None
        if at_most is not None and len(self._tried) >= at_most:
            return None
        waiting = len(self._building) + len(self._worth_measuring())
        if waiting >= self._window or waiting + len(self._measuring) + self._trials.measured_count >= self._wanted:
            return None
        if not self._picks or self._picked_at != self._known():
            self._pick()
        if not self._picks:
            return None
        config = self._picks.popleft()
        self._building.add(config)
        self._tried.add(config)
        self._builds_left -= 1
        return config

    def built(self, config: Config, build: BuildResult) -> TrialRecord:
        """Its new record: predicted again with the compiler's figures."""
        self._building.discard(config)
        predicted = self._trials.records[config].prediction
        if build.failure or predicted is None:
            self._fruitless += 1
            return self._trials.built(config, build)
        record = self._trials.built(config, build, self._second_look.predict(config, build, predicted))
        if record.failure:  # the same binary as another's
            return record
        self.builds[config] = build
        self._waiting[config] = None
        self._before[config] = predicted
        return record

    def next_measure(self) -> Config | None:
        """The most promising of those that are built; none where none is worth it."""
        if self.is_over:
            return None
        ready = self._worth_measuring()
        if not ready:
            return None
        self._measuring.add(ready[0])
        del self._waiting[ready[0]]
        return ready[0]

    def measured(self, config: Config) -> None:
        """Its measurement, or its failure, is recorded."""
        self._measuring.discard(config)
        time_us = self._trials.records[config].measured_us
        if time_us is not None and (self._best_us is None or time_us < GAIN * self._best_us):
            self._best_us, self._fruitless = time_us, 0
        else:
            self._fruitless += 1

    def left_out(self) -> list[Config]:
        """Built candidates that are not measured: with the compiler's figures they are slow."""
        worth = self._worth_measuring()
        return [config for config in self._waiting if config not in worth]

    def _known(self) -> tuple[int, int]:
        """What picks go by: measurements, and candidates to choose from."""
        return self._trials.measured_count, len(self._trials.records)

    def _worth_measuring(self) -> list[Config]:
        """Those ready that the compiler's figures do not show to be too slow beside what else there is, best first."""
        if not self._waiting:
            return []
        open_us, ready = self._trials.open(), list(self._waiting)
        if self._limit is not None:
            best_us = min([*open_us.values(), *([self._best_us] if self._best_us else [])])
            now = {config: prediction for config in ready if (prediction := self._trials.records[config].prediction) is not None}
            slow = set(clearly_worse(self._before, now, open_us, best_us))
            ready = [config for config in ready if config not in slow]
        return sorted(ready, key=lambda config: (open_us[config], config.key))

    def _pick(self) -> None:
        open_us = {config: us for config, us in self._trials.open().items() if config not in self._tried}
        beside: Sequence[Config] = [*self._building, *self._waiting, *self._measuring]
        self._picks = deque(choose(open_us, self._window, beside))
        self._picked_at = self._known()
