"""Removal of rows that can no longer be used: `tilesight db gc`.

Verified measurements stay unless their age is given; rows of running sessions stay always.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

from sqlalchemy import (
    ColumnElement,
    Connection,
    Table,
    Text,
    and_,
    cast,
    delete,
    exists,
    not_,
    or_,
    select,
    true,
)

from ...errors import DatabaseError, InputError
from ...machine import owner
from ...records.session import SessionState
from ...records.trial import Status
from ..exchange.untrusted import MARK
from ..lookups.recall import VERDICTS
from ..schema import tables as schema
from ..store import Store
from ..tables.rows import now
from .space import give_back, size

PREDICTIONS_DAYS = 90.0
_OTHER_HOST_DAYS = 7.0  # a session of another host counts as running for so long
_GRACE_DAYS = 1.0  # newer facts stay: a process may be about to refer to them
_MOST_DAYS = 36_500.0
# Before it deletes a row, the database looks for references to it. These indexes make that fast; they would
# slow down every insert, so they exist only during gc.
_REFERENCES = (
    *((schema.trials, column) for column in ("prediction_id", "build_id", "measurement_id", "failure_id")),
    *((schema.sessions, column) for column in ("winner_id", "environment_id", "template_id", "target_id")),
    *((schema.builds, column) for column in ("failure_id", "software_id")),
    *((schema.measurements, column) for column in ("failure_id", "environment_id")),
    *((schema.predictions, column) for column in ("target_id", "software_id")),
    (schema.candidates, "template_id"),
    *((table, "software_id") for table in (schema.environments, schema.calibrations)),
)


@dataclass(frozen=True, slots=True)
class Rules:
    """What may be removed.

    `templates` are the present versions by name; rows of other templates stay. `reader` is the present
    version of the code that makes profiles; with None cached profiles stay.
    """

    templates: Mapping[str, str] = field(default_factory=dict)
    reader: str | None = None
    predictions_days: float = PREDICTIONS_DAYS
    measurements_days: float | None = None
    imported: bool = False  # everything that was imported without trust


@dataclass(frozen=True, slots=True)
class Removed:
    """The result of a removal.

    `rows` is reason -> table -> number of rows. `bytes_before` and `bytes_after` are sizes of the database.
    `space_kept` tells why the space was not given back, else it is "".
    """

    rows: Mapping[str, Mapping[str, int]]
    bytes_before: int
    bytes_after: int
    is_dry_run: bool
    space_kept: str = ""

    @property
    def total(self) -> int:
        return sum(count for tables in self.rows.values() for count in tables.values())


def gc(store: Store, rules: Rules, *, dry_run: bool = False) -> Removed:
    """Remove rows by `rules`, in one transaction, and give their space back.

    A dry run rolls the transaction back.

    A dry run has to delete: later steps remove what the rows of earlier steps referred to, so counts on the
    unchanged tables would be wrong. If space cannot be given back, since others use the database or the disk
    is full, the next gc does it.

    Raises:
        InputError: An age is invalid.
        DatabaseError: A session runs; it may refer to any fact.
    """
    for name, days in (("predictions", rules.predictions_days), ("measurements", rules.measurements_days)):
        if days is not None and not 0 <= days <= _MOST_DAYS:
            raise InputError(f"--{name}-older-than {days} must be a number of days in 0 .. {_MOST_DAYS:g}")
    before = size(store)

    def work(connection: Connection) -> dict[str, dict[str, int]]:
        _check_idle(store, connection)
        sweep = _Sweep(connection)
        for table, column in _REFERENCES:
            connection.exec_driver_sql(f"CREATE INDEX gc_{table.name}_{column} ON {table.name} ({column})")
        for reason, step in _STEPS.items():
            sweep.reason = reason
            step(sweep, rules)
        for table, column in _REFERENCES:
            connection.exec_driver_sql(f"DROP INDEX gc_{table.name}_{column}")
        return sweep.removed

    removed = store.database.write(work, roll_back=dry_run)
    if dry_run:
        return Removed(removed, before, before, True)
    space_kept = give_back(store)
    return Removed(removed, before, size(store), False, space_kept)


def _check_idle(store: Store, connection: Connection) -> None:
    sessions = schema.sessions.c
    here = owner.this_process().partition("|")[0]
    recent = now() - timedelta(days=_OTHER_HOST_DAYS)
    # a clock that was ahead, then: it would count as running until its time comes
    future = now() + timedelta(days=_GRACE_DAYS)
    running = connection.execute(
        select(sessions.id, sessions.owner, sessions.started_at).where(
            sessions.state == SessionState.RUNNING.value
        )
    )
    for session in running:
        if owner.is_alive(session.owner) and (
            session.owner.startswith(f"{here}|") or recent < session.started_at < future
        ):
            host, since = session.owner.partition("|")[0], f"{session.started_at:%Y-%m-%d %H:%M} UTC"
            raise DatabaseError(
                f"database '{store.name}': session {session.id} runs on {host} since {since}, and may refer "
                "to anything; "
                "remove when it has finished"
            )


class _Sweep:
    """Deletes rows and counts them by reason and table."""

    def __init__(self, connection: Connection) -> None:
        self.connection = connection
        self.reason = ""
        self.removed: dict[str, dict[str, int]] = {}

    def delete(self, table: Table, condition: ColumnElement[bool]) -> None:
        count = max(0, self.connection.execute(delete(table).where(condition)).rowcount)
        if count:
            tables = self.removed.setdefault(self.reason, {})
            tables[table.name] = tables.get(table.name, 0) + count

    def delete_sessions(self, condition: ColumnElement[bool]) -> None:
        """Delete sessions with their trials and baselines; running sessions stay."""
        chosen = select(_SESSIONS.id).where(condition, _SESSIONS.state != SessionState.RUNNING.value)
        for table in (schema.trials, schema.baselines):
            self.delete(table, table.c.session_id.in_(chosen))
        self.delete(schema.sessions, and_(condition, _SESSIONS.state != SessionState.RUNNING.value))


_SESSIONS, _TRIALS = schema.sessions.c, schema.trials.c


def _imported(sweep: _Sweep, rules: Rules) -> None:
    if not rules.imported:
        return
    imported = select(schema.software.c.id).where(
        cast(schema.software.c.versions, Text).like(f'%"{MARK}": %')
    )
    environments = select(schema.environments.c.id).where(schema.environments.c.software_id.in_(imported))
    sweep.delete_sessions(_SESSIONS.environment_id.in_(environments))
    sweep.delete(schema.measurements, schema.measurements.c.environment_id.in_(environments))
    for table in (schema.predictions, schema.builds):
        sweep.delete(table, table.c.software_id.in_(imported))


def _older_code(sweep: _Sweep, rules: Rules) -> None:
    if not rules.templates:
        return
    profiles = schema.parametric_profiles.c
    templates = schema.templates.c

    def outdated(name: Any, version: Any) -> ColumnElement[bool]:
        return or_(*(and_(name == known, version != today) for known, today in rules.templates.items()))

    chosen = select(templates.id).where(outdated(templates.name, templates.version))
    sessions = select(_SESSIONS.id).where(_SESSIONS.template_id.in_(chosen), _idle())
    sweep.delete(
        schema.trials, and_(_TRIALS.session_id.in_(sessions), _TRIALS.status != Status.VERIFIED.value)
    )
    sweep.delete(schema.parametric_profiles, outdated(profiles.template, profiles.template_version))


def _other_reader(sweep: _Sweep, rules: Rules) -> None:
    if rules.reader is not None:
        sweep.delete(schema.parametric_profiles, schema.parametric_profiles.c.reader != rules.reader)


def _superseded(sweep: _Sweep, _rules: Rules) -> None:
    later = schema.sessions.alias("later")
    same = and_(
        *(later.c[name] == schema.sessions.c[name] for name in ("context_key", "effort", "options_key")),
        later.c.id > _SESSIONS.id,
        later.c.state == SessionState.COMPLETE.value,
    )
    chosen = select(_SESSIONS.id).where(exists().where(same), _idle())
    verdicts = select(schema.failure_reasons.c.id).where(schema.failure_reasons.c.kind.in_(VERDICTS))
    spared = or_(
        _TRIALS.status == Status.VERIFIED.value,
        and_(_TRIALS.failure_id.is_not(None), _TRIALS.failure_id.in_(verdicts)),
    )
    sweep.delete(schema.trials, and_(_TRIALS.session_id.in_(chosen), not_(spared)))


def _old_predictions(sweep: _Sweep, rules: Rules) -> None:
    cutoff = now() - timedelta(days=rules.predictions_days)
    # a session that measured nothing answers with its predictions, so it goes as a whole or not at all
    sweep.delete_sessions(
        and_(_SESSIONS.started_at < cutoff, not_(_has_trial(_TRIALS.measurement_id.is_not(None))))
    )
    measured = select(_SESSIONS.id).where(_idle(), _has_trial(_TRIALS.status == Status.VERIFIED.value))
    sweep.delete(
        schema.trials,
        and_(
            _TRIALS.status == Status.PREDICTED.value,
            _TRIALS.recorded_at < cutoff,
            _TRIALS.session_id.in_(measured),
        ),
    )


def _old_measurements(sweep: _Sweep, rules: Rules) -> None:
    if rules.measurements_days is None:
        return
    cutoff = now() - timedelta(days=rules.measurements_days)
    # whole sessions: without its measurements a session would still answer calls
    sweep.delete_sessions(
        and_(_SESSIONS.started_at < cutoff, _has_trial(_TRIALS.measurement_id.is_not(None)))
    )
    table = schema.measurements
    sweep.delete(table, and_(table.c.created_at < cutoff, not_(_referred(table, _TRIALS.measurement_id))))


def _empty_sessions(sweep: _Sweep, _rules: Rules) -> None:
    sweep.delete_sessions(
        and_(_SESSIONS.started_at < now() - timedelta(days=_GRACE_DAYS), not_(_has_trial(true())))
    )


def _orphans(sweep: _Sweep, _rules: Rules) -> None:
    old = now() - timedelta(days=_GRACE_DAYS)
    measurements = schema.measurements
    is_verified = and_(measurements.c.sample_count > 0, measurements.c.relative_error.is_not(None))
    sweep.delete(
        measurements,
        and_(
            measurements.c.created_at < old,
            not_(is_verified),
            not_(_referred(measurements, _TRIALS.measurement_id)),
        ),
    )
    for table, column in ((schema.builds, _TRIALS.build_id), (schema.predictions, _TRIALS.prediction_id)):
        sweep.delete(table, and_(table.c.created_at < old, not_(_referred(table, column))))
    reasons = (_TRIALS.failure_id, schema.builds.c.failure_id, measurements.c.failure_id)
    _delete_nowhere(sweep, schema.failure_reasons, *reasons)
    facts = (schema.predictions, schema.builds, measurements, schema.trials)
    _delete_nowhere(sweep, schema.candidates, *(table.c.candidate_id for table in facts), _SESSIONS.winner_id)
    _delete_nowhere(sweep, schema.environments, measurements.c.environment_id, _SESSIONS.environment_id)
    _delete_nowhere(sweep, schema.templates, schema.candidates.c.template_id, _SESSIONS.template_id)
    _delete_nowhere(sweep, schema.targets, schema.predictions.c.target_id, _SESSIONS.target_id)
    of_software = (schema.environments, schema.predictions, schema.builds, schema.calibrations)
    _delete_nowhere(sweep, schema.software, *(table.c.software_id for table in of_software))
    of_workload = (schema.candidates, schema.sessions, schema.dispatch_misses)
    nowhere = _nowhere(schema.workloads, *(table.c.workload_id for table in of_workload))
    sweep.delete(
        schema.workload_dims,
        schema.workload_dims.c.workload_id.in_(select(schema.workloads.c.id).where(nowhere)),
    )
    sweep.delete(schema.workloads, nowhere)


def _idle() -> ColumnElement[bool]:
    return _SESSIONS.state != SessionState.RUNNING.value


def _has_trial(condition: ColumnElement[bool]) -> ColumnElement[bool]:
    return exists().where(_TRIALS.session_id == _SESSIONS.id, condition).correlate(schema.sessions)


def _referred(table: Table, column: Any) -> ColumnElement[bool]:
    """Whether a trial refers to a fact; found by its candidate, which has an index."""
    return exists().where(_TRIALS.candidate_id == table.c.candidate_id, column == table.c.id).correlate(table)


def _delete_nowhere(sweep: _Sweep, table: Table, *columns: Any) -> None:
    """Delete the rows of `table` that none of `columns` refers to."""
    sweep.delete(table, _nowhere(table, *columns))


def _nowhere(table: Table, *columns: Any) -> ColumnElement[bool]:
    return and_(*(table.c.id.not_in(select(column).where(column.is_not(None))) for column in columns))


_STEPS: Mapping[str, Callable[[_Sweep, Rules], None]] = {
    "imported without trust": _imported,
    "older code of a template": _older_code,
    "profiles of another reader": _other_reader,
    "superseded by a later session": _superseded,
    "old predictions": _old_predictions,
    "old measurements": _old_measurements,
    "empty sessions": _empty_sessions,
    "facts that nothing refers to": _orphans,
}
