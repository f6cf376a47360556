"""Results of earlier sessions that still hold in a context.

Each part of a trial holds while everything that it depends on is the same. Generated code depends on
template, workload, dynamic dimensions, architecture, config and the software that makes it. A prediction also
depends on the target's figures and the model, a measurement also on the device, its driver and the protocol,
but not on the model. So a record is composed of the parts of earlier trials that hold.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, select

from ...errors import FailureKind
from ...records.trial import Status, TrialRecord
from ..engine.text_checks import clean
from ..schema import tables as schema
from ..tables.rows import ContextIds
from ..tables.trial_rows import TrialRow, load, sound


class Holds(Enum):
    """In which contexts a failure of a candidate still counts."""

    CODE = auto()  # wherever the code is the same
    MODEL = auto()  # and the target figures and the model are the same
    RUN = auto()  # and the device, driver and protocol are the same
    VERDICT = (
        auto()
    )  # and the device is the same, with any driver and protocol: a wrong result does not depend on them
    MOMENT = auto()  # nowhere: the state of the machine caused it


HOLDS: Mapping[FailureKind, Holds] = MappingProxyType(
    {
        FailureKind.LOWER_ERROR: Holds.CODE,
        FailureKind.LOWER_CRASH: Holds.CODE,
        FailureKind.LOWER_TIMEOUT: Holds.CODE,
        FailureKind.LOWER_MEMORY: Holds.MOMENT,
        FailureKind.DOES_NOT_FIT: Holds.MODEL,
        # a duplicate counts only together with the other candidate, which is recalled by its prediction
        FailureKind.DUPLICATE: Holds.MODEL,
        FailureKind.PROFILE_ERROR: Holds.MODEL,
        FailureKind.BUILD_ERROR: Holds.CODE,
        FailureKind.BUILD_CRASH: Holds.CODE,
        FailureKind.BUILD_TIMEOUT: Holds.CODE,
        FailureKind.BUILD_MEMORY: Holds.MOMENT,
        FailureKind.RUN_ERROR: Holds.RUN,
        FailureKind.RUN_CRASH: Holds.RUN,
        FailureKind.RUN_TIMEOUT: Holds.RUN,
        FailureKind.RUN_MEMORY: Holds.MOMENT,
        FailureKind.WRONG_RESULT: Holds.VERDICT,
        FailureKind.NONDETERMINISTIC: Holds.VERDICT,
    }
)
VERDICTS = tuple(
    kind.value for kind, holds in HOLDS.items() if holds is Holds.VERDICT
)  # values of `failure_reasons.kind`
_OF_BUILD = {FailureKind.BUILD_ERROR, FailureKind.BUILD_CRASH, FailureKind.BUILD_TIMEOUT}


def recall(connection: Connection, ids: ContextIds) -> dict[str, TrialRecord]:
    """The best-known record of every candidate that any session has tried in the context of `ids`, by config
    key."""
    known: dict[str, list[tuple[int, TrialRow]]] = defaultdict(list)
    for row in connection.execute(_statement(ids)):  # latest first
        with sound(row.config):
            holding = _what_holds(row)
            if holding is not None:
                kind = FailureKind(row.kind) if row.kind else None
                known[row.config].append(
                    (strength(holding.status, kind, is_built=bool(row.is_built)), holding)
                )
    return load(connection, [_merge(rows) for rows in known.values()])


def _statement(ids: ContextIds) -> Any:
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
            (sessions.target_id == ids.target_id).label("same_target"),
            (sessions.model == clean(ids.context.model)).label("same_model"),
            (schema.environments.c.device == clean(ids.context.device)).label("same_device"),
            (sessions.protocol == clean(ids.context.protocol)).label("same_protocol"),
            (schema.software.c.time_key == ids.time_key).label("same_time"),
        )
        .select_from(schema.candidates)
        .join(schema.trials, trials.candidate_id == candidates.id)
        .join(schema.sessions, sessions.id == trials.session_id)
        .join(schema.environments, schema.environments.c.id == sessions.environment_id)
        .join(schema.software, schema.software.c.id == schema.environments.c.software_id)
        .join(schema.builds, schema.builds.c.id == trials.build_id, isouter=True)
        .join(schema.failure_reasons, schema.failure_reasons.c.id == trials.failure_id, isouter=True)
        .where(
            candidates.template_id == ids.template_id,
            candidates.workload_id == ids.workload_id,
            candidates.arch == clean(ids.context.arch),
            candidates.dynamic == ids.dynamic,
            schema.software.c.code_key == ids.code_key,
        )
        .order_by(trials.session_id.desc())  # ids grow with time, even if the clock was set back
    )


def _what_holds(row: Any) -> TrialRow | None:
    """The part of a trial that holds; None if nothing does.

    The code-generating software is already known to be the same.
    """
    same_model = bool(row.same_target and row.same_model)
    prediction_id = row.prediction_id if same_model else None
    same_run = bool(row.same_device and row.same_protocol and row.same_time)
    measurement_id = row.measurement_id if same_run else None
    failure_holds = (
        row.failure_id is not None
        and {
            Holds.CODE: True,
            Holds.MODEL: same_model,
            Holds.RUN: same_run,
            Holds.VERDICT: bool(row.same_device),
            Holds.MOMENT: False,
        }[_holds(FailureKind(row.kind), is_built=bool(row.is_built))]
    )
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
    return TrialRow(
        row.config,
        status,
        prediction_id,
        build_id,
        measurement_id,
        failure_id,
        row.fingerprint,
        row.lowering_seconds,
    )


def _holds(kind: FailureKind, *, is_built: bool) -> Holds:
    # a duplicate that was found by its machine code does not depend on the model
    return Holds.CODE if kind is FailureKind.DUPLICATE and is_built else HOLDS[kind]


def strength(status: Status, kind: FailureKind | None, *, is_built: bool) -> int:
    """The precedence of a record: the greater one is used.

    A success outranks a failure of the same stage or an earlier one (a time limit may have been too short). A
    failure of a later stage outranks earlier results. A wrong result outranks everything, since a race shows
    only sometimes.
    """
    if status is not Status.FAILED or kind is None:
        return {Status.PREDICTED: 1, Status.BUILT: 3, Status.MEASURED: 5, Status.VERIFIED: 6}.get(status, 0)
    if kind in _OF_BUILD or (kind is FailureKind.DUPLICATE and is_built):
        return 2
    return {Holds.VERDICT: 7, Holds.RUN: 4}.get(HOLDS[kind], 0)


def _merge(rows: list[tuple[int, TrialRow]]) -> TrialRow:
    """The row of highest precedence (the latest of equals), completed with the prediction and build of the
    others."""
    ordered = sorted(rows, key=lambda pair: -pair[0])  # stable: of equals the latest stays first
    best = ordered[0][1]
    # only rows whose build worked give their build
    builds = [best.build_id, *(row.build_id for strength, row in ordered if strength > 2)]
    return replace(
        best,
        prediction_id=next((row.prediction_id for _, row in ordered if row.prediction_id is not None), None),
        build_id=next((build_id for build_id in builds if build_id is not None), None),
    )
