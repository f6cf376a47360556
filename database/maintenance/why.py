"""Why a tuning call is answered from the database or not: `tilesight db why`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, func, select

from ...records.session import SOFTWARE_NOT_IN_CODE, SOFTWARE_NOT_IN_TIME, Context, SessionState
from ...records.trial import Status
from ..engine.text_checks import clean
from ..exchange.untrusted import MARK
from ..layers import LayeredStore
from ..schema import tables as schema
from ..shipped_plans import ShippedPlan
from ..store import Store
from ..tables.rows import ContextIds, context_rows
from ..tables.trial_rows import sound

MOST_NEAR = 3
_MOST_LOOKED_AT = 2000  # sessions of one operator

# consequence of a difference in each part of a context
MEANINGS = {
    "workload": "another problem: only cached profiles and dispatch use it",
    "template": "another kernel: nothing of it holds",
    "template_version": "its code changed: nothing that was lowered, built or measured holds",
    "dynamic": "a kernel that takes other sizes at run time is another kernel: nothing of it holds",
    "arch": "code for another architecture: nothing of it holds",
    "target": "predictions are made anew, builds and measurements hold where the architecture and the device "
    "are the same",
    "target_fingerprint": "the target's figures changed: predictions are made anew, builds and measurements "
    "hold",
    "model": "the model changed: predictions are made anew, builds and measurements hold",
    "device": "times were taken on another device: measured anew, builds and predictions hold",
    "protocol": "times were taken under other conditions: measured anew, builds, predictions and wrong "
    "results hold",
    "space": "the session chose among other configs: it is no answer, what it learned of single configs "
    "holds",
    MARK: "it was imported without trust: shown, and never re-used",
}
_CODE = "it can change the generated code: nothing of it holds"
_TIME = "it can change times: measured anew, builds and predictions hold"
_BESIDE = "neither code nor times depend on it: all facts hold, only the session as a whole is no answer"
# weights of differing parts: the context with the least sum is the nearest
_WEIGHTS = {
    "workload": 100,
    "template": 50,
    "arch": 40,
    "dynamic": 30,
    "template_version": 20,
    MARK: 15,
    "device": 10,
    "target": 8,
}
# parts that a recheck keeps; other differences are those of software
_NOT_OF_SOFTWARE = frozenset({"workload", "template", "dynamic", "arch", "device", "protocol", MARK})


@dataclass(frozen=True, slots=True)
class KeyDifference:
    """A differing part of the context. `meaning` tells what follows from it."""

    part: str  # field of `Context`, or name of a software version
    recorded: str
    now: str
    meaning: str


@dataclass(frozen=True, slots=True)
class RecordedContext:
    """A recorded context, by its latest session. `layer` names the database."""

    layer: str
    session_id: int
    state: SessionState
    effort: str
    started_at: datetime
    verified: int  # number of verified trials of that session
    differences: tuple[KeyDifference, ...]


@dataclass(frozen=True, slots=True)
class Holding:
    """For how many candidates a recorded result holds in the context."""

    predictions: int
    builds: int
    measurements: int
    failures: int


@dataclass(frozen=True, slots=True)
class ContextReport:
    """`answers` are complete sessions of the context, latest first; `unfinished` its other sessions; `near`
    differing contexts, nearest first; `plan` ships with TileSight and covers the workload."""

    context: Context
    answers: tuple[RecordedContext, ...]
    unfinished: tuple[RecordedContext, ...]
    near: tuple[RecordedContext, ...]
    holds: Holding
    plan: ShippedPlan | None = None

    @property
    def is_due_for_recheck(self) -> bool:
        """Whether times of the workload are recorded for another version of the software alone."""
        if self.answers or self.holds.measurements:
            return False
        return any(
            seen.verified and not _NOT_OF_SOFTWARE.intersection(d.part for d in seen.differences)
            for seen in self.near
        )


def why(store: Store, context: Context, count: int = MOST_NEAR) -> ContextReport:
    """What `store` and the layers below it have recorded for `context`."""
    ids, _ = context_rows(context)
    stores = (store, *store.layers) if isinstance(store, LayeredStore) else (store,)
    seen = [
        found for each in stores for found in each.database.read(partial(_seen, layer=each.name, ids=ids))
    ]
    same = [found for found, weight in seen if not weight]
    ordered = sorted(
        ((weight, -found.session_id, found) for found, weight in seen if weight), key=lambda entry: entry[:2]
    )
    # of the contexts of other workloads only the nearest is shown
    near = [entry for turn, entry in enumerate(ordered) if not turn or entry[0] < _WEIGHTS["workload"]]
    return ContextReport(
        context=context,
        answers=tuple(found for found in same if found.state is SessionState.COMPLETE),
        unfinished=tuple(found for found in same if found.state is not SessionState.COMPLETE),
        near=tuple(found for _, _, found in near[:count]),
        holds=_holding(store, context),
        plan=_plan(store, context),
    )


def _plan(store: Store, context: Context) -> ShippedPlan | None:
    archive = store.shipped.plans if isinstance(store, LayeredStore) else None
    found = (plan for plan in (archive.plans if archive else ()) if plan.fits(context))
    return next((plan for plan in found if plan.covers(context.workload)), None)


def _holding(store: Store, context: Context) -> Holding:
    records = store.recall(context).values()
    return Holding(
        predictions=sum(record.prediction is not None for record in records),
        builds=sum(record.build is not None and record.build.artifact is not None for record in records),
        measurements=sum(record.status in (Status.MEASURED, Status.VERIFIED) for record in records),
        failures=sum(record.status is Status.FAILED for record in records),
    )


def _seen(connection: Connection, *, layer: str, ids: ContextIds) -> list[tuple[RecordedContext, int]]:
    """The latest session of each context and effort of the operator, with the weight of its differences from
    `ids`."""
    sessions = schema.sessions.c
    latest = (
        select(func.max(sessions.id).label("id"))
        .join_from(schema.sessions, schema.workloads)
        .where(schema.workloads.c.operator == clean(ids.context.workload.operator))
        .group_by(sessions.context_key, sessions.effort, sessions.state)
    )
    statement = (
        select(
            schema.sessions,
            schema.workloads.c.key.label("workload"),
            schema.templates.c.name.label("template"),
            schema.templates.c.version.label("template_version"),
            schema.targets.c.name.label("target"),
            schema.targets.c.fingerprint.label("target_fingerprint"),
            schema.targets.c.arch,
            schema.environments.c.device,
            schema.software.c.versions,
        )
        .select_from(schema.sessions)
        .join(schema.workloads)
        .join(schema.templates)
        .join(schema.targets)
        .join(schema.environments, schema.environments.c.id == sessions.environment_id)
        .join(schema.software)
        .where(sessions.id.in_(latest))
        .order_by((sessions.workload_id == ids.workload_id).desc(), sessions.id.desc())
        .limit(_MOST_LOOKED_AT)
    )
    found = []
    for row in connection.execute(statement):
        with sound(f"session {row.id}"):
            found.append(_context_of(connection, layer, row, ids.context))
    return found


def _context_of(
    connection: Connection, layer: str, row: Any, context: Context
) -> tuple[RecordedContext, int]:
    """A session, and the weight of its differences from `context`."""
    differences = tuple(_differences(row, context))
    weight = sum(_WEIGHTS.get(difference.part, 1) for difference in differences)
    trials = schema.trials.c
    verified = select(func.count()).where(trials.session_id == row.id, trials.status == Status.VERIFIED.value)
    seen = RecordedContext(
        layer=layer,
        session_id=row.id,
        state=SessionState(row.state),
        effort=row.effort,
        started_at=row.started_at,
        verified=connection.execute(verified).scalar_one() if weight < _WEIGHTS["workload"] else 0,
        differences=differences,
    )
    return seen, weight


def _differences(row: Any, context: Context) -> Iterator[KeyDifference]:
    now = {
        "workload": context.workload.key,
        "template": context.template,
        "template_version": context.template_version,
        "dynamic": ",".join(context.dynamic),
        "arch": context.arch,
        "target": context.target,
        "target_fingerprint": context.target_fingerprint,
        "model": context.model,
        "device": context.device,
        "protocol": context.protocol,
    }
    found = False
    for part, value in now.items():
        recorded = getattr(row, part)
        if part == "template_version" and row.template != clean(context.template):
            continue  # a version of another template
        if recorded != clean(value):
            found = True
            yield KeyDifference(part, recorded, value, MEANINGS[part])
    for name in sorted({*row.versions, *context.software}):
        recorded, today = row.versions.get(name, ""), context.software.get(name, "")
        if recorded != today:
            found = True
            yield KeyDifference(name, recorded, today, _meaning_of(name))
    if not found and row.context_key != context.key:
        # only the context key depends on it
        yield KeyDifference("space", "another one", context.space, MEANINGS["space"])


def _meaning_of(software: str) -> str:
    if software == MARK:
        return MEANINGS[MARK]
    return (
        _BESIDE if software in SOFTWARE_NOT_IN_TIME else _TIME if software in SOFTWARE_NOT_IN_CODE else _CODE
    )
