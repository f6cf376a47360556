"""Who does the work of a session: lowering, building and measuring, each candidate's outcome as data."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from . import jobs
from .candidate import Candidate
from .errors import Failure, FailureKind, ToolchainError
from .jobs import Profiled
from .session import Baseline
from .trial import BuildResult, Measurement
from .twins import SharedLowering
from .workers import Done, Outcome, Raised, WorkerPool, failure_of, thread_limits

LOWER_TIMEOUT_S = 120.0  # attention takes 3 s on an idle core, more where many lower at once
MEASURE_TIMEOUT_S = 120.0  # one kernel: inputs, reference, check, samples

Built = tuple[Candidate, BuildResult]


@dataclass(frozen=True, slots=True)
class Comparison:
    """Finalists and vendor implementations, timed in turns on the same inputs."""

    measurements: tuple[Measurement, ...]  # in the order of the finalists
    baselines: tuple[Baseline, ...]
    notes: tuple[str, ...] = ()  # vendor implementations that were left out, and why


class Executor(Protocol):
    """Runs the stages of many candidates, in whatever processes or machines it has.

    Items are pulled one by one as there is room for them, so that whoever gives them can stop at any time; results
    come in the order in which they are ready. No candidate's failure is an exception; where the machine itself cannot
    go on (no device, no space), `ToolchainError` is raised.
    """

    def lower(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Profiled | Failure]]: ...

    def kept(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Profiled | Failure]]:
        """Those of `candidates` whose outcome is known without lowering them."""
        ...

    def build(self, candidates: Iterable[Candidate]) -> Iterator[Built]: ...

    def measure(self, builds: Iterable[Built]) -> Iterator[tuple[Candidate, Measurement]]: ...

    def compare(self, finalists: Sequence[Built]) -> Comparison | Failure: ...


class LocalExecutor:
    """Worker processes of this machine: `workers` that lower and build, and one that measures, alone on its device."""

    def __init__(self, workers: int, cache_dir: Path, *, share_lowering: bool = True) -> None:
        """`share_lowering`: configs that only reorder blocks are derived from one another, with fingerprints of their own."""
        self._cache_dir = cache_dir
        self._share_lowering = share_lowering
        self._compilers = WorkerPool(workers, timeout_s=LOWER_TIMEOUT_S, initializer=jobs.start_compiler, environment=thread_limits(1))
        self._shared = SharedLowering()
        self._device = WorkerPool(1, timeout_s=MEASURE_TIMEOUT_S, initializer=jobs.start_device)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self) -> None:
        """Start the processes that lower, so that they are ready when there is work."""
        self._compilers.start()

    def close(self) -> None:
        self._compilers.close()
        self._device.close()

    def lower(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Profiled | Failure]]:
        return self._shared.lower(candidates, self._lower) if self._share_lowering else self._lower(candidates)

    def _lower(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Profiled | Failure]]:
        faults = (FailureKind.LOWER_ERROR, FailureKind.LOWER_CRASH, FailureKind.LOWER_TIMEOUT)
        for candidate, outcome in _run(self._compilers, jobs.lower_and_profile, candidates):
            yield candidate, outcome.value if isinstance(outcome, Done) else failure_of(outcome, *faults)

    def kept(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Profiled | Failure]]:
        return iter(())

    def build(self, candidates: Iterable[Candidate]) -> Iterator[Built]:
        faults = (FailureKind.BUILD_ERROR, FailureKind.BUILD_CRASH, FailureKind.BUILD_TIMEOUT)
        job = partial(jobs.build, cache_dir=self._cache_dir)
        self._device.start()  # what is built is measured: torch and the device take seconds to be ready
        for candidate, outcome in _run(self._compilers, job, candidates):
            result = outcome.value if isinstance(outcome, Done) else BuildResult(None, failure_of(outcome, *faults))
            if result.failure and blames_the_cache(result.failure):
                raise ToolchainError(result.failure.message)
            yield candidate, result

    def measure(self, builds: Iterable[Built]) -> Iterator[tuple[Candidate, Measurement]]:
        for (candidate, _), outcome in _run(self._device, jobs.measure, builds):
            yield candidate, outcome.value if isinstance(outcome, Done) else Measurement(failure=_run_fault(outcome))

    def compare(self, finalists: Sequence[Built]) -> Comparison | Failure:
        for _, outcome in _run(self._device, jobs.measure_together, [tuple(finalists)]):
            if not isinstance(outcome, Done):
                return _run_fault(outcome)
            found = outcome.value
            return Comparison(found.measurements, found.baselines, found.notes)
        raise AssertionError("a pool answers every item")


def _run(pool: WorkerPool, function: Callable[[Any], Any], items: Iterable[Any]) -> Iterator[tuple[Any, Outcome[Any]]]:
    """Each item with its outcome: the pool gives its number only."""
    drawn: dict[int, Any] = {}

    def noted() -> Iterator[Any]:
        for number, item in enumerate(items):
            drawn[number] = item
            yield item

    for number, outcome in pool.run(function, noted()):
        if isinstance(outcome, Raised) and outcome.type_name == ToolchainError.__name__:
            raise ToolchainError(outcome.message)
        yield drawn.pop(number), outcome


def blames_the_cache(failure: Failure) -> bool:
    """Whether a build failed for want of space or permission: no fault of the candidate, and no reason to try the next."""
    return failure.kind is FailureKind.BUILD_ERROR and "kernel cache '" in failure.message


def _run_fault(outcome: Any) -> Failure:
    return failure_of(outcome, FailureKind.RUN_ERROR, FailureKind.RUN_CRASH, FailureKind.RUN_TIMEOUT)
