"""Trying: builds each config of the short list once and measures it at the sizes where it may be the best, best first.

It hands out the jobs. A device stays with one size for a few kernels, since inputs and reference are made anew for another one;
all sizes have their first kernels measured before any has many.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing

import numpy as np

from ..observers import Observer
from ..protocol import Protocol
from ..space import Config
from ..trial import TrialRecord
from ..work import Build, Built, Event, Executor, Job, Lane, Measure, Measured
from .board import Board
from .survey import Pair

AT_ONCE = 4  # kernels that are measured at a size before the device turns to the next
HOPE = 2.0  # sigmas of doubt that a kernel is credited with
PROMISE = 1.1  # one that is built is measured where none that is not yet built promises to be faster by this factor

Record = Callable[[int, Sequence[TrialRecord]], None]


class Trying:
    """`limit`: measurements of a size, at most; `wanted` pairs are measured in any case, as far as time allows."""

    def __init__(
        self, board: Board, protocol: Protocol, limit: int, until: float, record: Record, observer: Observer, wanted: Sequence[Pair] = ()
    ) -> None:
        self._board, self._protocol, self._limit, self._until = board, protocol, limit, until
        self._record, self._observer = record, observer
        self._wanted: dict[Pair, None] = dict.fromkeys(wanted)
        self._to_build: deque[Pair] = deque()
        self._building: set[Pair] = set()
        self._measuring: set[Pair] = set()
        self._order = _spread(board.sizes)
        self._left: dict[int, int] = {}  # sizes that devices are at, and how many kernels are measured there before they turn away
        self._free: list[int] = []  # of those, where a device has just become free: it has the inputs of that size
        self.measured = 0

    def run(self, executor: Executor, builds: Sequence[Config]) -> None:
        """Build `builds`, in this order, and measure until nothing promises to be the best any more, or time is up."""
        board = self._board
        if board.subject.open:
            self._to_build.extend((config, 0) for config in builds if (config, 0) not in board.builds)
        with closing(executor.stream(self)) as stream:
            for event in stream:
                self._take(event)

    # ---- a source of jobs

    def next(self, lane: Lane) -> Job | None:
        if time.monotonic() >= self._until:
            return None
        return self._next_build() if lane is Lane.PREPARE else self._next_measurement()

    def _next_build(self) -> Job | None:
        board = self._board
        if not board.subject.open and not self._to_build and len(self._building) < 2 * AT_ONCE:
            self._to_build.extend(self._worth_building())
        while self._to_build:
            config, size = self._to_build.popleft()
            if config in board.broken or (config, size) in board.builds or (config, size) in self._building:
                continue
            if board.subject.open and not self._is_worth_building(config):
                continue
            self._building.add((config, size))
            return Build(board.subject.candidate(size or self._home(config), config))
        return None

    def _home(self, config: Config) -> int:
        """A size at which an open kernel is built, which is one for all: the largest where its space has it."""
        space_has = (size for size in reversed(self._board.sizes) if config in self._board.subject.space(size))
        return next(space_has, self._board.sizes[-1])

    def _is_worth_building(self, config: Config) -> bool:
        """Whether an open kernel would be measured anywhere, by what is known by now."""
        board = self._board
        for size in board.sizes:
            if self._is_open(config, size):
                best = board.best_us(size)
                if (config, size) in self._wanted or best is None:
                    return True
                if board.measured_count(size) < self._limit and self._hopes(size).get(config, math.inf) < best:
                    return True
        return False

    def _worth_building(self) -> Iterator[Pair]:
        """Where each size has kernels of its own: those that would be measured next."""
        board = self._board
        for size in self._order:
            waiting = [c for c in board.configs if self._is_open(c, size) and self._is_built(c, size)]
            waiting += [config for config, at in self._building if at == size]
            must = [c for c, at in self._wanted if at == size and self._is_open(c, size) and c not in waiting]
            room = min(AT_ONCE, self._limit - self._under_way(size) - len(waiting))
            for config in [*must, *self._promising(size, built=False)[: max(0, room)]]:
                yield config, size

    def _next_measurement(self) -> Job | None:
        while self._free:
            size = self._free.pop()
            if self._left.get(size, 0) > 0 and (ready := self._ready(size)):
                return self._measure(ready[0], size)
            self._left.pop(size, None)
        # the size of the fewest measurements at which one is worth it, one where no other device is where that can be
        busy = {at for _, at in self._measuring}
        for size in sorted(self._order, key=lambda s: (s in busy, self._under_way(s) // AT_ONCE)):
            if ready := self._ready(size):
                self._left[size] = AT_ONCE
                return self._measure(ready[0], size)
        return None

    def _measure(self, config: Config, size: int) -> Job:
        self._left[size] -= 1
        self._measuring.add((config, size))
        build = self._board.build_of(config, size)
        assert build is not None
        rival = None if (config, size) in self._wanted else self._board.fastest_us(size)
        return Measure(self._board.subject.candidate(size, config), build, self._protocol, rival)

    def _under_way(self, size: int) -> int:
        return self._board.measured_count(size) + sum(at == size for _, at in self._measuring)

    def _ready(self, size: int) -> list[Config]:
        """Built kernels that are worth measuring at a size now, best first."""
        must = [config for config, at in self._wanted if at == size and self._is_open(config, at) and self._is_built(config, at)]
        if self._under_way(size) >= self._limit:
            return must
        promising = self._promising(size, built=True)
        if promising and self._building:
            hopes = self._hopes(size)
            waiting = [hopes[c] for c in self._promising(size, built=False)]
            if waiting and hopes[promising[0]] > PROMISE * min(waiting):
                promising = []  # what is being built is better
        return list(dict.fromkeys([*must, *promising]))

    def _promising(self, size: int, built: bool) -> list[Config]:
        """Configs that may be the fastest at a size and were not measured there, best first."""
        hopes, best = self._hopes(size), self._board.best_us(size)
        few = self._under_way(size) < 2
        worth = [config for config in hopes if self._is_open(config, size) and self._is_built(config, size) == built]
        if not few and best is not None:
            worth = [config for config in worth if hopes[config] < best]
        return sorted(worth, key=lambda config: (hopes[config], config.key))

    def _hopes(self, size: int) -> Mapping[Config, float]:
        """The time that each config may have at a size, if it is a lucky one."""
        found = self._board.corrected()
        column = self._board.sizes.index(size)
        times = found.times[:, column] * np.exp(-HOPE * found.doubt[:, column])
        return {config: float(us) for config, us in zip(self._board.configs, times, strict=True) if math.isfinite(us)}

    def _is_open(self, config: Config, size: int) -> bool:
        board = self._board
        record = board.trials[size].records.get(config)
        over = record is not None and (record.failure is not None or record.measurement is not None)
        return not over and config not in board.broken and (config, size) not in self._measuring

    def _is_built(self, config: Config, size: int) -> bool:
        build = self._board.build_of(config, size)
        return build is not None and build.artifact is not None

    # ---- what became of them

    def _take(self, event: Event) -> None:
        size_of = self._board.subject.vary.dim
        match event:
            case Built(job, result):
                config = job.candidate.config
                size = 0 if self._board.subject.open else job.candidate.workload.dims[size_of]
                self._building.discard((config, size))
                for at, records in self._board.built(config, size, result).items():
                    # one that works is recorded with its measurement
                    self._record(at, [record for record in records if record.failure is not None])
            case Measured(job, measurement, _):
                config, size = job.candidate.config, job.candidate.workload.dims[size_of]
                self._measuring.discard((config, size))
                self._free.append(size)
                self._wanted.pop((config, size), None)
                self._record(size, [self._board.measured(config, size, measurement)])
                self.measured += 1
                self._observer.advanced()
            case _:
                raise AssertionError("only builds and measurements were asked for")


def _spread(sizes: Sequence[int]) -> list[int]:
    """The sizes in an order in which every beginning is spread over the range: the ends, the middle, the quarters, ..."""
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
