"""How far a model's predictions were from the times that were measured on one device."""

from __future__ import annotations

import math

from sqlalchemy import Connection, select

from ...target.spec import Target
from ..schema import tables as schema

MOST_ROWS = 2000


def model_errors(connection: Connection, model: str, target: Target, device: str) -> tuple[float, ...]:
    """|log(measured / predicted)| of verified candidates, of at most `MOST_ROWS`.

    Args:
        connection: To the database.
        model: Version of the model.
        target: The target with the same figures as now.
        device: Name of the device that was measured.
    """
    predictions, trials = schema.predictions, schema.trials
    measurements, environments, targets = schema.measurements, schema.environments, schema.targets
    query = (
        select(predictions.c.latency_us, trials.c.measured_us)
        .join(predictions, trials.c.prediction_id == predictions.c.id)
        .join(targets, predictions.c.target_id == targets.c.id)
        .join(measurements, trials.c.measurement_id == measurements.c.id)
        .join(environments, measurements.c.environment_id == environments.c.id)
        .where(
            trials.c.measured_us > 0,
            predictions.c.latency_us > 0,
            predictions.c.model == model,
            targets.c.fingerprint == target.fingerprint,
            environments.c.device == device,
        )
        .limit(MOST_ROWS)
    )
    return tuple(abs(math.log(measured / predicted)) for predicted, measured in connection.execute(query))
