"""The collector: measures a sample of each workload's space, every candidate a row, failures included.

    sample -> lower, profile -> build -> measure -> compare with the vendor -> row

It hands out jobs lane by lane, as the executor has room for them. The candidates of all workloads go through one stream,
so that a device need not wait between them: what is lowered is built before more is lowered, and both stay a bounded
number of candidates ahead of the measurements.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from .candidate import Candidate
from .device_time import DeviceTime
from .errors import Failure, FailureKind
from .jobs import Profiled
from .ledger import Codes, Ledger
from .observers import Observer
from .protocol import Protocol
from .session import Comparison
from .space import Config
from .target import Target
from .template import KernelTemplate
from .trial import BuildResult, Measurement
from .work import Build, Built, Compare, Compared, Event, Executor, Job, Lane, Lower, Lowered, Measure, Measured
from .workload import Workload

if TYPE_CHECKING:
    from .dataset import Dataset

FINALISTS = 3  # timed again beside the vendor's implementations
SAVE_S = 60.0  # between two writings of the file
# built candidates that wait for a device: more would be lost work where the budget ends it. On a processor, where preparing
# and measuring take turns, it is what one turn prepares
AHEAD, AHEAD_IN_TURN = 64, 16


@dataclass
class Case:
    """One workload and the sample of its space that is wanted; `left` are not done yet."""

    workload: Workload
    template: KernelTemplate
    target: Target
    legal: int
    wanted: Sequence[Config]
    left: int = 0
    profiles: dict[Config, Profiled] = field(default_factory=dict)  # of those under way
    ready: deque[tuple[Candidate, BuildResult]] = field(default_factory=deque)
    builds: dict[Config, BuildResult] = field(default_factory=dict)  # of those that were measured and right
    finalists: Sequence[Candidate] = ()
    missing: set[Config] = field(default_factory=set)  # finalists that an earlier call had measured: they are built again
    counts: Counter[str] = field(default_factory=Counter)  # of this call: verified, or the kind of failure
    is_finished: bool = False

    def candidate(self, config: Config) -> Candidate:
        return Candidate(self.workload, self.target, self.template, config)


@dataclass(frozen=True, slots=True)
class Collected:
    """What one call brought. `counts` of a case are those of this call; not complete: the time budget ended it."""

    cases: Sequence[Case]
    dataset: Dataset
    complete: bool
    seconds: float


class Collector:
    """One collection, and the source of its jobs."""

    def __init__(
        self,
        cases: Sequence[Case],
        ledger: Ledger,
        executor: Executor,
        protocol: Protocol,
        observer: Observer,
        budget_s: float | None = None,
    ) -> None:
        self._cases = {case.workload.key: case for case in cases}
        self._ledger, self._executor, self._protocol, self._observer = ledger, executor, protocol, observer
        self._begin = self._saved = time.monotonic()
        self._budget_s = budget_s
        self._to_lower: deque[Candidate] = deque()
        self._to_build: deque[Candidate] = deque()
        self._to_compare: deque[Case] = deque()
        self._codes: Codes = {}
        self._binaries: Codes = {}
        self._ahead = AHEAD if any(case.target.is_gpu for case in cases) else AHEAD_IN_TURN
        self._present: Case | None = None
        self._on_devices = 0  # jobs under way there
        self._device_time = DeviceTime()

    def run(self) -> Collected:
        """However it ends, what was measured is in the file."""
        for case in self._cases.values():
            todo = [candidate for candidate in map(case.candidate, case.wanted) if candidate not in self._ledger]
            case.left = len(todo)
            self._to_lower.extend(todo)
        self._codes, self._binaries = self._ledger.codes(), self._ledger.binaries()
        self._observer.phase("collect", len(self._to_lower))
        try:
            self._work()
        finally:
            self._ledger.save()
        counts = sum((case.counts for case in self._cases.values()), Counter())
        done = f"{counts.pop('verified', 0)} measured and right{failed_text(counts)}; {len(self._ledger)} rows in all"
        self._observer.phase_done(f"{done}{self._busy_text()}")
        complete = all(case.is_finished for case in self._cases.values())
        if not complete:
            self._observer.message("the time budget ended the collection early; the same command goes on from here")
        return Collected(tuple(self._cases.values()), self._ledger.dataset(), complete, time.monotonic() - self._begin)

    def _work(self) -> None:
        for case in self._cases.values():
            if not case.left:
                self._conclude(case)
        with closing(self._executor.stream(self)) as stream:
            for event in stream:
                self._take(event)
                if time.monotonic() - self._saved > SAVE_S:
                    self._ledger.save()
                    self._saved = time.monotonic()
                if self._late() and not self._on_devices:
                    return  # what is still lowered or built would not be measured

    # ---- what is done next

    def next(self, lane: Lane) -> Job | None:
        if self._late():
            return None
        return self._next_preparation() if lane is Lane.PREPARE else self._next_on_device()

    def _next_preparation(self) -> Job | None:
        if sum(len(case.ready) for case in self._cases.values()) >= self._ahead:
            return None
        if self._to_build:
            return Build(self._to_build.popleft())
        return Lower(self._to_lower.popleft()) if self._to_lower else None

    def _next_on_device(self) -> Job | None:
        """As long as there is work of the present workload, whose inputs are on the device, that; else where there is most."""
        if self._to_compare:
            case = self._to_compare.popleft()
            self._goes_to_device()
            built = tuple((c, case.builds[c.config]) for c in case.finalists if c.config in case.builds)
            return Compare(built, self._protocol.careful())
        if self._present is None or not self._present.ready:
            self._present = max(self._cases.values(), key=lambda case: len(case.ready))
        if not self._present.ready:
            self._present = None
            return None
        self._goes_to_device()
        return Measure(*self._present.ready.popleft(), self._protocol)

    def _goes_to_device(self) -> None:
        self._on_devices += 1
        self._device_time.began()

    # ---- what came of it

    def _take(self, event: Event) -> None:
        match event:
            case Lowered(Lower(candidate), outcome):
                self._lowered(self._case_of(candidate), candidate, outcome)
            case Built(Build(candidate), result):
                case = self._case_of(candidate)
                if candidate.config in case.missing:
                    self._built_again(case, candidate, result)
                else:
                    self._built(case, candidate, result)
            case Measured(job, measurement, seconds):
                self._leaves_device(seconds)
                self._measured(self._case_of(job.candidate), job, measurement)
            case Compared(job, found, seconds):
                self._leaves_device(seconds)
                self._compared(self._case_of(job.finalists[0][0]), job, found)

    def _leaves_device(self, seconds: float) -> None:
        self._on_devices -= 1
        self._device_time.took(seconds)

    def _case_of(self, candidate: Candidate) -> Case:
        return self._cases[candidate.workload.key]

    def _lowered(self, case: Case, candidate: Candidate, outcome: Profiled | Failure) -> None:
        if isinstance(outcome, Failure):
            self._failed(case, candidate, outcome)
            return
        case.profiles[candidate.config] = outcome
        first = self._codes.setdefault((case.workload.key, outcome.fingerprint), candidate.config)
        if first == candidate.config:
            self._to_build.append(candidate)
        else:
            self._failed(case, candidate, Failure(FailureKind.DUPLICATE, f"generates the same device code as {first}"))

    def _built(self, case: Case, candidate: Candidate, result: BuildResult) -> None:
        failure = result.failure
        if failure is None and result.binary:
            first = self._binaries.setdefault((case.workload.key, result.binary), candidate.config)
            if first != candidate.config:
                failure = Failure(FailureKind.DUPLICATE, f"builds to the same binary as {first}")
        if failure is None:
            case.ready.append((candidate, result))
        else:
            self._failed(case, candidate, failure, result)

    def _failed(self, case: Case, candidate: Candidate, failure: Failure, build: BuildResult | None = None) -> None:
        self._ledger.failed(candidate, failure, case.profiles.pop(candidate.config, None), build)
        self._done(case, failure.kind.value)

    def _measured(self, case: Case, job: Measure, measurement: Measurement) -> None:
        config = job.candidate.config
        self._ledger.measured(job.candidate, case.profiles.pop(config), job.build, measurement)
        if not measurement.failure:
            case.builds[config] = job.build
        self._done(case, measurement.failure.kind.value if measurement.failure else "verified")

    def _done(self, case: Case, outcome: str) -> None:
        case.left -= 1
        case.counts[outcome] += 1
        self._observer.advanced()
        if not case.left:
            self._conclude(case)

    # ---- the end of a case

    def _conclude(self, case: Case) -> None:
        """All of its candidates are done: the fastest are compared with the vendor's implementations, unless they were."""
        if self._ledger.is_compared(case.workload, case.target.name):
            self._finish(case)
            return
        configs = self._ledger.fastest(case.workload, case.target.name, case.template.version, FINALISTS)
        case.finalists = [case.candidate(config) for config in configs]
        case.missing = {config for config in configs if config not in case.builds}
        self._to_build.extendleft(candidate for candidate in case.finalists if candidate.config in case.missing)
        self._compare_if_built(case)

    def _built_again(self, case: Case, candidate: Candidate, result: BuildResult) -> None:
        case.missing.discard(candidate.config)
        if result.artifact:
            case.builds[candidate.config] = result
        self._compare_if_built(case)

    def _compare_if_built(self, case: Case) -> None:
        if case.missing:
            return
        if any(candidate.config in case.builds for candidate in case.finalists):
            self._to_compare.append(case)
        else:
            self._finish(case, "no vendor time: there is no kernel to compare with")

    def _compared(self, case: Case, job: Compare, found: Comparison | Failure) -> None:
        if isinstance(found, Failure):
            self._finish(case, f"no vendor time: {found.message}")
            return
        self._ledger.compared([candidate for candidate, _ in job.finalists], found.measurements, found.baselines)
        times = ", ".join(f"{b.name} {b.latency_us:.4g} us" for b in found.baselines) or "no vendor library is here"
        self._finish(case, "; ".join([times, *found.notes]))

    def _finish(self, case: Case, vendor: str = "") -> None:
        """Say what there is. `vendor`: a line on what the vendor's implementations take; nothing where an earlier call said it."""
        case.is_finished = True
        case.builds.clear()
        if not case.counts and not vendor:
            return  # an earlier call had done all
        fastest = self._ledger.fastest_us(case.workload, case.target.name)
        done = f"{case.counts['verified']} of {sum(case.counts.values())} measured and right{failed_text(case.counts)}"
        parts = [done] if case.counts else []
        parts += [f"fastest {f'{fastest:.4g} us' if fastest else 'none'}", *([vendor] if vendor else [])]
        self._observer.message(f"{case.workload.label}: {'; '.join(parts)}")

    def _busy_text(self) -> str:
        return f"; {self._device_time.text(self._executor.width(Lane.DEVICE))}" if self._device_time.count else ""

    def _late(self) -> bool:
        return self._budget_s is not None and time.monotonic() - self._begin > self._budget_s


def failed_text(counts: Counter[str]) -> str:
    """`, 3 build_error, 2 duplicate`; nothing where all went well."""
    return "".join(f", {count} {kind}" for kind, count in counts.most_common() if kind != "verified")
