"""Sessions that run: which there are, and how far one has come."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, func, select

from ...machine import owner
from ...records.progress import SessionProgress
from ...records.session import Effort, SessionState
from ...records.trial import Status, TrialRecord
from ..schema import tables as schema
from ..tables.rows import now
from ..tables.trial_rows import TrialRow, load, sound
from .sessions import recorded_summary

_RANKS = {Status.VERIFIED.value: 0, Status.MEASURED.value: 1, Status.NOISY.value: 2}
_S, _T = schema.sessions.c, schema.trials.c


@dataclass(frozen=True, slots=True)
class Pace:
    """What a session has done by now, and when, in UTC.

    Attributes:
        lowered: number of lowerings, recalled ones too; candidates that share one have its time.
        lowered_here: of these, in this session.
        first_at: when the first candidate of this session was recorded; None before.
        measured: number of candidates with a measurement, recalled ones too.
        measured_at: when those of this session were measured.
        legal: number of legal configs.
        read_at: when this was read.
    """

    lowered: int
    lowered_here: int
    first_at: datetime | None
    measured: int
    measured_at: tuple[datetime, ...]
    legal: int
    read_at: datetime


def running_sessions(connection: Connection) -> list[int]:
    """The ids of the sessions that run, the latest first."""
    statement = select(_S.id, _S.owner).where(_S.state == SessionState.RUNNING.value).order_by(_S.id.desc())
    return [row.id for row in connection.execute(statement) if owner.is_alive(row.owner)]


def session_progress(connection: Connection, session_id: int) -> tuple[SessionProgress, Pace]:
    """How far a session has come. Raises `InputError` if there is none of this id."""
    summary = recorded_summary(connection, session_id)
    rows = _rows(connection, session_id)
    read_at = now()
    is_running = summary.state is SessionState.RUNNING
    context, vendor = summary.context, schema.baselines.c
    progress = SessionProgress(
        title=f"{context.workload.label} on {context.target}",
        state=summary.state,
        seconds=(read_at - summary.started_at).total_seconds() if is_running else summary.seconds,
        effort=Effort(summary.effort),
        counts=Counter(row.status for row in rows),
        best=_best(connection, rows, None if summary.winner is None else summary.winner.key),
        vendor_us=connection.execute(
            select(func.min(vendor.latency_us)).where(vendor.session_id == session_id)
        ).scalar(),
        last=_last(connection, rows) if is_running else "",
        session_id=session_id,
    )
    census = connection.execute(select(_S.census).where(_S.id == session_id)).scalar_one()
    with sound(f"session {session_id}"):
        legal = int(census["legal"])
    recent = [row for row in rows if row.recorded_at >= summary.started_at]
    measured_at = [row.measured_at for row in recent if row.measured_at is not None]
    return progress, Pace(
        lowered=_lowerings(rows),
        lowered_here=_lowerings(recent),
        first_at=min((row.recorded_at for row in recent), default=None),
        measured=sum(row.measurement_id is not None for row in rows),
        measured_at=tuple(sorted(at for at in measured_at if at >= summary.started_at)),
        legal=legal,
        read_at=read_at,
    )


def _lowerings(rows: list[Any]) -> int:
    """About how often was lowered: variants of a config share its lowering, and so the time of it."""
    failed = sum(not row.lowering_seconds for row in rows if row.status == Status.FAILED)
    return len({row.lowering_seconds for row in rows if row.lowering_seconds > 0}) + failed


def _rows(connection: Connection, session_id: int) -> list[Any]:
    """The trials of a session with their times, without what is large."""
    measurements, predictions = schema.measurements.c, schema.predictions.c
    statement = (
        select(
            schema.candidates.c.config,
            schema.trials,
            measurements.created_at.label("measured_at"),
            measurements.latency_us,
            func.coalesce(predictions.ranking_us, predictions.latency_us).label("ranking_us"),
        )
        .join_from(schema.trials, schema.candidates)
        .outerjoin(schema.measurements, _T.measurement_id == measurements.id)
        .outerjoin(schema.predictions, _T.prediction_id == predictions.id)
        .where(_T.session_id == session_id)
    )
    return list(connection.execute(statement))


def _best(connection: Connection, rows: list[Any], winner: str | None) -> TrialRecord | None:
    """As `SessionResult.best`: the winner, else the fastest verified trial, else the fastest unchecked or
    noisy one, else the best predicted one that has not failed."""

    def order(row: Any) -> tuple[int, bool, float]:
        is_other = row.config != winner or row.status != Status.VERIFIED
        if row.status in _RANKS and row.latency_us is not None:
            return _RANKS[row.status], is_other, row.latency_us
        return 3, is_other, math.inf if row.ranking_us is None else row.ranking_us

    works = [row for row in rows if row.status != Status.FAILED]
    return _record(connection, min(works, key=order)) if works else None


def _last(connection: Connection, rows: list[Any]) -> str:
    """What was recorded last: a measurement before what was recorded in the same moment."""
    if not rows:
        return ""
    return _record(
        connection, max(rows, key=lambda row: (row.recorded_at, row.measured_us is not None))
    ).summary


def _record(connection: Connection, row: Any) -> TrialRecord:
    with sound(row.config):
        trial = TrialRow(
            row.config,
            Status(row.status),
            row.prediction_id,
            row.build_id,
            row.measurement_id,
            row.failure_id,
            row.fingerprint,
            row.lowering_seconds,
        )
    return load(connection, [trial])[row.config]
