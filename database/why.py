"""Why a question is answered from the database or not: what it holds for a context, and which part of the key is another one."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Connection, func, select

from ..session import NO_PART_OF_CODE, NO_PART_OF_TIME, Context, State
from ..trial import Status
from . import schema
from .checks import clean
from .layers import LayeredStore
from .rows import Place, place_of
from .store import Store
from .untrusted import MARK

MOST_NEAR = 3
_MOST_LOOKED_AT = 2000  # contexts of one operator

# what it means that a part of the key is another one
MEANINGS = {
    "workload": "another problem: only kept profiles and dispatch learn from it",
    "template": "another kernel: nothing of it holds",
    "template_version": "its code changed: nothing that was lowered, built or measured holds",
    "open": "a kernel with other sizes open at run time is another kernel: nothing of it holds",
    "arch": "code for another architecture: nothing of it holds",
    "target": "predictions are made anew, builds and measurements hold where the architecture and the device are the same",
    "target_fingerprint": "the target's figures changed: predictions are made anew, builds and measurements hold",
    "model": "the model changed: predictions are made anew, builds and measurements hold",
    "device": "times were taken on another device: measured anew, builds and predictions hold",
    "protocol": "times were taken under other conditions: measured anew, builds, predictions and wrong results hold",
    "space": "the session chose among other configs: it is no answer, what it learned of single configs holds",
    MARK: "it was imported from strangers: shown, and never re-used",
}
_CODE = "it can change the generated code: nothing of it holds"
_TIME = "it can change times: measured anew, builds and predictions hold"
_BESIDE = "neither code nor times depend on it: all facts hold, only the session as a whole is no answer"
# how far a part lies from today's question: the least sum is the nearest
_WEIGHTS = {"workload": 100, "template": 50, "arch": 40, "open": 30, "template_version": 20, MARK: 15, "device": 10, "target": 8}


@dataclass(frozen=True, slots=True)
class Difference:
    """A part of the key that is another one. `meaning` says what follows from it."""

    part: str  # as `Context` names it, or the name of a piece of software
    recorded: str
    now: str
    meaning: str


@dataclass(frozen=True, slots=True)
class Seen:
    """A context in which sessions were recorded, by its latest one. `layer` names the database."""

    layer: str
    session_id: int
    state: State
    effort: str
    started_at: datetime
    verified: int  # trials of that session
    differences: tuple[Difference, ...]


@dataclass(frozen=True, slots=True)
class Holding:
    """Of how many candidates something recorded holds in the context, whichever session it is of."""

    predictions: int
    builds: int
    measurements: int
    failures: int


@dataclass(frozen=True, slots=True)
class Why:
    """`answers` are the complete sessions of this very context, latest first; `unfinished` others of it; `near` contexts that
    differ, the nearest first."""

    context: Context
    answers: tuple[Seen, ...]
    unfinished: tuple[Seen, ...]
    near: tuple[Seen, ...]
    holds: Holding


def why(store: Store, context: Context, count: int = MOST_NEAR) -> Why:
    """What `store`, and the layers below it, have for `context`."""
    place, _ = place_of(context)
    stores = (store, *store.layers) if isinstance(store, LayeredStore) else (store,)
    seen = [found for each in stores for found in each.database.read(partial(_seen, layer=each.name, place=place))]
    same = [found for found, weight in seen if not weight]
    ordered = sorted(((weight, -found.session_id, found) for found, weight in seen if weight), key=lambda entry: entry[:2])
    # of other workloads the nearest will do: there is always one
    near = [entry for turn, entry in enumerate(ordered) if not turn or entry[0] < _WEIGHTS["workload"]]
    return Why(
        context=context,
        answers=tuple(found for found in same if found.state is State.COMPLETE),
        unfinished=tuple(found for found in same if found.state is not State.COMPLETE),
        near=tuple(found for _, _, found in near[:count]),
        holds=_holding(store, context),
    )


def _holding(store: Store, context: Context) -> Holding:
    records = store.recall(context).values()
    return Holding(
        predictions=sum(record.prediction is not None for record in records),
        builds=sum(record.build is not None and record.build.artifact is not None for record in records),
        measurements=sum(record.status in (Status.MEASURED, Status.VERIFIED) for record in records),
        failures=sum(record.status is Status.FAILED for record in records),
    )


def _seen(connection: Connection, *, layer: str, place: Place) -> list[tuple[Seen, int]]:
    """The latest session of each context and effort of the operator, and how far its context lies from `place`."""
    sessions, trials = schema.sessions.c, schema.trials.c
    latest = (
        select(func.max(sessions.id).label("id"))
        .join_from(schema.sessions, schema.workloads)
        .where(schema.workloads.c.operator == clean(place.context.workload.operator))
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
        .order_by((sessions.workload_id == place.workload_id).desc(), sessions.id.desc())
        .limit(_MOST_LOOKED_AT)
    )
    found = []
    for row in connection.execute(statement):
        verified = select(func.count()).where(trials.session_id == row.id, trials.status == Status.VERIFIED.value)
        differences = tuple(_differences(row, place.context))
        weight = sum(_WEIGHTS.get(difference.part, 1) for difference in differences)
        seen = Seen(
            layer=layer,
            session_id=row.id,
            state=State(row.state),
            effort=row.effort,
            started_at=row.started_at,
            verified=connection.execute(verified).scalar_one() if weight < _WEIGHTS["workload"] else 0,
            differences=differences,
        )
        found.append((seen, weight))
    return found


def _differences(row: Any, context: Context) -> Iterator[Difference]:
    now = {
        "workload": context.workload.key,
        "template": context.template,
        "template_version": context.template_version,
        "open": ",".join(context.open),
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
            continue  # of another one
        if recorded != clean(value):
            found = True
            yield Difference(part, recorded, value, MEANINGS[part])
    for name in sorted({*row.versions, *context.software}):
        recorded, today = row.versions.get(name, ""), context.software.get(name, "")
        if recorded != today:
            found = True
            yield Difference(name, recorded, today, _meaning_of(name))
    if not found and row.context_key != context.key:
        # its hash is in the key alone
        yield Difference("space", "another one", context.space, MEANINGS["space"])


def _meaning_of(software: str) -> str:
    if software == MARK:
        return MEANINGS[MARK]
    return _BESIDE if software in NO_PART_OF_TIME else _TIME if software in NO_PART_OF_CODE else _CODE
