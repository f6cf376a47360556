"""Recorded sessions: a list of them, and one with its candidates."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, Row, func, select

from ...errors import InputError
from ...machine import owner
from ...problem.space import Config
from ...problem.workload import Workload
from ...records.recorded_session import RecordedSession, SessionSummary
from ...records.session import Context, Effort, SessionState
from ..schema import tables as schema
from ..tables.session_rows import stored_result
from ..tables.trial_rows import sound
from .trial_times import trial_times

_S, _T = schema.sessions.c, schema.trials.c


def session_summaries(
    connection: Connection,
    kernel: str | None,
    target: str | None,
    limit: int | None,
    *,
    workload: str | None = None,
    before: int | None = None,
) -> list[SessionSummary]:
    """Sessions, latest first, of the operator or template `kernel`, the target and the workload with a key,
    or of all; only those with ids below `before`.
    """
    statement = with_contexts().order_by(_S.id.desc()).limit(limit)
    if kernel is not None:
        statement = statement.where(
            (schema.workloads.c.operator == kernel) | (schema.templates.c.name == kernel)
        )
    if target is not None:
        statement = statement.where(schema.targets.c.name == target)
    if workload is not None:
        statement = statement.where(schema.workloads.c.key == workload)
    if before is not None:
        statement = statement.where(_S.id < before)
    return [_summary(connection, row) for row in connection.execute(statement).all()]


def recorded_summary(connection: Connection, session_id: int) -> SessionSummary:
    """The session of that id as in a list. Raises `InputError` if there is none."""
    return _summary(connection, _row(connection, session_id))


def recorded_session(connection: Connection, session_id: int) -> RecordedSession:
    """The session of that id with its candidates. Raises `InputError` if there is none."""
    row = _row(connection, session_id)
    summary = _summary(connection, row)
    result = replace(stored_result(connection, row, summary.context), state=summary.state)
    return RecordedSession(summary, result, trial_times(connection, session_id))


def _row(connection: Connection, session_id: int) -> Row[Any]:
    found = (
        connection.execute(with_contexts().where(_S.id == session_id)) if 0 <= session_id < 2**63 else None
    )
    row = None if found is None else found.first()
    if row is None:
        raise InputError(
            f"session {session_id} is not in this database; `tilesight sessions` lists the sessions"
        )
    return row


def with_contexts() -> Any:
    """A statement that selects sessions with the facts of their contexts."""
    t, w, g = schema.templates.c, schema.workloads.c, schema.targets.c
    return (
        select(
            schema.sessions,
            t.name.label("template"),
            t.version.label("template_version"),
            *(w.operator, w.dtype, w.dims, w.attrs, w.name.label("shape")),
            *(g.name.label("target"), g.fingerprint, g.arch),
            schema.environments.c.device,
            schema.software.c.versions,
        )
        .join_from(schema.sessions, schema.templates)
        .join(schema.workloads, _S.workload_id == schema.workloads.c.id)
        .join(schema.targets, _S.target_id == schema.targets.c.id)
        .join(schema.environments, _S.environment_id == schema.environments.c.id)
        .join(schema.software, schema.environments.c.software_id == schema.software.c.id)
    )


def _summary(connection: Connection, row: Row[Any]) -> SessionSummary:
    with sound(f"session {row.id}"):
        state = SessionState(row.state)
        if state is SessionState.RUNNING and not owner.is_alive(row.owner):
            state = SessionState.INTERRUPTED  # its process died
        winner, winner_us, is_measured = _winner(connection, row)
        return SessionSummary(
            id=row.id,
            context_key=row.context_key,
            context=context_of(row),
            effort=Effort(row.effort),
            seed=row.seed,
            state=state,
            started_at=row.started_at,
            finished_at=row.finished_at,
            seconds=row.seconds,
            counts=row.counts or _counts(connection, row.id),
            winner=winner,
            winner_us=winner_us,
            is_measured=is_measured,
        )


_TEXTS = ("template", "template_version", "operator", "dtype", "target", "fingerprint", "arch", "model")


def _check_types(row: Row[Any]) -> None:
    """Raise `TypeError` for a value of another type, which SQLite may hold."""
    for name in (*_TEXTS, "device", "protocol", "dynamic"):
        if not isinstance(getattr(row, name), str):
            raise TypeError(f"{name} must be a text")
    if not isinstance(row.versions, dict) or not all(isinstance(v, str) for v in row.versions.values()):
        raise TypeError("versions must be texts by name")


def context_of(row: Row[Any]) -> Context:
    """The context of a row of `with_contexts`, without its search space, of which only a hash is kept."""
    _check_types(row)
    return Context(
        template=row.template,
        template_version=row.template_version,
        workload=Workload(row.operator, row.dims, row.dtype, row.attrs, row.shape),
        target=row.target,
        target_fingerprint=row.fingerprint,
        arch=row.arch,
        model=row.model,
        space="",
        software=row.versions,
        device=row.device,
        protocol=row.protocol,
        dynamic=tuple(row.dynamic.split(",")) if row.dynamic else (),
    )


def _counts(connection: Connection, session_id: int) -> Mapping[str, int]:
    """Trials by status; a session has its counts at its end only."""
    counted = select(_T.status, func.count()).where(_T.session_id == session_id).group_by(_T.status)
    return {str(status): int(count) for status, count in connection.execute(counted.order_by(_T.status))}


def _winner(connection: Connection, row: Row[Any]) -> tuple[Config | None, float | None, bool]:
    """The winner of a session, its time, and whether that was measured."""
    measured = (
        select(schema.candidates.c.config, _T.measured_us)
        .join_from(schema.trials, schema.candidates)
        .where(_T.session_id == row.id, _T.measured_us.is_not(None))
        .order_by(_T.measured_us)
        .limit(1)
    )
    decided = measured.where(_T.candidate_id == (row.winner_id or 0))
    p = schema.predictions.c
    predicted = (
        select(schema.candidates.c.config, p.latency_us)
        .join_from(schema.trials, schema.candidates)
        .join(schema.predictions, _T.prediction_id == p.id)
        .where(_T.session_id == row.id, _T.status != "failed")
        .order_by(func.coalesce(p.ranking_us, p.latency_us))
        .limit(1)
    )
    for statement, is_measured in ((decided, True), (measured, True), (predicted, False)):
        found = connection.execute(statement).first()
        if found is not None:
            return Config(json.loads(found[0])), float(found[1]), is_measured
    return None, None, False
