"""Tuning sessions in the database: begun, finished, found again."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, func, select, update

from ..errors import DatabaseError, InputError
from ..session import Baseline, Context, Decision, Effort, SessionResult, State, ranked
from ..space import Census, Config
from . import owner, schema
from .checks import clean, refuse_unless_finite
from .rows import Place, content_id, now
from .trials import session_trials, sound

Option = str | int | float | bool | None

_COLUMNS = schema.sessions.c


def options_key(options: Mapping[str, Option]) -> str:
    """Equal for equal options, in whatever order. Raises `InputError` for NaN."""
    refuse_unless_finite("session", {"options": options})
    return f"{content_id(dict(sorted(options.items()))):016x}"


def new_session_id() -> int:
    """Ordered by time, and below 2**53: JSON readers keep whole numbers no further."""
    return (time.time_ns() // 1_000_000) << 11 | secrets.randbits(11)


def session_row(
    place: Place, effort: Effort, seed: int, options: Mapping[str, Option], census: Census, flops: int, min_bytes: int
) -> dict[str, Any]:
    counted = {"size": census.size, "legal": census.legal, "rejected": census.rejected}
    refuse_unless_finite("session", {"flops": flops, "min_bytes": min_bytes, "census": counted})
    if not -(2**63) <= seed < 2**63:
        raise InputError(f"seed={seed} must fit into 64 bits to be recorded; take a smaller one")
    return {
        "id": new_session_id(),
        "context_key": place.context.key,
        "template_id": place.template_id,
        "workload_id": place.workload_id,
        "target_id": place.target_id,
        "environment_id": place.environment_id,
        "model": clean(place.context.model),
        "protocol": clean(place.context.protocol),
        "effort": effort.value,
        "seed": seed,
        "options": dict(options),
        "options_key": options_key(options),
        "state": State.RUNNING.value,
        "owner": owner.this_process(),
        "started_at": now(),
        "finished_at": None,
        "seconds": 0.0,
        "flops": float(flops),
        "min_bytes": float(min_bytes),
        "census": {**counted, "rejected": dict(census.rejected)},
        "counts": {},
        "messages": [],
        "decision": None,
        "winner_id": None,
        "open": place.open,
        "shape_family": place.shape_family,
        "shape_code": place.shape_code,
    }


def add(connection: Connection, insert: Any, row: dict[str, Any]) -> None:
    """Insert a session. Its id is above those of all that are there, also where the clock was set back since."""
    added = 0
    while not added:  # another process may begin one with this id at this moment
        last = connection.execute(select(func.max(_COLUMNS.id))).scalar() or 0
        if row["id"] <= last:
            row["id"] = last + 1 + secrets.randbits(11)
        added = connection.execute(insert.on_conflict_do_nothing(index_elements=["id"]), row).rowcount


def context_key(connection: Connection, session_id: int) -> str:
    """The context that a session was begun in; until the transaction ends, no other process writes of that session. Raises
    `DatabaseError` for a session that is not here."""
    held = select(_COLUMNS.context_key).where(_COLUMNS.id == session_id).with_for_update()
    found = connection.execute(held).scalar() if 0 <= session_id < 2**63 else None
    if found is None:
        raise DatabaseError(f"session {session_id} is not in this database; begin one, or open the database that it was begun in")
    return str(found)


def finish(
    connection: Connection, session_id: int, state: State, messages: Iterable[str], seconds: float, decision: Decision | None
) -> None:
    decided = {} if decision is None else {"winner": decision.winner, "tied": decision.tied}
    refuse_unless_finite(f"session {session_id}", {"seconds": seconds, **decided})
    context_key(connection, session_id)
    winner_id = None if decision is None else _winner_id(connection, session_id, decision)
    status = schema.trials.c.status
    counts = connection.execute(
        select(status, func.count()).where(schema.trials.c.session_id == session_id).group_by(status).order_by(status)
    )
    connection.execute(
        update(schema.sessions)
        .where(_COLUMNS.id == session_id)
        .values(
            state=state.value,
            finished_at=now(),
            seconds=float(seconds),
            messages=list(messages),
            counts={str(name): int(count) for name, count in counts},
            decision=None if decision is None else _stored(decision),
            winner_id=winner_id,
        )
    )


def find_complete(connection: Connection, context: Context, effort: Effort, key: str) -> SessionResult | None:
    """The latest complete session of the same context, effort and options, with its trials best first."""
    row = connection.execute(_same(context, effort, key).where(_COLUMNS.state == State.COMPLETE.value)).first()
    if row is None:
        return None
    stored = schema.baselines.c
    baselines = connection.execute(select(stored.name, stored.samples_us).where(stored.session_id == row.id).order_by(stored.position))
    with sound(f"session {row.id}"):
        return SessionResult(
            context=context,
            effort=effort,
            state=State.COMPLETE,
            census=Census(row.census["size"], row.census["legal"], row.census["rejected"]),
            trials=ranked(session_trials(connection, row.id), None if row.decision is None else _decision(row.decision)),
            baselines=tuple(Baseline(name, tuple(samples)) for name, samples in baselines),
            flops=int(row.flops),
            min_bytes=int(row.min_bytes),
            seconds=row.seconds,
            from_database=True,
            messages=tuple(row.messages),
            decision=None if row.decision is None else _decision(row.decision),
        )


def take_over(connection: Connection, context: Context, effort: Effort, key: str) -> int | None:
    """The latest unfinished session of the same context, effort and options that nobody runs; from now on this process does.

    A session whose process died stays `running` until somebody looks: here it is marked as interrupted. One that runs
    in a living process, or on another host where nobody can tell, is left alone. Nothing is lost by that: whatever it
    recorded is recalled by every later session, whether that takes it over or begins anew.
    """
    # held, so that of several processes that look at once only one finds it unfinished
    unfinished = connection.execute(_same(context, effort, key).where(_COLUMNS.state != State.COMPLETE.value).with_for_update()).all()
    taken = None
    for row in unfinished:  # latest first
        if row.state == State.RUNNING.value and owner.is_alive(row.owner):
            continue
        if taken is None:
            taken = int(row.id)
            changes = {"state": State.RUNNING.value, "owner": owner.this_process(), "finished_at": None}
        else:
            changes = {"state": State.INTERRUPTED.value}
        connection.execute(update(schema.sessions).where(_COLUMNS.id == row.id).values(changes))
    return taken


def _winner_id(connection: Connection, session_id: int, decision: Decision) -> int:
    candidates, trials = schema.candidates.c, schema.trials.c
    statement = (
        select(candidates.id)
        .join_from(schema.trials, schema.candidates)
        .where(trials.session_id == session_id, candidates.config == clean(decision.winner.key))
    )
    found = connection.execute(statement).scalar()
    if found is None:
        raise InputError(
            f"session {session_id}: its winner '{decision.winner}' is no trial of it; record it before the session is finished"
        )
    return int(found)


def _stored(decision: Decision) -> dict[str, Any]:
    return {"winner": dict(decision.winner), "tied": [dict(config) for config in decision.tied], "reason": decision.reason}


def _decision(stored: Any) -> Decision:
    return Decision(Config(stored["winner"]), tuple(Config(config) for config in stored["tied"]), stored["reason"])


def _same(context: Context, effort: Effort, key: str) -> Any:
    """Sessions of this context, effort and options, latest first."""
    return (
        select(schema.sessions)
        .where(_COLUMNS.context_key == context.key, _COLUMNS.effort == effort.value, _COLUMNS.options_key == key)
        .order_by(_COLUMNS.id.desc())
    )
