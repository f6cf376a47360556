"""The collector: measures a sample of each workload's search space and writes a row per candidate.

    sample -> lower, profile -> build -> measure -> compare with the vendor -> row

The candidates of all workloads share one stream of jobs, so a device need not wait between workloads.
Candidates are lowered and built at most a fixed number ahead of the measurements.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from ..errors import Failure, FailureKind
from ..executor.jobs import (
    BuildDone,
    BuildJob,
    CompareDone,
    CompareJob,
    Event,
    Executor,
    Job,
    Lane,
    LowerDone,
    LowerJob,
    MeasureDone,
    MeasureJob,
)
from ..executor.tasks import Profiled
from ..problem.candidate import Candidate
from ..problem.space import Config
from ..problem.template import KernelTemplate
from ..problem.workload import Workload
from ..records.protocol import MeasurementProtocol
from ..records.session import Comparison
from ..records.trial import BuildResult, Measurement
from ..target.spec import Target
from ..tuner.device_time import DeviceTime
from ..tuner.observers import Observer
from .writer import ConfigByHash, DatasetWriter

if TYPE_CHECKING:
    from ..records.dataset import Dataset

FINALISTS = 3  # measured again beside the vendor's implementations
SAVE_S = 60.0  # between two writes of the file
# Built candidates that wait for a device. More would be lost if the time budget ends the collection. On a
# processor preparation and measurement take turns; there it is the number prepared in one turn.
AHEAD, AHEAD_IN_TURN = 64, 16
BATCH = 16  # built candidates of a workload that are worth its inputs and its reference


@dataclass
class CollectionCase:
    """One workload with its sample, and the progress on it.

    Attributes:
        legal: number of legal configs of its space.
        wanted: the sample.
        left: candidates that are not done yet.
        profiles: of candidates in progress.
        ready: built candidates that wait for a device.
        builds: of candidates that were measured with right results.
        finalists: the fastest candidates, which are compared with the vendor.
        missing: finalists that an earlier call measured, so that they are built again.
        counts: outcomes of this call: "verified", or the kind of failure.
    """

    workload: Workload
    template: KernelTemplate
    target: Target
    legal: int
    wanted: Sequence[Config]
    left: int = 0
    profiles: dict[Config, Profiled] = field(default_factory=dict)
    ready: deque[tuple[Candidate, BuildResult]] = field(default_factory=deque)
    builds: dict[Config, BuildResult] = field(default_factory=dict)
    finalists: Sequence[Candidate] = ()
    missing: set[Config] = field(default_factory=set)
    counts: Counter[str] = field(default_factory=Counter)
    is_finished: bool = False

    def candidate(self, config: Config) -> Candidate:
        return Candidate(self.workload, self.target, self.template, config)


@dataclass(frozen=True, slots=True)
class CollectionResult:
    """Result of one call. It is not `complete` if the time budget ended it."""

    cases: Sequence[CollectionCase]
    dataset: Dataset
    complete: bool
    seconds: float


class Collector:
    """One collection: gives jobs to the executor and records their results."""

    def __init__(
        self,
        cases: Sequence[CollectionCase],
        writer: DatasetWriter,
        executor: Executor,
        protocol: MeasurementProtocol,
        observer: Observer,
        budget_s: float | None = None,
        *,
        vendor: bool = True,
    ) -> None:
        self._with_vendor = vendor
        self._cases = {case.workload.key: case for case in cases}
        self._writer, self._executor, self._protocol, self._observer = writer, executor, protocol, observer
        self._begin = self._saved = time.monotonic()
        self._budget_s = budget_s
        self._to_lower: deque[Candidate] = deque()
        self._to_build: deque[Candidate] = deque()
        self._to_compare: deque[CollectionCase] = deque()
        self._codes: ConfigByHash = {}
        self._binaries: ConfigByHash = {}
        self._ahead = AHEAD if any(case.target.is_gpu for case in cases) else AHEAD_IN_TURN
        self._current: CollectionCase | None = None
        self._on_devices = 0  # jobs in progress there
        self._preparing = 0  # lowerings and builds in progress
        self._device_time = DeviceTime()

    def run(self) -> CollectionResult:
        """Collect all cases. However this ends, all measured rows are in the file."""
        for case in self._cases.values():
            todo = [
                candidate for candidate in map(case.candidate, case.wanted) if candidate not in self._writer
            ]
            case.left = len(todo)
            self._to_lower.extend(todo)
        self._codes, self._binaries = self._writer.codes(), self._writer.binaries()
        self._observer.phase("collect", len(self._to_lower))
        try:
            self._work()
        finally:
            self._writer.save()
        counts = sum((case.counts for case in self._cases.values()), Counter())
        done = (
            f"{counts.pop('verified', 0)} measured and right{failed_text(counts)}; {len(self._writer)} rows "
            "in all"
        )
        self._observer.phase_done(f"{done}{self._busy_text()}")
        complete = all(case.is_finished for case in self._cases.values())
        if not complete:
            self._observer.message(
                "the time budget ended the collection early; the same command continues it"
            )
        return CollectionResult(
            tuple(self._cases.values()), self._writer.dataset(), complete, time.monotonic() - self._begin
        )

    def _work(self) -> None:
        for case in self._cases.values():
            if not case.left:
                self._conclude(case)
        with closing(self._executor.stream(self)) as stream:
            for event in stream:
                self._record(event)
                if time.monotonic() - self._saved > SAVE_S:
                    self._writer.save()
                    self._saved = time.monotonic()
                if self._is_time_up() and not self._on_devices:
                    return  # further builds would not be measured

    # ---- jobs

    def next(self, lane: Lane) -> Job | None:
        """The next job of `lane`; None if there is none at present."""
        if self._is_time_up():
            return None
        return self._next_preparation() if lane is Lane.PREPARE else self._next_on_device()

    def _next_preparation(self) -> Job | None:
        if self._is_far_ahead() or not (self._to_build or self._to_lower):
            return None
        self._preparing += 1
        return BuildJob(self._to_build.popleft()) if self._to_build else LowerJob(self._to_lower.popleft())

    def _is_far_ahead(self) -> bool:
        return sum(len(case.ready) for case in self._cases.values()) >= self._ahead

    def _next_on_device(self) -> Job | None:
        """A comparison if one is due, else a measurement."""
        if self._to_compare:
            case = self._to_compare.popleft()
            self._device_job_began()
            built = tuple((c, case.builds[c.config]) for c in case.finalists if c.config in case.builds)
            return CompareJob(built, self._protocol.careful())
        if self._current is None or not self._current.ready:
            self._current = self._next_case() or self._current
        if self._current is None or not self._current.ready:
            return None
        self._device_job_began()
        return MeasureJob(*self._current.ready.popleft(), self._protocol)

    def _next_case(self) -> CollectionCase | None:
        """The workload to measure next; None to wait for more builds.

        Inputs and reference of a workload may take longer than its measurements. So it is begun when all its
        candidates are built, or many, or when nothing else can be prepared.
        """
        ready = [case for case in self._cases.values() if case.ready]
        if (self._preparing or self._to_build or self._to_lower) and not self._is_far_ahead():
            ready = [case for case in ready if len(case.ready) >= min(case.left, BATCH)]
        return max(ready, key=lambda case: len(case.ready), default=None)

    def _device_job_began(self) -> None:
        self._on_devices += 1
        self._device_time.began()

    # ---- results

    def _record(self, event: Event) -> None:
        self._preparing -= isinstance(event, LowerDone | BuildDone)
        match event:
            case LowerDone(LowerJob(candidate), outcome):
                self._lowered(self._case_of(candidate), candidate, outcome)
            case BuildDone(BuildJob(candidate), result):
                case = self._case_of(candidate)
                if candidate.config in case.missing:
                    self._rebuilt(case, candidate, result)
                else:
                    self._built(case, candidate, result)
            case MeasureDone(job, measurement, seconds):
                self._device_job_ended(seconds)
                self._measured(self._case_of(job.candidate), job, measurement)
            case CompareDone(job, found, seconds):
                self._device_job_ended(seconds)
                self._compared(self._case_of(job.finalists[0][0]), job, found)

    def _device_job_ended(self, seconds: float) -> None:
        self._on_devices -= 1
        self._device_time.took(seconds)

    def _case_of(self, candidate: Candidate) -> CollectionCase:
        return self._cases[candidate.workload.key]

    def _lowered(self, case: CollectionCase, candidate: Candidate, outcome: Profiled | Failure) -> None:
        if isinstance(outcome, Failure):
            self._failed(case, candidate, outcome)
            return
        case.profiles[candidate.config] = outcome
        first = self._codes.setdefault((case.workload.key, outcome.fingerprint), candidate.config)
        if first == candidate.config:
            self._to_build.append(candidate)
        else:
            self._failed(
                case, candidate, Failure(FailureKind.DUPLICATE, f"generates the same device code as {first}")
            )

    def _built(self, case: CollectionCase, candidate: Candidate, result: BuildResult) -> None:
        failure = result.failure
        if failure is None and result.binary:
            first = self._binaries.setdefault((case.workload.key, result.binary), candidate.config)
            if first != candidate.config:
                failure = Failure(FailureKind.DUPLICATE, f"builds to the same binary as {first}")
        if failure is None:
            case.ready.append((candidate, result))
        else:
            self._failed(case, candidate, failure, result)

    def _failed(
        self, case: CollectionCase, candidate: Candidate, failure: Failure, build: BuildResult | None = None
    ) -> None:
        self._writer.failed(candidate, failure, case.profiles.pop(candidate.config, None), build)
        self._done(case, candidate.config, failure.kind.value)

    def _measured(self, case: CollectionCase, job: MeasureJob, measurement: Measurement) -> None:
        config = job.candidate.config
        if measurement.is_noisy:  # no row: the next call measures the candidate again
            case.profiles.pop(config)
            self._done(case, config, measurement.status.value)
            return
        self._writer.measured(job.candidate, case.profiles.pop(config), job.build, measurement)
        if not measurement.failure:
            case.builds[config] = job.build
        if measurement.failure:
            self._done(case, config, measurement.failure.kind.value)
        else:
            self._done(case, config, "verified", f" {measurement.latency_us:.4g} us")

    def _done(self, case: CollectionCase, config: Config, outcome: str, time: str = "") -> None:
        case.left -= 1
        case.counts[outcome] += 1
        self._observer.advanced()
        self._observer.detail(f"{case.workload.label}: {outcome}{time}: {config}")
        if not case.left:
            self._conclude(case)

    # ---- the end of a case

    def _conclude(self, case: CollectionCase) -> None:
        """Compare the fastest candidates of a finished sample with the vendor, unless that is done."""
        if not self._with_vendor or self._writer.is_compared(case.workload, case.target.name):
            self._finish(case)
            return
        configs = self._writer.fastest(case.workload, case.target.name, case.template.version, FINALISTS)
        case.finalists = [case.candidate(config) for config in configs]
        case.missing = {config for config in configs if config not in case.builds}
        self._to_build.extendleft(
            candidate for candidate in case.finalists if candidate.config in case.missing
        )
        self._compare_if_built(case)

    def _rebuilt(self, case: CollectionCase, candidate: Candidate, result: BuildResult) -> None:
        case.missing.discard(candidate.config)
        if result.artifact:
            case.builds[candidate.config] = result
        self._compare_if_built(case)

    def _compare_if_built(self, case: CollectionCase) -> None:
        if case.missing:
            return
        if any(candidate.config in case.builds for candidate in case.finalists):
            self._to_compare.append(case)
        else:
            self._finish(case, "no vendor time: there is no kernel to compare with")

    def _compared(self, case: CollectionCase, job: CompareJob, found: Comparison | Failure) -> None:
        if isinstance(found, Failure):
            self._finish(case, f"no vendor time: {found.message}")
            return
        if any(baseline.is_noisy for baseline in found.baselines):
            self._finish(case, "no vendor time: it was too noisy; the next call measures it again")
            return
        self._writer.compared(
            [candidate for candidate, _ in job.finalists], found.measurements, found.baselines
        )
        times = (
            ", ".join(f"{b.name} {b.latency_us:.4g} us" for b in found.baselines)
            or "no vendor library is here"
        )
        self._finish(case, "; ".join([times, *found.notes]))

    def _finish(self, case: CollectionCase, vendor: str = "") -> None:
        """Report a finished case; `vendor` is a text on the vendor's times, "" if reported before."""
        case.is_finished = True
        case.builds.clear()
        if not case.counts and not vendor:
            return  # an earlier call finished the case
        fastest = self._writer.fastest_us(case.workload, case.target.name)
        done = (
            f"{case.counts['verified']} of {sum(case.counts.values())} measured and "
            f"right{failed_text(case.counts)}"
        )
        parts = [done] if case.counts else []
        parts += [f"fastest {f'{fastest:.4g} us' if fastest else 'none'}", *([vendor] if vendor else [])]
        self._observer.message(f"{case.workload.label}: {'; '.join(parts)}")

    def _busy_text(self) -> str:
        return (
            f"; {self._device_time.text(self._executor.width(Lane.DEVICE))}"
            if self._device_time.count
            else ""
        )

    def _is_time_up(self) -> bool:
        return self._budget_s is not None and time.monotonic() - self._begin > self._budget_s


def failed_text(counts: Counter[str]) -> str:
    """Counts of failures as text, like `, 3 build_error, 2 duplicate`; "" if there are none."""
    return "".join(f", {count} {kind}" for kind, count in counts.most_common() if kind != "verified")
