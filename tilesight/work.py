"""The work of a session as values: what a worker may be asked for one candidate, and what came of it.

A `Source` hands out jobs lane by lane as an executor has room for them, so what is asked next may depend on every answer
before it. An `Executor` runs them in whatever processes or machines it has.
"""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Protocol

from .candidate import Candidate
from .errors import Failure
from .jobs import Answer, Profiled
from .session import Comparison
from .trial import BuildResult, Measurement

if TYPE_CHECKING:
    from .protocol import Protocol as Conditions


class Lane(StrEnum):
    """Where a job runs: on any processor core, or alone on a device."""

    PREPARE = "prepare"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class Lower:
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Build:
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Measure:
    """`rival_us` is the fastest time known: sampling may stop as soon as the candidate is certainly slower by a tenth."""

    candidate: Candidate
    build: BuildResult
    protocol: Conditions
    rival_us: float | None = None


@dataclass(frozen=True, slots=True)
class Compare:
    """Finalists, best first as known so far, timed in turns with the vendor's library in a fresh process."""

    finalists: tuple[tuple[Candidate, BuildResult], ...]
    protocol: Conditions


Job = Lower | Build | Measure | Compare


@dataclass(frozen=True, slots=True)
class Lowered:
    job: Lower
    outcome: Profiled | Failure


@dataclass(frozen=True, slots=True)
class Built:
    job: Build
    result: BuildResult


@dataclass(frozen=True, slots=True)
class Measured:
    """`device_seconds`: how long the job held its device."""

    job: Measure
    measurement: Measurement
    device_seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class Compared:
    job: Compare
    found: Comparison | Failure
    device_seconds: float = 0.0


Event = Lowered | Built | Measured | Compared


class Source(Protocol):
    """Hands out jobs. `lane` says for where: `Lower` and `Build` are for PREPARE, `Measure` and `Compare` for DEVICE."""

    def next(self, lane: Lane) -> Job | None:
        """The next job of a lane, or None where there is none now; it is asked again after each event."""
        ...


class Executor(Protocol):
    """Runs the jobs of many candidates: `tests/contract/test_executor.py` holds every implementation to it.

    A job is drawn only when there is room for it; events come in the order in which they are ready, and each of them is
    handed out before more jobs are drawn. No candidate's failure is an exception; where the machine itself cannot go on
    (no device, no space), `ToolchainError` is raised. Leaving the stream early stops what still runs.
    """

    def stream(self, source: Source) -> Generator[Event]:
        """Events until the source has nothing more on any lane and nothing runs."""
        ...

    def width(self, lane: Lane) -> int:
        """How many jobs of a lane run at once."""
        ...

    def kept(self, candidates: Iterable[Candidate]) -> Iterator[Answer]:
        """Those of `candidates` whose lowering is known without doing it."""
        ...


class OneLane:
    """A source of jobs for one lane, drawn one by one as there is room, for calls that need no more."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        self._jobs = iter(jobs)
        self._waiting: Job | None = None

    def next(self, lane: Lane) -> Job | None:
        job = self._waiting or next(self._jobs, None)
        if job is None or lane_of(job) is lane:
            self._waiting = None
            return job
        self._waiting = job
        return None


def lower_all(executor: Executor, candidates: Iterable[Candidate]) -> Iterator[Answer]:
    """Each candidate with the outcome of its own lowering, as they are ready."""
    for event in executor.stream(OneLane(Lower(candidate) for candidate in candidates)):
        assert isinstance(event, Lowered)
        yield event.job.candidate, event.outcome


def lane_of(job: Job) -> Lane:
    return Lane.PREPARE if isinstance(job, Lower | Build) else Lane.DEVICE
