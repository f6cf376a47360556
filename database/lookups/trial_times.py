"""When the candidates of a session were predicted and measured."""

from __future__ import annotations

import json

from sqlalchemy import Connection, select

from ...problem.config import Config
from ...records.recorded_session import TrialTimes
from ..schema import tables as schema
from ..tables.trial_rows import sound


def trial_times(connection: Connection, session_id: int) -> dict[Config, TrialTimes]:
    """The times of the facts that the session has of each config. Those of recalled facts are earlier than
    the session.
    """
    trials, predictions, measurements = schema.trials, schema.predictions, schema.measurements
    statement = (
        select(schema.candidates.c.config, predictions.c.created_at, measurements.c.created_at)
        .join_from(trials, schema.candidates)
        .outerjoin(predictions, trials.c.prediction_id == predictions.c.id)
        .outerjoin(measurements, trials.c.measurement_id == measurements.c.id)
        .where(trials.c.session_id == session_id)
    )
    found = {}
    for config, predicted_at, measured_at in connection.execute(statement):
        with sound(config):
            found[Config(json.loads(config))] = TrialTimes(predicted_at, measured_at)
    return found
