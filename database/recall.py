"""What earlier sessions know that still holds in a context.

Each part of a trial holds as long as that on which it depends: the generated code on template, workload, architecture,
config and software; a prediction also on the target's figures and the model; a measurement also on the device, but not
on the model. So a trial of another session is taken apart, and what holds of it is put together again.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from typing import Any

from sqlalchemy import Connection, select

from ..errors import FailureKind
from ..trial import Status, TrialRecord
from . import schema
from .rows import Place
from .trials import TrialRow, load, sound

# failures that depend on the code alone, on the model's reading or the target's figures too, and on the device
_OF_CODE = {
    FailureKind.LOWER_ERROR,
    FailureKind.LOWER_CRASH,
    FailureKind.LOWER_TIMEOUT,
    FailureKind.BUILD_ERROR,
    FailureKind.BUILD_CRASH,
    FailureKind.BUILD_TIMEOUT,
}
# a duplicate is one only beside the candidate that was kept, which is recalled by its prediction
_OF_MODEL = {FailureKind.DOES_NOT_FIT, FailureKind.DUPLICATE, FailureKind.PROFILE_ERROR}
_OF_BUILD = {FailureKind.BUILD_ERROR, FailureKind.BUILD_CRASH, FailureKind.BUILD_TIMEOUT}


def recall(connection: Connection, place: Place) -> dict[str, TrialRecord]:
    """The best-known record of every candidate of `place` that any session has tried, by config key."""
    known: dict[str, list[tuple[int, TrialRow]]] = defaultdict(list)
    for row in connection.execute(_statement(place)):  # latest first
        with sound(row.config):
            holding = _what_holds(row)
            if holding is not None:
                known[row.config].append((_strength(holding, row.kind), holding))
    return load(connection, [_merge(rows) for rows in known.values()])


def _statement(place: Place) -> Any:
    trials, candidates, sessions = schema.trials.c, schema.candidates.c, schema.sessions.c
    return (
        select(
            candidates.config,
            trials.status,
            trials.prediction_id,
            trials.build_id,
            trials.measurement_id,
            trials.failure_id,
            trials.fingerprint,
            trials.lowering_seconds,
            schema.failure_reasons.c.kind,
            (schema.builds.c.artifact.is_not(None)).label("is_built"),
            (sessions.target_id == place.target_id).label("same_target"),
            (sessions.model == place.context.model).label("same_model"),
            (schema.environments.c.device == place.context.device).label("same_device"),
        )
        .select_from(schema.candidates)
        .join(schema.trials, trials.candidate_id == candidates.id)
        .join(schema.sessions, sessions.id == trials.session_id)
        .join(schema.environments, schema.environments.c.id == sessions.environment_id)
        .join(schema.builds, schema.builds.c.id == trials.build_id, isouter=True)
        .join(schema.failure_reasons, schema.failure_reasons.c.id == trials.failure_id, isouter=True)
        .where(
            candidates.template_id == place.template_id,
            candidates.workload_id == place.workload_id,
            candidates.arch == place.context.arch,
            schema.environments.c.software_id == place.software_id,
        )
        .order_by(trials.recorded_at.desc(), trials.session_id.desc())
    )


def _what_holds(row: Any) -> TrialRow | None:
    """The part of a trial that holds; None where nothing does. Its software is the same already."""
    same_model = bool(row.same_target and row.same_model)
    prediction_id = row.prediction_id if same_model else None
    measurement_id = row.measurement_id if row.same_device else None
    failure_holds = row.failure_id is not None and _failure_holds(FailureKind(row.kind), same_model, row.same_device)
    failure_id = row.failure_id if failure_holds else None
    status = Status(row.status)
    if failure_id is not None:
        status = Status.FAILED
    elif measurement_id is not None and status in (Status.MEASURED, Status.VERIFIED):
        pass
    elif row.is_built:
        status = Status.BUILT
    elif prediction_id is not None:
        status = Status.PREDICTED
    else:
        return None
    if status in (Status.BUILT, Status.PREDICTED):
        measurement_id = None
    build_id = row.build_id if status is not Status.PREDICTED else None
    return TrialRow(row.config, status, prediction_id, build_id, measurement_id, failure_id, row.fingerprint, row.lowering_seconds)


def _failure_holds(kind: FailureKind, same_model: bool, same_device: bool) -> bool:
    if kind in _OF_CODE:
        return True
    return same_model if kind in _OF_MODEL else same_device


def _strength(row: TrialRow, kind: str | None) -> int:
    """What outdoes what. Success outdoes a failure of the same stage or an earlier one (a time limit that was too short),
    a later stage's failure what came before it; and a wrong result outdoes everything: a race shows only sometimes."""
    if row.status is not Status.FAILED:
        return {Status.PREDICTED: 1, Status.BUILT: 3, Status.MEASURED: 5, Status.VERIFIED: 6}[row.status]
    failure = FailureKind(str(kind))
    if failure is FailureKind.WRONG_RESULT:
        return 7
    if failure in _OF_BUILD:
        return 2
    return 0 if failure in _OF_CODE | _OF_MODEL else 4


def _merge(rows: list[tuple[int, TrialRow]]) -> TrialRow:
    """The strongest row, the latest of equals, completed by what the others know of prediction and build."""
    ordered = sorted(rows, key=lambda pair: -pair[0])  # stable: latest first stays first
    best = ordered[0][1]
    # only what was built and ran can lend its build: another's build failure is not this one's
    builds = [best.build_id, *(row.build_id for strength, row in ordered if strength > 2)]
    return replace(
        best,
        prediction_id=next((row.prediction_id for _, row in ordered if row.prediction_id is not None), None),
        build_id=next((build_id for build_id in builds if build_id is not None), None),
    )
