"""Rows of tuning sessions: to begin, finish and find them."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterable, Mapping
from typing import Any

from sqlalchemy import Connection, func, select, update

from ...errors import DatabaseError, InputError
from ...machine import owner
from ...problem.space import Census, Config
from ...records.session import Baseline, Context, Decision, Effort, SessionResult, SessionState, ranked
from ..engine.text_checks import clean, refuse_unless_finite
from ..schema import tables as schema
from .rows import ContextIds, content_id, now
from .trial_rows import session_trials, sound

Option = str | int | float | bool | None

RANDOM_BITS = 11  # lowest bits of a session's id; the others are its time in milliseconds

_COLUMNS = schema.sessions.c
_LAST_MS = 4_102_444_800_000  # 2100-01-01
_DAY_MS = 86_400_000
_FOREIGN_ID = 2**53 - 2**48  # far above the ids of 2100, with room for all that are counted on from there


def options_key(options: Mapping[str, Option]) -> str:
    """A hash that is equal for equal options in any order. Raises `InputError` for NaN."""
    refuse_unless_finite("session", {"options": options})
    return f"{content_id(dict(sorted(options.items()))):016x}"


def new_session_id() -> int:
    """An id that grows with time and is below 2**53, beyond which JSON readers lose digits.

    A clock that stands before 1970 or after 2099 counts as standing there.
    """
    return _clock_ms() << RANDOM_BITS | secrets.randbits(RANDOM_BITS)


def is_plausible(session_id: int) -> bool:
    """Whether an id may be of a session that was begun by now, if clocks differ by a day at the most."""
    return 0 < session_id < _clock_ms() + _DAY_MS << RANDOM_BITS


def _clock_ms() -> int:
    return min(max(time.time_ns() // 1_000_000, 0), _LAST_MS)


def session_row(
    ids: ContextIds,
    effort: Effort,
    seed: int,
    options: Mapping[str, Option],
    census: Census,
    flops: int,
    min_bytes: int,
) -> dict[str, Any]:
    counted = {"size": census.size, "legal": census.legal, "rejected": census.rejected}
    refuse_unless_finite("session", {"flops": flops, "min_bytes": min_bytes, "census": counted})
    if not -(2**63) <= seed < 2**63:
        raise InputError(f"seed={seed} must fit into 64 bits to be recorded; take a smaller one")
    return {
        "id": new_session_id(),
        "context_key": ids.context.key,
        "template_id": ids.template_id,
        "workload_id": ids.workload_id,
        "target_id": ids.target_id,
        "environment_id": ids.environment_id,
        "model": clean(ids.context.model),
        "protocol": clean(ids.context.protocol),
        "effort": effort.value,
        "seed": seed,
        "options": dict(options),
        "options_key": options_key(options),
        "state": SessionState.RUNNING.value,
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
        "dynamic": ids.dynamic,
        "shape_family": ids.shape_family,
    }


def add(connection: Connection, insert: Any, row: dict[str, Any]) -> None:
    """Insert a session, unless an earlier attempt did.

    Its id is above all others, even if the clock was set back.
    """
    same = (
        _COLUMNS[name] == row[name] for name in ("id", "context_key", "owner", "started_at", "options_key")
    )
    if not connection.execute(select(func.count()).where(*same)).scalar_one():
        add_last(connection, insert, row)


def add_last(connection: Connection, insert: Any, row: dict[str, Any]) -> None:
    """Insert a session, with an id above all others; `row` gets the id.

    An id that no clock can make (`_FOREIGN_ID`), of a file that an earlier version imported, does not count.
    """
    added = 0
    while not added:  # another process may insert a session with this id at this moment
        last = (
            connection.execute(select(func.max(_COLUMNS.id)).where(_COLUMNS.id < _FOREIGN_ID)).scalar() or 0
        )
        if row["id"] <= last:
            row["id"] = last + 1 + secrets.randbits(RANDOM_BITS)
        added = connection.execute(insert.on_conflict_do_nothing(index_elements=["id"]), row).rowcount


def context_key(connection: Connection, session_id: int) -> str:
    """The key of a session's context.

    The row is locked until the transaction ends. Raises `DatabaseError` if there is no session with this id.
    """
    locked = select(_COLUMNS.context_key).where(_COLUMNS.id == session_id).with_for_update()
    found = connection.execute(locked).scalar() if 0 <= session_id < 2**63 else None
    if found is None:
        raise DatabaseError(
            f"session {session_id} is not in this database; begin one, or open the database that it was "
            "begun in"
        )
    return str(found)


def finish(
    connection: Connection,
    session_id: int,
    state: SessionState,
    messages: Iterable[str],
    seconds: float,
    decision: Decision | None,
) -> None:
    decided = {} if decision is None else {"winner": decision.winner, "tied": decision.tied}
    refuse_unless_finite(f"session {session_id}", {"seconds": seconds, **decided})
    context_key(connection, session_id)
    winner_id = None if decision is None else _winner_id(connection, session_id, decision)
    status = schema.trials.c.status
    counts = connection.execute(
        select(status, func.count())
        .where(schema.trials.c.session_id == session_id)
        .group_by(status)
        .order_by(status)
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
    """The latest complete session of this context, effort and options, with its trials best first.

    None also if its times are noisy.
    """
    row = connection.execute(
        _same(context, effort, key).where(_COLUMNS.state == SessionState.COMPLETE.value)
    ).first()
    if row is None:
        return None
    found = stored_result(connection, row, context)
    return None if found.is_noisy else found


def stored_result(connection: Connection, row: Any, context: Context) -> SessionResult:
    """The result of the session in `row`, of that context, with its trials best first."""
    stored = schema.baselines.c
    baselines = connection.execute(
        select(stored.name, stored.samples_us).where(stored.session_id == row.id).order_by(stored.position)
    )
    with sound(f"session {row.id}"):
        decision = None if row.decision is None else _decision(row.decision)
        return SessionResult(
            context=context,
            effort=Effort(row.effort),
            state=SessionState(row.state),
            census=Census(row.census["size"], row.census["legal"], row.census["rejected"]),
            trials=ranked(session_trials(connection, row.id), decision),
            baselines=tuple(_baseline(name, samples) for name, samples in baselines),
            flops=int(row.flops),
            min_bytes=int(row.min_bytes),
            seconds=row.seconds,
            from_database=True,
            messages=tuple(row.messages),
            decision=decision,
        )


def _baseline(name: str, samples_us: Any) -> Baseline:
    """Raises `ValueError` for samples that are no times."""
    is_sound = isinstance(samples_us, list) and all(
        isinstance(sample, float | int) and 0 < sample < math.inf for sample in samples_us
    )
    if not is_sound or not samples_us:
        raise ValueError(f"the samples of the baseline {name} are no times")
    return Baseline(name, tuple(samples_us))


def take_over(
    connection: Connection, context: Context, effort: Effort, key: str, taken: set[int]
) -> int | None:
    """Take over the latest session of this context, effort and options that is unfinished and that no process
    runs.

    A session whose process died stays `running` in the database; it is marked as interrupted here. A session
    of a living process is left alone, and so is one of another host, whose processes cannot be looked up. Its
    trials are recalled all the same. `taken` holds the ids that earlier attempts of the same call took over.
    """
    # the rows are locked: of several processes that look for a session at once, only one finds it unfinished
    unfinished = connection.execute(
        _same(context, effort, key).where(_COLUMNS.state != SessionState.COMPLETE.value).with_for_update()
    ).all()
    found = None
    for row in unfinished:  # latest first
        is_own = row.id in taken and row.owner == owner.this_process()
        if row.state == SessionState.RUNNING.value and not is_own and owner.is_alive(row.owner):
            continue
        if found is None:
            found = int(row.id)
            taken.add(found)
            changes = {
                "state": SessionState.RUNNING.value,
                "owner": owner.this_process(),
                "finished_at": None,
            }
        else:
            changes = {"state": SessionState.INTERRUPTED.value}
        connection.execute(update(schema.sessions).where(_COLUMNS.id == row.id).values(changes))
    return found


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
            f"session {session_id}: its winner '{decision.winner}' is no trial of it; record it before the "
            "session is finished"
        )
    return int(found)


def _stored(decision: Decision) -> dict[str, Any]:
    return {
        "winner": dict(decision.winner),
        "tied": [dict(config) for config in decision.tied],
        "reason": decision.reason,
    }


def _decision(stored: Any) -> Decision:
    return Decision(
        Config(stored["winner"]), tuple(Config(config) for config in stored["tied"]), stored["reason"]
    )


def _same(context: Context, effort: Effort, key: str) -> Any:
    """A statement that selects the sessions of this context, effort and options, latest first."""
    return (
        select(schema.sessions)
        .where(
            _COLUMNS.context_key == context.key, _COLUMNS.effort == effort.value, _COLUMNS.options_key == key
        )
        .order_by(_COLUMNS.id.desc())
    )
