"""The executor for this machine: worker processes lower and build, one process for each device measures."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from ..builder.kernel_cache import check_folder
from ..errors import Failure, FailureKind, ProgramError, ToolchainError
from ..machine.device_lock import PROCESSOR_LOCK, alone_on, holder_of
from ..machine.devices import Device, restricted_to
from ..machine.group_environment import GROUP_ENVIRONMENT
from ..problem.candidate import Candidate
from ..records.trial import BuildResult, Measurement
from ..workers import (
    Crashed,
    Done,
    Outcome,
    OutOfMemory,
    Raised,
    TimedOut,
    TimeLimit,
    WorkerPool,
    failure_of,
    wait_for,
)
from . import tasks
from .jobs import (
    BuildDone,
    BuildJob,
    CompareDone,
    CompareJob,
    Event,
    Job,
    JobSource,
    Lane,
    LowerDone,
    LowerJob,
    MeasureDone,
    MeasureJob,
)
from .tasks import Answer

# seconds that one job may take at first; limits adapt to the times of jobs that succeed
LIMITS: Mapping[type[Job], float] = {
    LowerJob: 120.0,  # attention lowers in 3 s on an idle core, and slower beside other lowerings
    BuildJob: 120.0,
    MeasureJob: 120.0,  # one kernel: inputs, reference, check, samples
    CompareJob: 300.0,  # eight kernels and the vendor's
}
LEAST_LIMIT_S = 40.0
RANK_LIMIT_S = 10.0  # more for each further device that runs a kernel together with the first
START_TICK_S = 0.2  # between two looks whether a device can take its first job
WAIT_NOTICE_S = 3.0  # without an outcome, after which the user learns of a device that another process uses

_LOWER_FAULTS = (FailureKind.LOWER_ERROR, FailureKind.LOWER_CRASH, FailureKind.LOWER_TIMEOUT)
BUILD_FAULTS = (FailureKind.BUILD_ERROR, FailureKind.BUILD_CRASH, FailureKind.BUILD_TIMEOUT)
_RUN_FAULTS = (FailureKind.RUN_ERROR, FailureKind.RUN_CRASH, FailureKind.RUN_TIMEOUT)


def time_limits(world: int = 1) -> dict[type[Job], TimeLimit]:
    """An adaptive limit for each kind of job. Jobs of other operators may take longer than the first ones.

    Outputs of each of the `world` devices that run a kernel together are checked one after the other, also
    once for each of them as the late one.
    """
    found = {}
    for kind, first_s in LIMITS.items():
        more_s = RANK_LIMIT_S * (world - 1) if kind in (MeasureJob, CompareJob) else 0.0
        least_s = min(first_s, LEAST_LIMIT_S) + more_s
        found[kind] = TimeLimit(first_s + more_s, floor_s=least_s)
    return found


class LocalExecutor:
    """Runs jobs in worker processes of this machine; a context manager."""

    def __init__(
        self,
        workers: int,
        cache_dir: Path,
        devices: Sequence[Device] = (),
        *,
        world: int = 1,
        notice: Callable[[str], None] | None = None,
    ) -> None:
        """Prepare an executor; no process starts yet.

        Args:
            workers: Processes that lower and build.
            cache_dir: Folder of the kernel cache.
            devices: GPUs to measure on, each with a process of its own that sees no other GPU. Without any,
                kernels are measured on the processor, and nothing else runs meanwhile.
            world: How many devices run a kernel together (`Target.world`): each `world` of `devices` that
                follow each other have one process.
            notice: Receives texts for the user while jobs run.
        """
        self._cache_dir = cache_dir
        self._notice = notice or _ignore
        self._locks = {device.uuid: device.name for device in devices} or {PROCESSOR_LOCK: "the processor"}
        self._alternates = not any(device.kind != "cpu" for device in devices)
        groups = [tuple(devices[i : i + world]) for i in range(0, len(devices), world)]
        self._limits = time_limits(world)
        self._waiting_noticed = False
        self._lane = Lane.PREPARE  # if lanes alternate, the one that runs
        self._pools = {
            Lane.PREPARE: WorkerPool(
                workers,
                timeout_s=LIMITS[BuildJob],
                preload=tasks.preload_compiler,
                initializer=tasks.start_compiler,
                environment=tasks.COMPILER_ENVIRONMENT,
            ),
            Lane.DEVICE: WorkerPool(
                max(1, len(groups)),
                timeout_s=LIMITS[MeasureJob],
                preload=tasks.preload_device,
                initializer=tasks.start_device,
                environment={} if world == 1 else GROUP_ENVIRONMENT,
                environments=[restricted_to(*group) for group in groups] or None,
                gate=[partial(alone_on, *(device.uuid for device in group)) for group in groups]
                or [partial(alone_on, PROCESSOR_LOCK)],
            ),
        }

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def start(self, *, measures: bool = False, wait: bool = False) -> None:
        """Start processes before there are jobs for them.

        Args:
            measures: Whether those that measure start beside those that lower.
            wait: Whether to return only when they can take jobs.

        Raises:
            ToolchainError: the kernel cache is unusable (`measures`), or processes cannot start (`wait`).
        """
        if measures:
            check_folder(self._cache_dir)
        pools = list(self._pools.values()) if measures else [self._pools[Lane.PREPARE]]
        for pool in pools:
            pool.start()
        for pool in pools if wait else ():
            pool.wait_until_started()

    def close(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def width(self, lane: Lane) -> int:
        return self._pools[lane].count

    def cached(self, candidates: Iterable[Candidate]) -> Iterator[Answer]:
        return iter(())

    def stream(self, source: JobSource) -> Generator[Event]:
        running: dict[tuple[Lane, int], Job] = {}
        try:
            while True:
                self._draw(source, running)
                if not running:
                    return
                for pool, ticket, outcome in self._finished():
                    lane = next(lane for lane, known in self._pools.items() if known is pool)
                    yield event_of(running.pop((lane, ticket)), outcome)
        except BaseException:
            # all pools: an interrupt may come after a job has started and before it is in `running`
            for pool in self._pools.values():
                pool.cancel()
            raise

    def _finished(self) -> list[tuple[WorkerPool, int, Outcome[Any]]]:
        """Wait for outcomes, or until a device can take its first job.

        Notices once if another process is measuring on a device that a job waits for.
        """
        starts = self._pools[Lane.DEVICE].is_starting
        while not (found := wait_for(self._pools.values(), START_TICK_S if starts else WAIT_NOTICE_S)):
            if starts and not self._pools[Lane.DEVICE].is_starting:
                break
            if self._waiting_noticed or not self._pools[Lane.DEVICE].waiting_for_gate:
                continue
            ours = set(self._pools[Lane.DEVICE].pids())
            holders = {lock: holder_of(lock) for lock in self._locks}
            taken = {lock: pid for lock, pid in holders.items() if pid is not None and pid not in ours}
            if taken:
                self._waiting_noticed = True
                who = "; ".join(
                    f"process {pid} measures on {self._locks[lock]} ({lock})" for lock, pid in taken.items()
                )
                self._notice(f"waiting: {who}")
        return found

    def _draw(self, source: JobSource, running: dict[tuple[Lane, int], Job]) -> None:
        """Start tasks. On a processor, the lanes alternate: each runs until it has no more tasks."""
        if not self._alternates:
            for lane in Lane:
                self._fill(lane, source, running)
            return
        self._fill(self._lane, source, running)
        if not running:
            self._lane = Lane.DEVICE if self._lane is Lane.PREPARE else Lane.PREPARE
            self._fill(self._lane, source, running)

    def _fill(self, lane: Lane, source: JobSource, running: dict[tuple[Lane, int], Job]) -> None:
        """Start jobs of a lane while it has room.

        While the processes of the devices start, other jobs bring better candidates for them.
        """
        pool = self._pools[lane]
        if lane is Lane.DEVICE and pool.is_starting and running:
            return
        while pool.room() and (job := source.next(lane)) is not None:
            function, item = self._task(job)
            fresh, limit = isinstance(job, CompareJob), self._limits[type(job)]
            running[lane, pool.submit(function, item, fresh=fresh, timeout_s=limit)] = job

    def _task(self, job: Job) -> tuple[Any, Any]:
        """The function that a worker runs for a job, and its argument."""
        match job:
            case LowerJob():
                return tasks.lower_and_profile, job.candidate
            case BuildJob():
                build = partial(tasks.build, cache_dir=self._cache_dir, runnable=job.runnable)
                return build, job.candidate
            case MeasureJob():
                return tasks.measure, (job.candidate, job.build, job.protocol, job.rival_us)
            case CompareJob():
                return tasks.measure_together, job


def _ignore(text: str) -> None:
    """The default for `notice`."""


def event_of(job: Job, outcome: Outcome[Any]) -> Event:
    """The event of a job's outcome.

    Raises `ToolchainError` or `ProgramError` if all further jobs would fail too.
    """
    if isinstance(outcome, Raised):
        for fatal in (ToolchainError, ProgramError):
            if outcome.type_name == fatal.__name__:
                raise fatal(outcome.message)
    match job:
        case LowerJob():
            return LowerDone(
                job, outcome.value if isinstance(outcome, Done) else failure_of(outcome, *_LOWER_FAULTS)
            )
        case BuildJob():
            result = (
                outcome.value
                if isinstance(outcome, Done)
                else BuildResult(None, failure_of(outcome, *BUILD_FAULTS))
            )
            if result.failure and is_cache_failure(result.failure):
                raise ToolchainError(result.failure.message)
            return BuildDone(job, result)
        case MeasureJob():
            measurement = (
                outcome.value
                if isinstance(outcome, Done)
                else Measurement(failure=_run_failure(job.candidate, outcome))
            )
            return MeasureDone(job, measurement, outcome.seconds)
        case CompareJob():
            found = outcome.value if isinstance(outcome, Done) else _run_failure(job.finalists[0][0], outcome)
            return CompareDone(job, found, outcome.seconds)


def _run_failure(candidate: Candidate, outcome: Raised | Crashed | TimedOut | OutOfMemory) -> Failure:
    failure = failure_of(outcome, *_RUN_FAULTS)
    if failure.kind is FailureKind.RUN_TIMEOUT and candidate.template.operator.communicates:
        hint = "a rank may wait for another one for ever"
        return Failure(failure.kind, f"{failure.message}; {hint}", failure.detail)
    return failure


def is_cache_failure(failure: Failure) -> bool:
    """Whether a build failed because the kernel cache is unusable; then all builds would fail."""
    return failure.kind is FailureKind.BUILD_ERROR and "kernel cache '" in failure.message
