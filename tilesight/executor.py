"""An executor of this machine: worker processes that lower and build, and one for each device that measures, alone on it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from . import jobs
from .building.cache import check_folder
from .building.front_ends import FrontEnds
from .candidate import Candidate
from .device import Device, restricted_to
from .device_lock import alone_on, holder_of
from .errors import Failure, FailureKind, ProgramError, ToolchainError
from .jobs import Answer
from .trial import BuildResult, Measurement
from .work import Build, Built, Compare, Compared, Event, Job, Lane, Lower, Lowered, Measure, Measured, Source
from .workers import Done, Outcome, Raised, TimeLimit, WorkerPool, failure_of, thread_limits, wait_for

# most that one job may take; what was seen of others brings the limit down
LIMITS: Mapping[type[Job], float] = {
    Lower: 120.0,  # attention lowers in 3 s on an idle core, more where many lower at once
    Build: 120.0,
    Measure: 120.0,  # one kernel: inputs, reference, check, samples
    Compare: 300.0,  # eight of them, and the vendor's
}
LOOK_S = 3.0  # without news after which it is looked at what is waited for

_LOWER_FAULTS = (FailureKind.LOWER_ERROR, FailureKind.LOWER_CRASH, FailureKind.LOWER_TIMEOUT)
BUILD_FAULTS = (FailureKind.BUILD_ERROR, FailureKind.BUILD_CRASH, FailureKind.BUILD_TIMEOUT)
_RUN_FAULTS = (FailureKind.RUN_ERROR, FailureKind.RUN_CRASH, FailureKind.RUN_TIMEOUT)


def time_limits() -> dict[type[Job], TimeLimit]:
    """One for each kind of job, which come down with what is seen of them."""
    return {kind: TimeLimit(first_s, floor_s=min(first_s, 10.0)) for kind, first_s in LIMITS.items()}


class LocalExecutor:
    """Worker processes of this machine; a context manager.

    `devices`: the GPUs to measure on, each by a process of its own that sees no other. Without any it can measure its own
    processor, so nothing else runs while it does.
    """

    def __init__(
        self,
        workers: int,
        cache_dir: Path,
        devices: Sequence[Device] = (),
        *,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        """`notice` is told what a user should know while this goes on."""
        self._cache_dir = cache_dir
        self._devices, self._notice = tuple(devices), notice or _ignore
        self._alternates = not any(device.kind != "cpu" for device in devices)
        self._limits = time_limits()
        self._front_ends = FrontEnds()
        self._has_told = False
        self._lane = Lane.PREPARE  # of the two that alternate, the one that runs
        self._pools = {
            Lane.PREPARE: WorkerPool(
                workers,
                timeout_s=LIMITS[Build],
                preload=jobs.preload_compiler,
                initializer=jobs.start_compiler,
                environment=thread_limits(1),
            ),
            Lane.DEVICE: WorkerPool(
                max(1, len(devices)),
                timeout_s=LIMITS[Measure],
                preload=jobs.preload_device,
                initializer=jobs.start_device,
                environments=[restricted_to(device) for device in devices] or None,
                gate=[partial(alone_on, device.uuid) for device in devices] or None,
            ),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def start(self, *, measures: bool = False) -> None:
        """Start the processes that lower, with `measures` those that measure too, so that they are ready when there is work. What
        is measured is built: raises `ToolchainError` where no kernel can be kept."""
        if measures:
            check_folder(self._cache_dir)
        self._pools[Lane.PREPARE].start()
        if measures:
            self._pools[Lane.DEVICE].start()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()
        self._front_ends.close()

    def width(self, lane: Lane) -> int:
        return self._pools[lane].count

    def kept(self, candidates: Iterable[Candidate]) -> Iterator[Answer]:
        return iter(())

    def stream(self, source: Source) -> Generator[Event]:
        running: dict[tuple[Lane, int], Job] = {}
        try:
            while True:
                self._draw(source, running)
                if not running:
                    return
                for pool, ticket, outcome in self._finished():
                    lane = next(lane for lane, known in self._pools.items() if known is pool)
                    yield event_of(running.pop((lane, ticket)), outcome)
        finally:
            if running:
                for lane in {lane for lane, _ in running}:
                    self._pools[lane].cancel()

    def _finished(self) -> list[tuple[WorkerPool, int, Outcome[Any]]]:
        """What some jobs under way came to; says once where a device is waited for that another process measures on."""
        while not (found := wait_for(self._pools.values(), LOOK_S)):
            if self._has_told or not self._pools[Lane.DEVICE].waiting_for_gate:
                continue
            ours = set(self._pools[Lane.DEVICE].pids())
            holders = {device.uuid: holder_of(device.uuid) for device in self._devices}
            taken = {uuid: holder for uuid, holder in holders.items() if holder is not None and holder not in ours}
            if taken:
                self._has_told = True
                names = ", ".join(f"{uuid} (process {holder})" for uuid, holder in taken.items())
                self._notice(f"waiting for {self._devices[0].name} {names}: it is being measured on")
        return found

    def _draw(self, source: Source, running: dict[tuple[Lane, int], Job]) -> None:
        """Fill the lanes. On a processor they take turns: one runs until it has nothing more and is done."""
        if not self._alternates:
            for lane in Lane:
                self._fill(lane, source, running)
            return
        self._fill(self._lane, source, running)
        if not running:
            self._lane = Lane.DEVICE if self._lane is Lane.PREPARE else Lane.PREPARE
            self._fill(self._lane, source, running)

    def _fill(self, lane: Lane, source: Source, running: dict[tuple[Lane, int], Job]) -> None:
        pool = self._pools[lane]
        while pool.room() and (job := source.next(lane)) is not None:
            function, item = self._task(job)
            running[lane, pool.submit(function, item, fresh=isinstance(job, Compare), timeout_s=self._limits[type(job)])] = job

    def _task(self, job: Job) -> tuple[Any, Any]:
        """The function that does a job in a worker, and its argument."""
        match job:
            case Lower():
                return jobs.lower_and_profile, job.candidate
            case Build():
                address = self._front_ends.address if job.candidate.target.kind == "cuda" else ""
                return partial(jobs.build, cache_dir=self._cache_dir, front_ends=address), job.candidate
            case Measure():
                return jobs.measure, (job.candidate, job.build, job.protocol, job.rival_us)
            case Compare():
                return jobs.measure_together, (job.finalists, job.protocol)


def _ignore(text: str) -> None:
    """Nobody wants to know."""


def event_of(job: Job, outcome: Outcome[Any]) -> Event:
    """What an outcome means for its job. Raises `ToolchainError`, or `ProgramError`, where no other job could do better."""
    if isinstance(outcome, Raised):
        for stops in (ToolchainError, ProgramError):
            if outcome.type_name == stops.__name__:
                raise stops(outcome.message)
    match job:
        case Lower():
            return Lowered(job, outcome.value if isinstance(outcome, Done) else failure_of(outcome, *_LOWER_FAULTS))
        case Build():
            result = outcome.value if isinstance(outcome, Done) else BuildResult(None, failure_of(outcome, *BUILD_FAULTS))
            if result.failure and blames_the_cache(result.failure):
                raise ToolchainError(result.failure.message)
            return Built(job, result)
        case Measure():
            measurement = outcome.value if isinstance(outcome, Done) else Measurement(failure=failure_of(outcome, *_RUN_FAULTS))
            return Measured(job, measurement, outcome.seconds)
        case Compare():
            found = outcome.value if isinstance(outcome, Done) else failure_of(outcome, *_RUN_FAULTS)
            return Compared(job, found, outcome.seconds)


def blames_the_cache(failure: Failure) -> bool:
    """Whether a build failed for want of space or permission: no fault of the candidate, and no reason to try the next."""
    return failure.kind is FailureKind.BUILD_ERROR and "kernel cache '" in failure.message
