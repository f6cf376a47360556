"""The loop of a recheck: a source of jobs that prepares the next winners while one is compared.

    predict (from cached profiles) -> build -> compare in turns -> verdict, recorded as a session

Winners are taken in their order. A few are ahead of the device, so that their kernels are built when it is
free. A kernel that several winners share, such as one that takes sizes at run time, is built once.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import TYPE_CHECKING

from ..builder.index_files import kernel_name
from ..costmodel.model import CostModel
from ..errors import Failure, TileSightError
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
)
from ..problem.candidate import Candidate
from ..records.session import Comparison
from ..records.trial import BuildResult
from ..tuner.comparisons import record_comparison
from ..tuner.observers import Observer
from ..tuner.request import Request
from .check import WinnerCheck
from .due import DueWinner, Key
from .result import Rechecked
from .verdict import RecheckOutcome, RecheckVerdict

if TYPE_CHECKING:
    from ..database.store import Store

OPTIONS: Mapping[str, str] = {"made by": "recheck"}  # no request of a tuner has them
AHEAD_PER_BUILDS = 4  # one more winner is prepared for so many builds that run at once
LEFT = RecheckVerdict(RecheckOutcome.LEFT, "there was no time for it; the same command goes on from there")


class RecheckLoop:
    """Rechecks winners, one after another.

    Args:
        winners: What is due, in order.
        make_request: The request of a winner in the present context. May raise `TileSightError`.
        model: Ranks configs.
        executor: Lowers, builds and compares.
        store: Gets a session for each winner.
        observer: Receives progress.
        budget_s: Seconds after which no further job begins; None: no limit.
    """

    def __init__(
        self,
        winners: Sequence[DueWinner],
        make_request: Callable[[DueWinner], Request],
        model: CostModel,
        executor: Executor,
        store: Store,
        observer: Observer,
        budget_s: float | None = None,
    ) -> None:
        self._make_request, self._model, self._executor = make_request, model, executor
        self._store, self._observer = store, observer
        self._waiting = deque(winners)
        self._checks: dict[Key, WinnerCheck] = {}  # begun, without a verdict
        self._built: dict[str, BuildResult] = {}  # by name of the kernel
        self._building: set[str] = set()
        self._found: dict[Key, Rechecked] = {}
        self._order = [winner.key for winner in winners]
        self._ahead = executor.width(Lane.DEVICE) + 1 + executor.width(Lane.PREPARE) // AHEAD_PER_BUILDS
        self._until = None if budget_s is None else time.monotonic() + budget_s

    def run(self) -> list[Rechecked]:
        """Recheck all winners, as far as time allows; in their order."""
        self._observer.phase("recheck", len(self._waiting))
        with closing(self._executor.stream(self)) as stream:
            for event in stream:
                self._take(event)
        for due in [*(check.due for check in self._checks.values()), *self._waiting]:
            self._found[due.key] = Rechecked(due, LEFT)
        found = [self._found[key] for key in self._order]
        decided = sum(one.verdict.outcome.is_decided for one in found)
        self._observer.phase_done(f"{decided} of {len(found)} winners rechecked")
        return found

    # ---- the source of jobs

    def next(self, lane: Lane) -> Job | None:
        """The next job of a lane; None if there is none now, or no time."""
        if self._until is not None and time.monotonic() >= self._until:
            return None
        if lane is Lane.DEVICE:
            return self._next_comparison()
        while True:
            for check in list(self._checks.values()):
                job = self._next_preparation(check)
                if job is not None:
                    return job
                if check.is_ready and not check.finalists():
                    self._close(check, check.not_compared("no kernel builds"))
            if not self._waiting or len(self._checks) >= self._ahead:
                return None
            self._begin(self._waiting.popleft())

    def _begin(self, due: DueWinner) -> None:
        try:
            self._checks[due.key] = WinnerCheck(
                due, self._make_request(due), self._model, self._executor, self._store
            )
        except TileSightError as error:
            self._finish(
                due, RecheckVerdict(RecheckOutcome.REFUSED, f"it cannot be made here any more: {error}")
            )

    def _next_preparation(self, check: WinnerCheck) -> Job | None:
        if check.to_lower:
            config = check.to_lower.popleft()
            check.lowering.add(config)
            return LowerJob(check.candidate(config))
        while check.to_build:
            candidate = check.candidate(check.to_build.popleft())
            name = kernel_name(candidate)
            if name in self._built:
                check.built(name, self._built[name])
                continue
            check.building.add(name)
            if name not in self._building:
                self._building.add(name)
                return BuildJob(candidate)
        return None

    def _next_comparison(self) -> Job | None:
        for check in self._checks.values():
            finalists = check.finalists() if check.is_ready else []
            if finalists:
                check.is_comparing = True
                return CompareJob(tuple(finalists), check.request.protocol.careful(), with_vendor=False)
        return None

    # ---- events

    def _take(self, event: Event) -> None:
        match event:
            case LowerDone(job, outcome):
                self._check_of(job.candidate).lowered(job.candidate.config, outcome)
            case BuildDone(job, result):
                name = kernel_name(job.candidate)
                self._building.discard(name)
                self._built[name] = result
                for check in self._checks.values():
                    if name in check.building:
                        check.built(name, result)
            case CompareDone(job, found):
                check = self._check_of(job.finalists[0][0])
                check.is_comparing = False
                self._compared(check, found)
            case _:
                raise AssertionError(f"unexpected event {event}")

    def _compared(self, check: WinnerCheck, found: Comparison | Failure) -> None:
        if isinstance(found, Failure):
            self._close(check, check.not_compared(f"{found.kind}: {found.message}"))
            return
        if check.spoiled_by(found):
            return  # the others are compared once more
        verdict, records, kept = check.conclude(found)
        request = check.request
        if records:
            record_comparison(
                self._store,
                request.context,
                request.template,
                request.space,
                records,
                kept,
                OPTIONS,
                f"recheck of a recorded winner: {verdict.outcome}: {verdict.reason}",
                is_complete=kept.decision is not None,
            )
        if kept.decision is not None:
            self._store.forget_misses([request.workload.key], request.target.name)
        self._close(check, verdict)

    def _close(self, check: WinnerCheck, verdict: RecheckVerdict) -> None:
        del self._checks[check.due.key]
        self._finish(check.due, verdict)

    def _finish(self, due: DueWinner, verdict: RecheckVerdict) -> None:
        self._found[due.key] = Rechecked(due, verdict)
        self._observer.detail(f"{due.label}: {verdict.outcome}: {verdict.reason}")
        self._observer.advanced()

    def _check_of(self, candidate: Candidate) -> WinnerCheck:
        return self._checks[candidate.workload.key, candidate.dynamic]
