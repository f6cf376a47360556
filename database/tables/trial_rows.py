"""From rows to trial records."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Table, select

from ...errors import Failure, FailureKind, WorkloadError
from ...problem.space import Config
from ...records.trial import BuildResult, Measurement, Prediction, Status, TrialRecord
from ..engine.faults import UnsoundRecordError
from ..schema import tables as schema
from .strict_json import shown

# what constructors, and code that takes a row for sound, raise
_MAKE_NO_VALUE = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RecursionError,
    TypeError,
    ValueError,
    WorkloadError,
)
_CHUNK = 500  # ids in one statement; SQLite takes 999 at the least


@dataclass(frozen=True, slots=True)
class TrialRow:
    """A row of a trial, with the ids of its facts."""

    config: str  # canonical JSON
    status: Status
    prediction_id: int | None
    build_id: int | None
    measurement_id: int | None
    failure_id: int | None
    fingerprint: str
    lowering_seconds: float


def session_trials(connection: Connection, session_id: int) -> dict[str, TrialRecord]:
    """All trials of a session, by config key."""
    trials, candidates = schema.trials.c, schema.candidates.c
    statement = (
        select(
            candidates.config,
            trials.status,
            trials.prediction_id,
            trials.build_id,
            trials.measurement_id,
            trials.failure_id,
            trials.fingerprint,
            trials.lowering_seconds,
        )
        .join_from(schema.trials, schema.candidates)
        .where(trials.session_id == session_id)
        .order_by(trials.recorded_at, candidates.id)
    )
    rows = []
    for row in connection.execute(statement):
        with sound(row.config):
            rows.append(TrialRow(row.config, Status(row.status), *row[2:]))
    return load(connection, rows)


def load(connection: Connection, rows: Sequence[TrialRow]) -> dict[str, TrialRecord]:
    """The trial records of `rows`, by config key."""
    predictions = _fetch(connection, schema.predictions, (row.prediction_id for row in rows))
    builds = _fetch(connection, schema.builds, (row.build_id for row in rows))
    measurements = _fetch(connection, schema.measurements, (row.measurement_id for row in rows))
    failure_ids = [row.failure_id for row in rows] + [
        fact.failure_id for fact in (*builds.values(), *measurements.values())
    ]
    reasons = _fetch(connection, schema.failure_reasons, failure_ids)
    observed = _fetch(
        connection, schema.environments, (fact.environment_id for fact in measurements.values())
    )

    with sound("(any)"):
        failures = {
            key: Failure(FailureKind(reason.kind), reason.message, reason.detail)
            for key, reason in reasons.items()
        }
    records = {}
    for row in rows:
        with sound(row.config):
            records[row.config] = TrialRecord(
                config=Config(json.loads(row.config)),
                status=row.status,
                prediction=None if row.prediction_id is None else _prediction(predictions[row.prediction_id]),
                build=None if row.build_id is None else _build(builds[row.build_id], failures),
                measurement=None
                if row.measurement_id is None
                else _measurement(measurements[row.measurement_id], failures, observed),
                failure=None if row.failure_id is None else failures[row.failure_id],
                fingerprint=row.fingerprint,
                lowering_seconds=row.lowering_seconds,
            )
    return records


@contextmanager
def sound(where: object) -> Iterator[None]:
    """Raises `UnsoundRecordError` if stored parts make no value; it becomes a `DatabaseCorruptError`.

    `where` names the parts in the message: the config of a trial, or the row.
    """
    try:
        yield
    except _MAKE_NO_VALUE as error:
        raise UnsoundRecordError(f"{shown(where)}: {shown(repr(error))}") from error


def _prediction(row: Any) -> Prediction:
    return Prediction(
        latency_us=row.latency_us,
        utilization=row.utilization,
        limiting=row.limiting,
        terms_us=row.terms_us,
        uncertainty=row.uncertainty,
        notes=tuple(row.notes),
        model=row.stated_model,
    )


def _build(row: Any, failures: dict[int, Failure]) -> BuildResult:
    return BuildResult(
        artifact=row.artifact,
        failure=None if row.failure_id is None else failures[row.failure_id],
        entry=row.entry,
        resources=row.resources,
        compiler=row.compiler,
        seconds=row.seconds,
        binary=row.binary,
    )


def _measurement(row: Any, failures: dict[int, Failure], environments: dict[int, Any]) -> Measurement:
    if not all(isinstance(part, dict) for part in (row.observed, row.protocol)):
        raise TypeError("the observations and the protocol of a measurement must be objects")
    return Measurement(
        samples_us=tuple(row.samples_us),
        failure=None if row.failure_id is None else failures[row.failure_id],
        relative_error=row.relative_error,
        environment=environments[row.environment_id].observed,
        protocol=row.protocol,
        observed=row.observed,
    )


def _fetch(connection: Connection, table: Table, ids: Iterable[int | None]) -> dict[int, Any]:
    """The rows of `table` with these ids, by id."""
    with sound(f"of {table.name}"):
        wanted = sorted({key for key in ids if key is not None})
    statement = select(table)
    found = (
        row for chunk in _chunks(wanted) for row in connection.execute(statement.where(table.c.id.in_(chunk)))
    )
    return {row.id: row for row in found}


def _chunks(ids: list[int]) -> Iterator[list[int]]:
    for start in range(0, len(ids), _CHUNK):
        yield ids[start : start + _CHUNK]
