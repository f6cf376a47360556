"""Builds each config of the short list once, and measures it at the sizes where it may be the best.

`MeasureLoop` is the source of jobs. A device stays with one size for a few kernels, since another size needs
new inputs and a new reference; all sizes have their first kernels measured before any size has many.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import numpy as np

from ..executor.jobs import BuildDone, BuildJob, Event, Executor, Job, Lane, MeasureDone, MeasureJob
from ..problem.space import Config
from ..records.protocol import MeasurementProtocol
from ..records.trial import TrialRecord
from ..tuner.observers import Observer
from .plan_state import PlanState
from .size_predictions import Pair

AT_ONCE = 4  # kernels that are measured at a size before the device goes to another size
OPTIMISM_SIGMAS = 2.0  # below its expected time: the time that a config is measured for
BUILD_ADVANTAGE = 1.1  # a built kernel waits if one that is being built may be faster by this factor

Record = Callable[[int, Sequence[TrialRecord]], None]


class MeasureLoop:
    """`limit`: measurements of a size, at most. `required` pairs are measured in any case, until `until`."""

    def __init__(
        self,
        state: PlanState,
        protocol: MeasurementProtocol,
        limit: int,
        until: float,
        record: Record,
        observer: Observer,
        required: Sequence[Pair] = (),
    ) -> None:
        self._state, self._protocol, self._limit, self._until = state, protocol, limit, until
        self._record, self._observer = record, observer
        self._required: dict[Pair, None] = dict.fromkeys(required)
        self._to_build: deque[Pair] = deque()
        self._building: set[Pair] = set()
        self._measuring: set[Pair] = set()
        self._order = _spread_order(state.sizes)
        self._remaining: dict[
            int, int
        ] = {}  # by size: kernels that its device still measures before it goes to another size
        self._free_sizes: list[int] = []  # sizes whose device is free and still holds their inputs
        self.measured = 0
        self.noisy = 0  # of them

    def run(self, executor: Executor, builds: Sequence[Config]) -> None:
        """Build these configs in order, and measure until no config may be faster, or time is up."""
        state = self._state
        if state.problem.dynamic:
            self._to_build.extend((config, 0) for config in builds if (config, 0) not in state.builds)
        with closing(executor.stream(self)) as stream:
            for event in stream:
                self._handle(event)

    def next(self, lane: Lane) -> Job | None:
        """The next job of a lane; None if there is none now."""
        if time.monotonic() >= self._until:
            return None
        return self._next_build() if lane is Lane.PREPARE else self._next_measurement()

    def _next_build(self) -> Job | None:
        state = self._state
        if not state.problem.dynamic and not self._to_build and len(self._building) < 2 * AT_ONCE:
            self._to_build.extend(self._worth_building())
        while self._to_build:
            config, size = self._to_build.popleft()
            if config in state.failed or (config, size) in state.builds or (config, size) in self._building:
                continue
            if state.problem.dynamic and not self._is_worth_building(config):
                continue
            self._building.add((config, size))
            return BuildJob(state.problem.candidate(size or self._build_size(config), config))
        return None

    def _build_size(self, config: Config) -> int:
        """The size for which a dynamic kernel is built: the largest whose space has the config."""
        sizes = (size for size in reversed(self._state.sizes) if config in self._state.problem.space(size))
        return next(sizes, self._state.sizes[-1])

    def _is_worth_building(self, config: Config) -> bool:
        """Whether a dynamic kernel would be measured at any size, by what is known now."""
        state = self._state
        for size in state.sizes:
            if self._is_unmeasured(config, size):
                best = state.best_us(size)
                if (config, size) in self._required or best is None:
                    return True
                if (
                    state.measured_count(size) < self._limit
                    and self._optimistic_us(size).get(config, math.inf) < best
                ):
                    return True
        return False

    def _worth_building(self) -> Iterator[Pair]:
        """Pairs that would be measured next, if each size has kernels of its own."""
        state = self._state
        for size in self._order:
            waiting = [c for c in state.configs if self._is_unmeasured(c, size) and self._is_built(c, size)]
            waiting += [config for config, at in self._building if at == size]
            required_here = [
                c
                for c, at in self._required
                if at == size and self._is_unmeasured(c, size) and c not in waiting
            ]
            room = min(AT_ONCE, self._limit - self._under_way(size) - len(waiting))
            for config in [*required_here, *self._promising(size, built=False)[: max(0, room)]]:
                yield config, size

    def _next_measurement(self) -> Job | None:
        while self._free_sizes:
            size = self._free_sizes.pop()
            if self._remaining.get(size, 0) > 0 and (ready := self._ready(size)):
                return self._measure(ready[0], size)
            self._remaining.pop(size, None)
        # a size that no other device measures, and of those the size with the fewest measurements
        busy = {at for _, at in self._measuring}
        for size in sorted(self._order, key=lambda s: (s in busy, self._under_way(s) // AT_ONCE)):
            if ready := self._ready(size):
                self._remaining[size] = AT_ONCE
                return self._measure(ready[0], size)
        return None

    def _measure(self, config: Config, size: int) -> Job:
        self._remaining[size] -= 1
        self._measuring.add((config, size))
        build = self._state.build_of(config, size)
        assert build is not None
        rival = None if (config, size) in self._required else self._state.fastest_us(size)
        return MeasureJob(self._state.problem.candidate(size, config), build, self._protocol, rival)

    def _under_way(self, size: int) -> int:
        return self._state.measured_count(size) + sum(at == size for _, at in self._measuring)

    def _ready(self, size: int) -> list[Config]:
        """Built configs that are worth measuring at a size now, best first."""
        required_here = [
            config
            for config, at in self._required
            if at == size and self._is_unmeasured(config, at) and self._is_built(config, at)
        ]
        if self._under_way(size) >= self._limit:
            return required_here
        promising = self._promising(size, built=True)
        if promising and self._building:
            optimistic_us = self._optimistic_us(size)
            waiting = [optimistic_us[c] for c in self._promising(size, built=False)]
            if waiting and optimistic_us[promising[0]] > BUILD_ADVANTAGE * min(waiting):
                promising = []  # a config that is being built may be much faster
        return list(dict.fromkeys([*required_here, *promising]))

    def _promising(self, size: int, built: bool) -> list[Config]:
        """Unmeasured configs that may be the fastest at a size, best first."""
        optimistic_us, best = self._optimistic_us(size), self._state.best_us(size)
        is_first = self._under_way(size) < 2
        promising = [
            config
            for config in optimistic_us
            if self._is_unmeasured(config, size) and self._is_built(config, size) == built
        ]
        if not is_first and best is not None:
            promising = [config for config in promising if optimistic_us[config] < best]
        return sorted(promising, key=lambda config: (optimistic_us[config], config.key))

    def _optimistic_us(self, size: int) -> Mapping[Config, float]:
        """The expected time of each config at a size, less `OPTIMISM_SIGMAS` of its uncertainty."""
        found = self._state.corrected()
        column = self._state.sizes.index(size)
        times = found.times[:, column] * np.exp(-OPTIMISM_SIGMAS * found.uncertainty[:, column])
        return {
            config: float(us)
            for config, us in zip(self._state.configs, times, strict=True)
            if math.isfinite(us)
        }

    def _is_unmeasured(self, config: Config, size: int) -> bool:
        state = self._state
        record = state.trials[size].records.get(config)
        is_done = record is not None and (record.failure is not None or record.measurement is not None)
        return not is_done and config not in state.failed and (config, size) not in self._measuring

    def _is_built(self, config: Config, size: int) -> bool:
        build = self._state.build_of(config, size)
        return build is not None and build.artifact is not None

    def _handle(self, event: Event) -> None:
        size_of = self._state.problem.vary.dim
        match event:
            case BuildDone(job, result):
                config = job.candidate.config
                size = 0 if self._state.problem.dynamic else job.candidate.workload.dims[size_of]
                self._building.discard((config, size))
                for at, records in self._state.built(config, size, result).items():
                    # a build that works is recorded with its measurement
                    self._record(at, [record for record in records if record.failure is not None])
            case MeasureDone(job, measurement, _):
                config, size = job.candidate.config, job.candidate.workload.dims[size_of]
                self._measuring.discard((config, size))
                self._free_sizes.append(size)
                self._required.pop((config, size), None)
                record = self._state.measured(config, size, measurement)
                self._record(size, [record])
                self._observer.detail(f"{size_of}={size}: {record.summary}")
                self.measured += 1
                self.noisy += measurement.is_noisy
                self._observer.advanced()
            case _:
                raise AssertionError(f"unexpected event {event}")


def _spread_order(sizes: Sequence[int]) -> list[int]:
    """The sizes so that each prefix is spread over the range: the ends, the middle, the quarters, ..."""
    order: list[int] = []
    parts = deque([(0, len(sizes) - 1)])
    order += [sizes[0], sizes[-1]] if len(sizes) > 1 else list(sizes)
    while parts:
        low, high = parts.popleft()
        middle = (low + high) // 2
        if high - low < 2:
            continue
        order.append(sizes[middle])
        parts += [(low, middle), (middle, high)]
    return order
