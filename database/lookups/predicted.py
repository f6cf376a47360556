"""The configs of one workload that a model has predicted best."""

from __future__ import annotations

import json

from sqlalchemy import Connection, func, select

from ...problem.space import Config
from ...records.trial import Status
from ..engine.text_checks import clean
from ..schema import tables as schema
from ..tables.rows import ContextIds
from ..tables.trial_rows import sound


def best_predicted(connection: Connection, ids: ContextIds, count: int) -> list[Config]:
    """Up to `count` configs that sessions with the template, workload, dynamic dimensions and model of a
    context have predicted, under any software, the best first. Failed ones are left out.
    """
    candidates, trials, predictions = schema.candidates.c, schema.trials.c, schema.predictions.c
    score = func.min(func.coalesce(predictions.ranking_us, predictions.latency_us))
    statement = (
        select(candidates.config)
        .join_from(schema.candidates, schema.trials, trials.candidate_id == candidates.id)
        .join(schema.predictions, predictions.id == trials.prediction_id)
        .where(
            candidates.template_id == ids.template_id,
            candidates.workload_id == ids.workload_id,
            candidates.arch == clean(ids.context.arch),
            candidates.dynamic == ids.dynamic,
            predictions.model == clean(ids.context.model),
            trials.status != Status.FAILED.value,
        )
        .group_by(candidates.config)
        .order_by(score, candidates.config)
        .limit(count)
    )
    with sound("of a candidate"):
        return [Config(json.loads(config)) for (config,) in connection.execute(statement)]
