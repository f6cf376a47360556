"""Rows of a dataset with the predictions of a model, made now."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..costmodel.model import CostModel, predict_many, was_trained_on
from ..profile.codec import profiles_of
from ..records.dataset import Dataset
from ..records.trial import Prediction
from ..target.spec import load_target, target_names

MOST_PREDICTED = 2000  # rows that are predicted; one takes some milliseconds


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """A verified row with the prediction of its candidate."""

    operator: str
    shape: str
    dtype: str
    target: str
    config: str
    measured_us: float
    prediction: Prediction
    is_training_row: bool
    counters: Mapping[str, float]

    @property
    def log_error(self) -> float:
        """log(predicted / measured)."""
        return math.log(self.prediction.latency_us / self.measured_us)

    @property
    def sigmas(self) -> float:
        """The error in multiples of sigma."""
        sigma = math.log1p(self.prediction.uncertainty)
        return abs(self.log_error) / sigma if sigma > 0 else math.inf


def chosen_rows(dataset: Dataset) -> Dataset:
    """The verified rows of known targets that are predicted: all with counters, and the others in turns of
    their cases, at most `MOST_PREDICTED`.
    """
    frame = dataset.verified().frame
    frame = frame[frame["target"].isin(target_names())]
    turn = frame.groupby(["workload", "target"]).cumcount()
    first = turn.mask(frame["counters"].notna(), -1).sort_values(kind="stable").index[:MOST_PREDICTED]
    return Dataset(frame.loc[sorted(first)].reset_index(drop=True), dataset.metadata)


def predicted_rows(dataset: Dataset, model: CostModel) -> list[PredictedRow]:
    """The rows that the model does not refuse, in their order."""
    found: dict[int, PredictedRow] = {}
    frame = dataset.frame
    for name, rows in frame.groupby("target"):
        kernels = [profiles_of(text) for text in rows["profile"]]
        answers = predict_many(model, kernels, load_target(str(name)))
        for place, row, answer in zip(rows.index, rows.to_dict("records"), answers, strict=True):
            if isinstance(answer, Prediction):
                found[int(place)] = _predicted(row, answer, model)
    return [found[place] for place in sorted(found)]


def _predicted(row: Mapping[Any, Any], prediction: Prediction, model: CostModel) -> PredictedRow:
    counters = json.loads(row["counters"]) if isinstance(row["counters"], str) else {}
    trained = was_trained_on(model, row["run"])
    return PredictedRow(
        operator=row["operator"],
        shape=row["shape"],
        dtype=row["dtype"],
        target=row["target"],
        config=row["config"],
        measured_us=float(row["measured_us"]),
        prediction=prediction,
        is_training_row=trained,
        counters=counters,
    )
