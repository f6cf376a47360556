"""Boosted trees that correct a prediction in log space, for three objectives.

All start from the offset (the log of what is corrected) and add a correction to it: regression of the log ratio, order of
the candidates within a case, or whether a candidate is near the best of its case. Their margins stand in the same unit, so
that a correction is a correction whatever it was trained for.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

OBJECTIVES = ("regression", "ranking", "classification")
# of log latency, for one unit of margin: two candidates 5 % apart are told apart with odds of e
TEMPERATURE = 0.05
NEAR_BEST = 0.05  # classification: within this share of the case's best
PAIRS = 8  # ranking: how many others each candidate is compared with in a round
# second derivatives of pairs and of shares are small: regression's regularisation would let no tree grow
GENTLE = {"ranking": {"min_child_weight": 0.0, "lambda": 0.01}, "classification": {"min_child_weight": 0.3, "lambda": 0.3}}


@dataclass(frozen=True, slots=True)
class Boosting:
    """How one booster is trained; small trees, each on a share of the features, generalise to kernels never seen."""

    objective: str
    rounds: int
    depth: int
    learning_rate: float
    feature_share: float
    min_child_weight: float
    l2: float
    seed: int
    jobs: int = 1


@dataclass(frozen=True)
class Trained:
    """A booster; `correction` is `scale` times its margin plus `intercept`."""

    booster: Any
    scale: float
    intercept: float

    def correction(self, features: Array) -> NDArray[np.float64]:
        margin = self.booster.inplace_predict(
            np.ascontiguousarray(features, dtype=np.float32), predict_type="margin", base_margin=np.zeros(len(features), np.float32)
        )
        return np.asarray(self.intercept + self.scale * margin, dtype=np.float64)


def case_slices(groups: NDArray[np.integer[Any]]) -> Iterator[NDArray[np.intp]]:
    """Row numbers of each case."""
    order = np.argsort(groups, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)


def case_weights(measured_log: Array, groups: NDArray[np.integer[Any]], goodness: float) -> NDArray[np.float64]:
    """Each case weighs the same; within one a candidate weighs (best time / its time) ** goodness. Mean weight is 1."""
    weights = np.empty(len(groups))
    for rows in case_slices(groups):
        own = np.exp(-goodness * (measured_log[rows] - measured_log[rows].min()))
        weights[rows] = own / own.sum()
    return np.asarray(weights * (len(groups) / weights.sum()))


def train(features: Array, ratio_log: Array, offset: Array, groups: NDArray[np.integer[Any]], weights: Array, how: Boosting) -> Trained:
    """Train on rows `features` (n, f) with log(measured / offset's time) `ratio_log`."""
    import xgboost

    if how.objective == "regression":
        intercept = float(np.average(ratio_log, weights=weights))
        data = xgboost.DMatrix(features, ratio_log - intercept, weight=weights, nthread=how.jobs)
        data.set_base_margin(np.zeros(len(features)))
        return Trained(_boost(data, how, {"objective": "reg:squarederror"}), 1.0, intercept)
    order = np.argsort(groups, kind="stable")
    measured = (offset + ratio_log)[order]
    relative, margin = np.empty(len(order)), np.empty(len(order))
    starts = np.r_[0, np.flatnonzero(np.diff(groups[order])) + 1, len(order)]
    for begin, end in pairwise(starts):
        relative[begin:end] = measured[begin:end] - measured[begin:end].min()
        near = offset[order][begin:end]
        # a candidate's chance falls with its distance to the best, predicted or measured
        margin[begin:end] = -(near - near.min() - np.log1p(NEAR_BEST)) / TEMPERATURE
    if how.objective == "ranking":
        data = xgboost.DMatrix(features[order], np.exp(-relative), qid=groups[order], base_margin=margin, nthread=how.jobs)
        parameters = {"objective": "rank:pairwise", "lambdarank_pair_method": "mean", "lambdarank_num_pair_per_sample": PAIRS}
    else:
        near_best = relative <= np.log1p(NEAR_BEST)
        data = xgboost.DMatrix(features[order], near_best, weight=weights[order], base_margin=margin, nthread=how.jobs)
        parameters = {"objective": "binary:logistic"}
    found = Trained(_boost(data, how, parameters), -TEMPERATURE, 0.0)
    # order alone says nothing of the common factor: it is what is left on average
    return Trained(found.booster, found.scale, float(np.average(ratio_log - found.correction(features), weights=weights)))


def _boost(data: Any, how: Boosting, parameters: dict[str, Any]) -> Any:
    import xgboost

    return xgboost.train(
        {
            "tree_method": "hist",
            "max_bin": 128,
            "max_depth": how.depth,
            "eta": how.learning_rate,
            "colsample_bynode": how.feature_share,
            "min_child_weight": how.min_child_weight,
            "lambda": how.l2,
            "seed": how.seed,
            "base_score": 0.0 if parameters["objective"] != "binary:logistic" else 0.5,
            "disable_default_eval_metric": True,
            "nthread": how.jobs,
            **GENTLE.get(how.objective, {}),
            **parameters,
        },
        data,
        num_boost_round=how.rounds,
    )
