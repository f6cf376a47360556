"""The collector: measures a sample of each workload's space, every candidate a row, failures included.

    sample -> lower, profile, build (a thread ahead) -> measure -> compare with the vendor -> row

The candidates of all workloads go through one stream of workers, so that the device need not wait between them. On a
processor nothing else runs while it measures: there a workload's candidates are prepared first.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from .ahead import Ahead
from .candidate import Candidate
from .errors import Failure
from .executor import Executor
from .ledger import Ledger
from .observers import Observer
from .preparing import Kept, Prepared
from .space import Config
from .target import Target
from .template import KernelTemplate
from .trial import BuildResult
from .workload import Workload

if TYPE_CHECKING:
    from .dataset import Dataset

FINALISTS = 3  # timed again beside the vendor's implementations
SAVE_S = 60.0  # between two writings of the file
PREPARED_AHEAD = 64  # built candidates that wait for the device, and as many again that wait to be taken


class Preparing(Protocol):
    """What `preparing.Preparer` does."""

    def prepare(self, candidates: Iterable[Candidate], kept: Kept) -> Iterator[Prepared]: ...


@dataclass
class Case:
    """One workload and the sample of its space that is wanted; `left` are not done yet."""

    workload: Workload
    template: KernelTemplate
    target: Target
    legal: int
    wanted: Sequence[Config]
    left: int = 0
    ready: deque[Prepared] = field(default_factory=deque)
    builds: dict[Config, BuildResult] = field(default_factory=dict)
    counts: Counter[str] = field(default_factory=Counter)  # of this call: verified, or the kind of failure
    is_finished: bool = False

    def candidates(self) -> list[Candidate]:
        return [Candidate(self.workload, self.target, self.template, config) for config in self.wanted]


@dataclass(frozen=True, slots=True)
class Collected:
    """What one call brought. `counts` of a case are those of this call; not complete: the time budget ended it."""

    cases: Sequence[Case]
    dataset: Dataset
    complete: bool
    seconds: float


class Collector:
    """One collection. `preparing` opens what lowers and builds: in the thread that uses it, hence a factory."""

    def __init__(
        self,
        cases: Sequence[Case],
        ledger: Ledger,
        executor: Executor,
        preparing: Callable[[], AbstractContextManager[Preparing]],
        observer: Observer,
        budget_s: float | None = None,
    ) -> None:
        self._cases = {case.workload.key: case for case in cases}
        self._ledger, self._executor, self._preparing, self._observer = ledger, executor, preparing, observer
        self._begin = self._saved = time.monotonic()
        self._budget_s = budget_s

    def run(self) -> Collected:
        """However it ends, what was measured is in the file."""
        todo = [c for case in self._cases.values() for c in case.candidates() if c not in self._ledger]
        for case in self._cases.values():
            case.left = sum(candidate.workload == case.workload for candidate in todo)
        self._observer.phase("collect", len(todo))
        try:
            self._collect(todo)
        finally:
            self._ledger.save()
        counts = sum((case.counts for case in self._cases.values()), Counter())
        self._observer.phase_done(f"{counts.pop('verified', 0)} measured and right{failed_text(counts)}; {len(self._ledger)} rows in all")
        complete = all(case.is_finished for case in self._cases.values())
        if not complete:
            self._observer.message("the time budget ended the collection early; the same command goes on from here")
        return Collected(tuple(self._cases.values()), self._ledger.dataset(), complete, time.monotonic() - self._begin)

    def _collect(self, todo: Sequence[Candidate]) -> None:
        kept = self._ledger.kept()
        in_time = (candidate for candidate in todo if not self._late())
        if todo and todo[0].target.is_gpu:
            with Ahead(lambda: self._prepared(in_time, kept), PREPARED_AHEAD) as stream:
                self._measure_from(stream)
        elif todo:
            with self._preparing() as preparing:
                for case in self._cases.values():
                    mine = (c for c in todo if c.workload == case.workload and not self._late())
                    for prepared in preparing.prepare(mine, kept):
                        self._sort_in(prepared)
                    while case.ready and not self._late():
                        self._measure(case)
                    self._finish(case)
        for case in self._cases.values():  # those that had nothing left to measure
            self._finish(case)

    def _prepared(self, candidates: Iterable[Candidate], kept: Kept) -> Iterator[Prepared]:
        with self._preparing() as preparing:
            yield from preparing.prepare(candidates, kept)

    def _measure_from(self, stream: Ahead[Prepared]) -> None:
        """Measure what is ready: as long as there is any of the present workload, whose inputs are on the device, that."""
        present: Case | None = None
        while not self._late():
            ready = sum(len(case.ready) for case in self._cases.values())
            # more than that would be lost work where the budget ends it
            for prepared in stream.take(wait=not ready) if ready < PREPARED_AHEAD else ():
                self._sort_in(prepared)
            if present is None or not present.ready:
                present = max(self._cases.values(), key=lambda case: len(case.ready))
            if present.ready:
                self._measure(present)
            elif stream.is_over:
                return
            for case in self._cases.values():
                self._finish(case)

    def _sort_in(self, prepared: Prepared) -> None:
        case = self._cases[prepared.candidate.workload.key]
        if prepared.failure is None:
            case.ready.append(prepared)
            return
        self._ledger.failed(prepared)
        self._done(case, prepared.failure.kind.value)

    def _measure(self, case: Case) -> None:
        prepared = case.ready.popleft()
        assert prepared.build is not None
        for candidate, measurement in self._executor.measure([(prepared.candidate, prepared.build)]):
            self._ledger.measured(prepared, measurement)
            if not measurement.failure:
                case.builds[candidate.config] = prepared.build
            self._done(case, measurement.failure.kind.value if measurement.failure else "verified")

    def _done(self, case: Case, outcome: str) -> None:
        case.left -= 1
        case.counts[outcome] += 1
        self._observer.advanced()
        if time.monotonic() - self._saved > SAVE_S:
            self._ledger.save()
            self._saved = time.monotonic()

    def _finish(self, case: Case) -> None:
        """Once all of its candidates are done: time the vendor's implementations beside the fastest, and say what there is."""
        if case.is_finished or case.left or self._late():
            return
        case.is_finished = True
        vendor = "" if self._ledger.is_compared(case.workload, case.target.name) else f"; {self._compare(case)}"
        case.builds.clear()
        if not case.counts and not vendor:
            return  # an earlier call had done all
        fastest = self._ledger.fastest_us(case.workload, case.target.name)
        self._observer.message(
            f"{case.workload.label}: {case.counts['verified']} of {sum(case.counts.values())} measured and right"
            f"{failed_text(case.counts)}; fastest {f'{fastest:.4g} us' if fastest else 'none'}{vendor}"
        )

    def _compare(self, case: Case) -> str:
        """A line on what the vendor's implementations take."""
        finalists = self._ledger.fastest(case.workload, case.target.name, case.template.version, FINALISTS)
        candidates = {config: Candidate(case.workload, case.target, case.template, config) for config in finalists}
        missing = [candidate for config, candidate in candidates.items() if config not in case.builds]
        if missing:  # they were measured by an earlier call
            case.builds |= {candidate.config: build for candidate, build in self._executor.build(missing) if build.artifact}
        ready = [config for config in finalists if config in case.builds]
        if not ready:
            return "no vendor time: there is no kernel to compare with"
        found = self._executor.compare([(candidates[config], case.builds[config]) for config in ready])
        if isinstance(found, Failure):
            return f"no vendor time: {found.message}"
        self._ledger.compared(case.workload, case.target.name, ready, found.measurements, found.baselines)
        times = ", ".join(f"{b.name} {b.latency_us:.4g} us" for b in found.baselines) or "no vendor library is here"
        return "; ".join([times, *found.notes])

    def _late(self) -> bool:
        return self._budget_s is not None and time.monotonic() - self._begin > self._budget_s


def failed_text(counts: Counter[str]) -> str:
    """`, 3 build_error, 2 duplicate`; nothing where all went well."""
    return "".join(f", {count} {kind}" for kind, count in counts.most_common() if kind != "verified")
