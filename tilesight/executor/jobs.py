"""Jobs and events: the work for candidates as values, and the interface of executors.

A `JobSource` hands out jobs for a lane whenever an executor has room, which lets the next job depend on every
event before it. An `Executor` runs the jobs, in processes of this machine or on other machines.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from ..errors import Failure
from ..problem.candidate import Candidate
from ..records.session import Comparison
from ..records.trial import BuildResult, Measurement
from .tasks import Answer, Profiled

if TYPE_CHECKING:
    from ..records.protocol import MeasurementProtocol


class Lane(StrEnum):
    """Where a job runs: on any processor core, or alone on a device."""

    PREPARE = "prepare"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class LowerJob:
    """Lower a candidate and read its profiles."""

    candidate: Candidate


@dataclass(frozen=True, slots=True)
class BuildJob:
    """Build a candidate into a library in the kernel cache.

    Without `runnable` a code object is enough, which gives the compiler's figures and cannot be called.
    """

    candidate: Candidate
    runnable: bool = True


@dataclass(frozen=True, slots=True)
class MeasureJob:
    """Check and time a built candidate.

    `rival_us` is the fastest time known: sampling may stop once the candidate is slower by a tenth with
    confidence.
    """

    candidate: Candidate
    build: BuildResult
    protocol: MeasurementProtocol
    rival_us: float | None = None


@dataclass(frozen=True, slots=True)
class CompareJob:
    """Time the finalists, presumed best first, in turns, in a fresh process.

    `with_vendor`: with the vendor's library among them, which may take ten seconds to compile its kernel.
    """

    finalists: tuple[tuple[Candidate, BuildResult], ...]
    protocol: MeasurementProtocol
    with_vendor: bool = True


Job = LowerJob | BuildJob | MeasureJob | CompareJob


@dataclass(frozen=True, slots=True)
class LowerDone:
    """Event: the outcome of a lowering."""

    job: LowerJob
    outcome: Profiled | Failure


@dataclass(frozen=True, slots=True)
class BuildDone:
    """Event: the result of a build."""

    job: BuildJob
    result: BuildResult


@dataclass(frozen=True, slots=True)
class MeasureDone:
    """Event: a measurement. The job held its device for `device_seconds`."""

    job: MeasureJob
    measurement: Measurement
    device_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class CompareDone:
    """Event: a comparison. The job held its device for `device_seconds`."""

    job: CompareJob
    found: Comparison | Failure
    device_seconds: float = 0.0


Event = LowerDone | BuildDone | MeasureDone | CompareDone


class JobSource(Protocol):
    """Hands out jobs, by lane (see `lane_of`)."""

    def next(self, lane: Lane) -> Job | None:
        """The next job of a lane, or None if there is none now. The executor calls again after each event."""
        ...


class Executor(Protocol):
    """Runs the jobs of many candidates. `tests/contract/test_executor.py` tests every implementation.

    A job is drawn only when there is room for it. Events come in the order in which jobs end, and all events
    at hand are yielded before more jobs are drawn. A candidate's failure is never an exception; if the
    machine itself cannot go on (no device, no disk space), `ToolchainError` is raised. Leaving the stream
    early stops the running jobs.
    """

    def stream(self, source: JobSource) -> Generator[Event]:
        """Run jobs and yield events, until the source has no job for any lane and no job is running."""
        ...

    def width(self, lane: Lane) -> int:
        """How many jobs of a lane run at once."""
        ...

    def cached(self, candidates: Iterable[Candidate]) -> Iterator[Answer]:
        """The known outcomes of lowering some of `candidates`, without lowering."""
        ...


class SingleLaneSource:
    """A source of a fixed sequence of jobs that are all for one lane."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = iter(jobs)
        self._next_job: Job | None = None

    def next(self, lane: Lane) -> Job | None:
        job = self._next_job or next(self._jobs, None)
        if job is None or lane_of(job) is lane:
            self._next_job = None
            return job
        self._next_job = job
        return None


def lower_all(executor: Executor, candidates: Iterable[Candidate]) -> Iterator[Answer]:
    """Lower each candidate; yields (candidate, outcome) as lowerings end."""
    for event in executor.stream(SingleLaneSource(LowerJob(candidate) for candidate in candidates)):
        assert isinstance(event, LowerDone)
        yield event.job.candidate, event.outcome


def lane_of(job: Job) -> Lane:
    """The lane of a job: PREPARE for `LowerJob` and `BuildJob`, DEVICE for `MeasureJob` and `CompareJob`."""
    return Lane.PREPARE if isinstance(job, LowerJob | BuildJob) else Lane.DEVICE
