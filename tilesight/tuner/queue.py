"""The measurement queue: which predicted candidate is built next, and which built one is measured next.

Building runs slightly ahead of measuring, so that no device waits for a build. It does not run further ahead,
since each measurement may change which candidates are worth building.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence

from ..problem.space import Config
from ..records.trial import BuildResult, Prediction, Status, TrialRecord
from ..search.select import choose
from .rerank import SPARE, Reranker, clearly_worse
from .trials import Trials

GAIN = 0.995  # a time below this share of the best so far is an improvement
MOST_BUILDS = 4  # for each wanted measurement; bounds a session in which many builds fail
AHEAD = 2  # built candidates waiting for each device


class MeasurementQueue:
    """Candidates on their way from prediction to measurement.

    Args:
        trials: The records of the session.
        reranker: Predicts built candidates again with the compiler's figures.
        limit: Number of measurements wanted; None: every candidate.
        patience: Candidates without improvement after which the queue is over; None: any number.
        width: Number of builds that run at once.
        devices: Number of measurements that run at once.
        spare: Whether some built candidates may be dropped because of the compiler's figures.
        default: The template's own choice, built and measured before all others whatever is predicted; None
            if there is none.
    """

    def __init__(
        self,
        trials: Trials,
        reranker: Reranker,
        limit: int | None,
        patience: int | None,
        width: int,
        devices: int,
        spare: bool,
        default: Config | None = None,
    ) -> None:
        self._trials, self._reranker, self._default = trials, reranker, default
        self._limit, self._patience = limit, patience
        self._window = width + AHEAD * devices
        # compilers for GPUs report spills: some built candidates turn out not to be worth a measurement
        self._wanted = math.inf if limit is None else math.ceil((SPARE if spare else 1.0) * limit)
        self._builds_left = math.inf if limit is None else MOST_BUILDS * limit
        self._picks: deque[Config] = deque()
        self._picked_at = (-1, -1)  # numbers of measurements and candidates when the picks were made
        self._building: set[Config] = set()
        self._measuring: set[Config] = set()
        self._tried: set[Config] = set()  # given out for building
        self._before: dict[Config, Prediction] = {}  # predictions without the compiler's figures
        self._fruitless = 0  # candidates since the last improvement, counted once exploration is over
        self._is_explored = False
        self._best_us = trials.fastest_us
        self._waiting: dict[Config, None] = {}  # built, and neither measured nor being measured
        self.builds: dict[Config, BuildResult] = {}

    @property
    def wanted(self) -> int:
        """Upper bound of the measurements still to come."""
        possible = sum(t.status in (Status.PREDICTED, Status.BUILT) for t in self._trials.records.values())
        return (
            possible
            if self._limit is None
            else min(possible, max(0, self._limit - self._trials.measured_count))
        )

    @property
    def is_over(self) -> bool:
        under_way = self._trials.measured_count + len(self._measuring)
        patient = not self._is_explored and self._best_us is not None  # exploration may find better ones
        stale = not patient and self._patience is not None and self._fruitless >= self._patience
        return stale or (self._limit is not None and under_way >= self._limit)

    def explored(self) -> None:
        """Exploration is over: from now on patience counts."""
        self._is_explored, self._fruitless = True, 0

    def next_build(self, *, at_most: int | None = None) -> Config | None:
        """The most promising candidate that is not built; None while enough are on their way.

        `at_most` limits the number of candidates given out for building in all.
        """
        if self.is_over or self._builds_left <= 0:
            return None
        if at_most is not None and len(self._tried) >= at_most:
            return None
        waiting = len(self._building) + len(self._worth_measuring())
        if (
            waiting >= self._window
            or waiting + len(self._measuring) + self._trials.measured_count >= self._wanted
        ):
            return None
        if not self._picks or self._picked_at != self._counts():
            self._pick()
        if not self._picks:
            return None
        config = self._picks.popleft()
        self._building.add(config)
        self._tried.add(config)
        self._builds_left -= 1
        return config

    def built(self, config: Config, build: BuildResult) -> TrialRecord:
        """Record a build. The new record has a prediction made with the compiler's figures."""
        self._building.discard(config)
        predicted = self._trials.records[config].prediction
        if build.failure or predicted is None:
            self._fruitless += 1
            return self._trials.built(config, build)
        record = self._trials.built(config, build, self._reranker.predict(config, build, predicted))
        if record.failure:  # a duplicate
            return record
        self.builds[config] = build
        self._waiting[config] = None
        self._before[config] = predicted
        return record

    def next_measure(self) -> Config | None:
        """The most promising built candidate; None if no built candidate is worth a measurement."""
        if self.is_over:
            return None
        ready = self._worth_measuring()
        if not ready:
            return None
        self._measuring.add(ready[0])
        del self._waiting[ready[0]]
        return ready[0]

    def measured(self, config: Config) -> None:
        """Note that the measurement of `config`, or its failure, is recorded."""
        self._measuring.discard(config)
        time_us = self._trials.records[config].measured_us
        if time_us is not None and (self._best_us is None or time_us < GAIN * self._best_us):
            self._best_us, self._fruitless = time_us, 0
        else:
            self._fruitless += 1

    def left_out(self) -> list[Config]:
        """Built candidates that are too slow, by the compiler's figures, to be measured."""
        worth = self._worth_measuring()
        return [config for config in self._waiting if config not in worth]

    def _counts(self) -> tuple[int, int]:
        """Numbers of measurements and of candidates: picks are made anew when one of them changes."""
        return self._trials.measured_count, len(self._trials.records)

    def _worth_measuring(self) -> list[Config]:
        """Built candidates, best first, without those that the compiler's figures show to be too slow."""
        if not self._waiting:
            return []
        times_us, ready = self._trials.unmeasured(), list(self._waiting)
        if self._limit is not None:
            best_us = min([*times_us.values(), *([self._best_us] if self._best_us else [])])
            now = {
                config: prediction
                for config in ready
                if (prediction := self._trials.records[config].prediction) is not None
            }
            slow = set(clearly_worse(self._before, now, times_us, best_us)) - {self._default}
            ready = [config for config in ready if config not in slow]
        return sorted(ready, key=lambda config: (config != self._default, times_us[config], config.key))

    def _pick(self) -> None:
        times_us = {
            config: us for config, us in self._trials.unmeasured().items() if config not in self._tried
        }
        beside: Sequence[Config] = [*self._building, *self._waiting, *self._measuring]
        first = [] if self._default not in times_us else [self._default]
        self._picks = deque([*first, *(c for c in choose(times_us, self._window, beside) if c not in first)])
        self._picked_at = self._counts()
