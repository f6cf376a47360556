"""One fold of an evaluation: trains models without its held-out rows, and predicts these."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..analytical.analytical_model import AnalyticalModel
from ..analytical.constants import Constants
from .row_table import RowTable
from .train import train_correction
from .yardsticks import learned_alone, on_configs

ANALYTICAL, BOTH, ALONE, CONFIGS = "analytical", "both", "learned alone", "config boosting"


@dataclass(frozen=True)
class Judging:
    """The models of an evaluation.

    Args:
        objectives: objectives of the learned model, each evaluated as a model.
        constants: of the analytical model.
        yardsticks: whether to add boosting on plain counts and on config values.
        parameters: parameters of `LatencyCorrection`.
    """

    objectives: tuple[str, ...]
    constants: Constants
    yardsticks: bool
    parameters: Mapping[str, Any]

    def name(self, model: str, objective: str) -> str:
        """The name of a model with this objective."""
        return model if len(self.objectives) == 1 else f"{model}, {objective}"


@dataclass(frozen=True)
class FoldPredictions:
    """Predictions of a fold's held-out rows, shape (m,), by model."""

    logs: Mapping[str, NDArray[np.float64]]  # log microseconds
    orders: Mapping[str, NDArray[np.float64]]  # added to the log time for the order of candidates
    sigmas: Mapping[str, NDArray[np.float64]]  # of the log time
    refused: int  # rows that the analytical model refuses


def predict_fold(table: RowTable, test: NDArray[np.bool_], how: Judging) -> FoldPredictions:
    """Train the models on the other rows, and predict those of the mask `test`, shape (n,)."""
    rows = table.rows
    seen = table.described(AnalyticalModel(how.constants))
    with np.errstate(divide="ignore"):
        offset = np.log(seen.analytical_us)
    logs = {ANALYTICAL: offset[test]}
    orders: dict[str, NDArray[np.float64]] = {}
    sigmas: dict[str, NDArray[np.float64]] = {}
    for objective in how.objectives:
        both = how.name(BOTH, objective)
        chosen = {**how.parameters, "objective": objective}
        found = train_correction(rows, seen, ~test, **chosen).applied(seen.features[test])
        logs[both], orders[both], sigmas[both] = offset[test] + found.time, found.order, found.sigma
        if how.yardsticks:
            logs[how.name(ALONE, objective)] = learned_alone(rows, table.counts, ~test, test, **chosen)
            logs[how.name(CONFIGS, objective)] = on_configs(rows, test, table.problems, **chosen)
    return FoldPredictions(logs, orders, sigmas, int((test & ~seen.usable).sum()))
