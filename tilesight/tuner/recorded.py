"""Sessions with a memory: answered from the performance database, or begun, resumed and recorded there."""

from __future__ import annotations

import signal
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ..costmodel.model import CostModel
from ..executor.jobs import Executor
from ..problem.template import KernelTemplate
from ..records.recorded_session import RecordedSession
from ..records.session import Baseline, Context, Effort, SessionResult
from ..records.trial import TrialRecord, without_measurement
from ..target.spec import Target
from .loop import Tuner
from .observers import Observer, Observers
from .request import Request

if TYPE_CHECKING:
    from ..database.store import Store


class Recorder(Observer):
    """Writes each trial to the database as it comes: what is finished is never lost."""

    def __init__(self, store: Store, session_id: int, context: Context) -> None:
        self._store, self._id, self._context = store, session_id, context

    def trial(self, record: TrialRecord) -> None:
        with interrupts_deferred():
            self._store.record(self._id, self._context, record)

    def trials(self, records: Sequence[TrialRecord]) -> None:
        with interrupts_deferred():
            self._store.record_many(self._id, self._context, records)

    def baselines(self, found: Sequence[Baseline]) -> None:
        with interrupts_deferred():
            self._store.record_baselines(self._id, found)

    def finished(self, result: SessionResult) -> None:
        with interrupts_deferred():
            self._store.finish(
                self._id, result.state, result.messages, result.seconds, decision=result.decision
            )


def find_answer(store: Store, request: Request) -> SessionResult | None:
    """A complete session that made this effort or a greater one in the same context."""
    efforts = list(Effort)
    enough = efforts[efforts.index(request.effort) :]
    for effort in enough:
        found = store.find_complete(request.context, effort, _options(request))
        if found is not None:
            found = replace(found, context=request.context)
            return described(found, request.template, request.target)
    shipped = store.shipped_session(request.context, enough)
    if shipped is None:
        return None
    result = described(shipped.result, request.template, request.target)
    return replace(result, messages=(_shipped_message(shipped, request.context), *result.messages))


def _shipped_message(session: RecordedSession, here: Context) -> str:
    """Where an answer that ships with TileSight was measured, how old it is, and what is different here."""
    there, started = session.result.context, session.summary.started_at
    days = (datetime.now(UTC) - started.replace(tzinfo=UTC)).days
    differing = [
        f"{name} {there.software.get(name, 'none')} (here {here.software.get(name, 'none')})"
        for name in sorted({*there.software, *here.software})
        if there.software.get(name) != here.software.get(name)
    ]
    how = f"with {', '.join(differing)}" if differing else "with the same software"
    return (
        f"this answer ships with TileSight: measured on {started:%Y-%m-%d}, {days} days ago, on "
        f"{there.device}, {how}; --remeasure (in Python: remeasure=True) measures here"
    )


def run_recorded(
    request: Request,
    store: Store,
    model: CostModel,
    executor: Callable[[], Executor],
    observer: Observer,
    notes: Sequence[str] = (),
    alone: AbstractContextManager[None] | None = None,
) -> SessionResult:
    """Answer `request` from the database, or run it and record it there, going on from whatever is known.

    `executor` is called only where there is work. `notes` say how this machine stands to the request: they
    lead the messages of the result and are not recorded. `alone` is entered while the session runs: it waits
    for an equal session of another process, which may have recorded the answer. Raises what `Tuner.run`
    raises; what was finished by then is recorded.
    """
    for note in notes:
        observer.message(note)
    result = None if request.remeasures else find_answer(store, request)
    if result is None:
        with alone or nullcontext():
            result = find_answer(store, request) if alone and not request.remeasures else None
            result = result or _run(request, store, model, executor(), observer)
    return replace(result, messages=(*notes, *result.messages))


def _run(
    request: Request, store: Store, model: CostModel, executor: Executor, observer: Observer
) -> SessionResult:
    known = store.recall(request.context)
    if request.remeasures:
        known = {
            key: left for key, trial in known.items() if (left := without_measurement(trial)) is not None
        }
    counts = Counter(trial.status.value for trial in known.values())
    if counts:
        observer.message(
            "known from earlier sessions: "
            + ", ".join(f"{count} {status}" for status, count in counts.most_common())
        )
    tuner = Tuner(request, model, executor, observer, known.values())
    session_id = store.find_interrupted(request.context, request.effort, _options(request))
    if session_id is None:
        operator = request.template.operator
        floor = {"flops": operator.flops(request.workload), "min_bytes": operator.min_bytes(request.workload)}
        session_id = store.begin(
            request.context, request.effort, request.seed, _options(request), tuner.space.census(), **floor
        )
    store.record_many(session_id, request.context, known.values())
    tuner.observer = Observers([Recorder(store, session_id, request.context), observer])
    return described(tuner.run(), request.template, request.target)


def described(result: SessionResult, template: KernelTemplate, target: Target) -> SessionResult:
    """The result with what its report needs of its template and target."""
    found = {trial.config: template.reordered(trial.config) for trial in result.trials}
    bases = {config: base[0] for config, base in found.items() if base is not None}
    result, best, context = replace(result, target=target, reordered=bases), result.best, result.context
    if best is None:
        return result
    usage = template.usage(context.workload, target, best.config, context.dynamic)
    return replace(result, arguments=template.arguments(best.config), usage=usage)


def _options(request: Request) -> Mapping[str, str]:
    return {"sampler": request.sampler}


@contextmanager
def interrupts_deferred() -> Iterator[None]:
    """Let Ctrl-C and SIGTERM wait until the end of the block, so that a write is done whole. Only the main
    thread gets them.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []
    # one whose handler is not Python's cannot be set back
    numbers = [n for n in (signal.SIGINT, signal.SIGTERM) if signal.getsignal(n) is not None]
    before = {number: signal.signal(number, lambda got, _frame: pending.append(got)) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if pending:
            signal.raise_signal(pending[0])
