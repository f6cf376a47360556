"""What earlier sessions know that still holds in a context.

Each part of a trial holds as long as that on which it depends: the generated code on template, workload, open dimensions,
architecture, config and the software that makes it; a prediction also on the target's figures and the model; a measurement
also on the device, its driver and the protocol, but not on the model. So a trial of another session is taken apart, and what
holds of it is put together again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import replace
from enum import Enum, auto
from types import MappingProxyType
from typing import Any

from sqlalchemy import Connection, select

from ..errors import FailureKind
from ..trial import Status, TrialRecord
from . import schema
from .checks import clean
from .rows import Place
from .trials import TrialRow, load, sound


class Holds(Enum):
    """Where a failure is held against a candidate again."""

    CODE = auto()  # wherever its code is the same
    MODEL = auto()  # under the same target figures and model, too
    RUN = auto()  # on the same device and driver, under the same protocol
    VERDICT = auto()  # on the same device, whatever the driver and the protocol: what is wrong is wrong however it is timed
    MOMENT = auto()  # nowhere: it was the machine's, not the candidate's


HOLDS: Mapping[FailureKind, Holds] = MappingProxyType(
    {
        FailureKind.LOWER_ERROR: Holds.CODE,
        FailureKind.LOWER_CRASH: Holds.CODE,
        FailureKind.LOWER_TIMEOUT: Holds.CODE,
        FailureKind.LOWER_MEMORY: Holds.MOMENT,
        FailureKind.DOES_NOT_FIT: Holds.MODEL,
        # one is a duplicate only beside the candidate that was kept, which is recalled by its prediction
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
VERDICTS = tuple(kind.value for kind, holds in HOLDS.items() if holds is Holds.VERDICT)  # as `failure_reasons.kind` has them
_OF_BUILD = {FailureKind.BUILD_ERROR, FailureKind.BUILD_CRASH, FailureKind.BUILD_TIMEOUT}


def recall(connection: Connection, place: Place) -> dict[str, TrialRecord]:
    """The best-known record of every candidate of `place` that any session has tried, by config key."""
    known: dict[str, list[tuple[int, TrialRow]]] = defaultdict(list)
    for row in connection.execute(_statement(place)):  # latest first
        with sound(row.config):
            holding = _what_holds(row)
            if holding is not None:
                kind = FailureKind(row.kind) if row.kind else None
                known[row.config].append((strength(holding.status, kind, is_built=bool(row.is_built)), holding))
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
            (sessions.model == clean(place.context.model)).label("same_model"),
            (schema.environments.c.device == clean(place.context.device)).label("same_device"),
            (sessions.protocol == clean(place.context.protocol)).label("same_protocol"),
            (schema.software.c.time_key == place.time_key).label("same_time"),
        )
        .select_from(schema.candidates)
        .join(schema.trials, trials.candidate_id == candidates.id)
        .join(schema.sessions, sessions.id == trials.session_id)
        .join(schema.environments, schema.environments.c.id == sessions.environment_id)
        .join(schema.software, schema.software.c.id == schema.environments.c.software_id)
        .join(schema.builds, schema.builds.c.id == trials.build_id, isouter=True)
        .join(schema.failure_reasons, schema.failure_reasons.c.id == trials.failure_id, isouter=True)
        .where(
            candidates.template_id == place.template_id,
            candidates.workload_id == place.workload_id,
            candidates.arch == clean(place.context.arch),
            candidates.open == place.open,
            schema.software.c.code_key == place.code_key,
        )
        .order_by(trials.session_id.desc())  # later sessions have higher ids, also where the clock was set back
    )


def _what_holds(row: Any) -> TrialRow | None:
    """The part of a trial that holds; None where nothing does. The software that makes its code is the same already."""
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
    return TrialRow(row.config, status, prediction_id, build_id, measurement_id, failure_id, row.fingerprint, row.lowering_seconds)


def _holds(kind: FailureKind, *, is_built: bool) -> Holds:
    # one whose machine code is another's needed no model to be found out
    return Holds.CODE if kind is FailureKind.DUPLICATE and is_built else HOLDS[kind]


def strength(status: Status, kind: FailureKind | None, *, is_built: bool) -> int:
    """What outdoes what. Success outdoes a failure of the same stage or an earlier one (a time limit that was too short),
    a later stage's failure what came before it; and a wrong result outdoes everything: a race shows only sometimes."""
    if status is not Status.FAILED or kind is None:
        return {Status.PREDICTED: 1, Status.BUILT: 3, Status.MEASURED: 5, Status.VERIFIED: 6}.get(status, 0)
    if kind in _OF_BUILD or (kind is FailureKind.DUPLICATE and is_built):
        return 2
    return {Holds.VERDICT: 7, Holds.RUN: 4}.get(HOLDS[kind], 0)


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
