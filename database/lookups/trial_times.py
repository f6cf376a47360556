"""When the results of the candidates of a session were recorded."""

from __future__ import annotations

import json

from sqlalchemy import Connection, func, select

from ...problem.config import Config
from ...records.recorded_session import TrialTimes
from ..schema import tables as schema
from ..tables.trial_rows import sound


def trial_times(connection: Connection, session_id: int) -> dict[Config, TrialTimes]:
    """The times of the facts that the session has of each config. Those of recalled facts are earlier than
    the session.
    """
    trials, builds, measurements = schema.trials, schema.builds, schema.measurements
    predictions, every, sessions = schema.predictions, schema.predictions.alias(), schema.sessions
    first = (
        select(func.min(every.c.created_at))
        .where(every.c.candidate_id == trials.c.candidate_id, every.c.model == sessions.c.model)
        .scalar_subquery()
    )
    statement = (
        select(
            schema.candidates.c.config,
            predictions.c.created_at,
            measurements.c.created_at,
            first,
            builds.c.created_at,
            trials.c.recorded_at,
        )
        .join_from(trials, schema.candidates)
        .join(sessions, trials.c.session_id == sessions.c.id)
        .outerjoin(predictions, trials.c.prediction_id == predictions.c.id)
        .outerjoin(builds, trials.c.build_id == builds.c.id)
        .outerjoin(measurements, trials.c.measurement_id == measurements.c.id)
        .where(trials.c.session_id == session_id)
    )
    found = {}
    for config, predicted, measured, lowered, built, recorded in connection.execute(statement):
        with sound(config):
            found[Config(json.loads(config))] = TrialTimes(predicted, measured, lowered or recorded, built)
    return found
