"""Preparing candidates for measurement: lowering and building of many, through one stream of worker processes."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from . import jobs
from .candidate import Candidate
from .errors import Failure, FailureKind, ToolchainError
from .executor import LOWER_TIMEOUT_S, blames_the_cache
from .jobs import Profiled
from .space import Config
from .trial import BuildResult
from .workers import Done, Outcome, Raised, WorkerPool, failure_of, thread_limits

# fingerprint of device code within one workload -> the config that stands for it
Kept = MutableMapping[tuple[str, str], Config]
_LOWER_FAULTS = (FailureKind.LOWER_ERROR, FailureKind.LOWER_CRASH, FailureKind.LOWER_TIMEOUT)
_BUILD_FAULTS = (FailureKind.BUILD_ERROR, FailureKind.BUILD_CRASH, FailureKind.BUILD_TIMEOUT)
_NICENESS = 10


@dataclass(frozen=True, slots=True)
class Prepared:
    """A candidate that is built, or why it is not: exactly one of `build` and `failure` is set."""

    candidate: Candidate
    lowered: Profiled | None  # None: it did not lower
    build: BuildResult | None = None
    failure: Failure | None = None


@dataclass(frozen=True, slots=True)
class _Step:
    """What a worker does next: lower a candidate, or build one that was lowered."""

    candidate: Candidate
    lowered: Profiled | None = None


class Preparer:
    """`workers` processes that lower and build, behind the process that measures. Used by one thread, like its pool."""

    def __init__(self, workers: int, cache_dir: Path) -> None:
        self._job = partial(_work, cache_dir=cache_dir)
        self._pool = WorkerPool(workers, timeout_s=LOWER_TIMEOUT_S, initializer=_start, environment=thread_limits(1))

    def __enter__(self) -> Self:
        self._pool.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._pool.close()

    def prepare(self, candidates: Iterable[Candidate], kept: Kept) -> Iterator[Prepared]:
        """Each candidate as it is ready. What is lowered is built before others are lowered, so that the first are ready
        soon. A candidate whose device code is that of one in `kept` is a failure of kind DUPLICATE.

        Raises `ToolchainError` where nothing more can be built (no space, no processes).
        """
        source = iter(candidates)
        lowered: deque[_Step] = deque()
        exhausted = False

        def steps() -> Iterator[_Step]:
            nonlocal exhausted
            while True:
                step = lowered.popleft() if lowered else None
                if step is None:
                    candidate = None if exhausted else next(source, None)
                    if candidate is None:
                        exhausted = True
                        return
                    step = _Step(candidate)
                drawn.append(step)
                yield step

        while lowered or not exhausted:
            drawn: list[_Step] = []
            for number, outcome in self._pool.run(self._job, steps()):
                found = _after(drawn[number], outcome, kept)
                if isinstance(found, _Step):
                    lowered.append(found)
                else:
                    yield found


def _after(step: _Step, outcome: Outcome[Profiled | Failure | BuildResult], kept: Kept) -> _Step | Prepared:
    """What a step brought: the next step of its candidate, or its end."""
    candidate = step.candidate
    if isinstance(outcome, Raised) and outcome.type_name == ToolchainError.__name__:
        raise ToolchainError(outcome.message)
    if not isinstance(outcome, Done):
        faults = _LOWER_FAULTS if step.lowered is None else _BUILD_FAULTS
        return Prepared(candidate, step.lowered, failure=failure_of(outcome, *faults))
    value = outcome.value
    if isinstance(value, Failure):
        return Prepared(candidate, None, failure=value)
    if isinstance(value, Profiled):
        first = kept.setdefault((candidate.workload.key, value.fingerprint), candidate.config)
        if first == candidate.config:
            return _Step(candidate, value)
        return Prepared(candidate, value, failure=Failure(FailureKind.DUPLICATE, f"generates the same device code as {first}"))
    if value.failure and blames_the_cache(value.failure):
        raise ToolchainError(value.failure.message)
    return Prepared(candidate, step.lowered, None if value.failure else value, value.failure)


def _start() -> None:
    # the process that measures must not wait for a core
    os.nice(_NICENESS)
    jobs.start_compiler()


def _work(step: _Step, cache_dir: Path) -> Profiled | Failure | BuildResult:
    if step.lowered is None:
        return jobs.lower_and_profile(step.candidate)
    return jobs.build(step.candidate, cache_dir)
