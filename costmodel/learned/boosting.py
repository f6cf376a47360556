"""Trains boosted trees that correct a log time, for three objectives.

All objectives start from an offset, the log of the corrected time, and add a correction to it: regression of
the log ratio, ranking of the candidates within a case, or classification of candidates as near the best of
their case. Their margins are scaled to the same unit, so corrections of all objectives can be compared.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.floating[Any]]

OBJECTIVES = ("regression", "ranking", "classification")
# log latency of one unit of margin: two candidates that differ by 5 % are told apart with odds of e
TEMPERATURE = 0.05
NEAR_BEST = 0.05  # classification: relative distance to the best of the case
PAIRS = 8  # ranking: number of others that each candidate is compared with in a round
# Second derivatives of pairs and shares are small, so the regularisation for regression would let no tree
# grow.
GENTLE = {
    "ranking": {"min_child_weight": 0.0, "lambda": 0.01},
    "classification": {"min_child_weight": 0.3, "lambda": 0.3},
}


@dataclass(frozen=True, slots=True)
class Boosting:
    """Parameters of one booster.

    Small trees, each on a share of the features, generalise to unseen kernels.
    """

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
    """A trained booster. Its correction is `scale` times its margin plus `intercept`."""

    booster: Any
    scale: float
    intercept: float

    def correction(self, features: Array) -> NDArray[np.float64]:
        """Corrections of the log time, shape (n,), of rows `features`, shape (n, f)."""
        margin = self.booster.inplace_predict(
            np.ascontiguousarray(features, dtype=np.float32),
            predict_type="margin",
            base_margin=np.zeros(len(features), np.float32),
        )
        return np.asarray(self.intercept + self.scale * margin, dtype=np.float64)

    def times(self, share: float) -> Trained:
        """The booster whose correction is `share` times that of this one."""
        return replace(self, scale=share * self.scale, intercept=share * self.intercept)


def case_slices(groups: NDArray[np.integer[Any]]) -> Iterator[NDArray[np.intp]]:
    """The row numbers of each case."""
    order = np.argsort(groups, kind="stable")
    yield from np.split(order, np.flatnonzero(np.diff(groups[order])) + 1)


def case_weights(
    measured_log: Array, groups: NDArray[np.integer[Any]], goodness: float
) -> NDArray[np.float64]:
    """Weights of rows with mean 1, and the same sum for each case.

    Within a case, the weight of a candidate is proportional to (best time / its time) ** goodness.
    """
    weights = np.empty(len(groups))
    for rows in case_slices(groups):
        own = np.exp(-goodness * (measured_log[rows] - measured_log[rows].min()))
        weights[rows] = own / own.sum()
    return np.asarray(weights * (len(groups) / weights.sum()))


def train(
    features: Array,
    ratio_log: Array,
    offset: Array,
    groups: NDArray[np.integer[Any]],
    weights: Array,
    how: Boosting,
) -> Trained:
    """Train one booster.

    Args:
        features: shape (n, f).
        ratio_log: shape (n,), log(measured time / time of the offset).
        offset: shape (n,), log of the time that is corrected.
        groups: shape (n,), the case of each row.
        weights: shape (n,).
        how: the parameters.
    """
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
        # the chance of a candidate falls with its distance to the best one, predicted or measured
        margin[begin:end] = -(near - near.min() - np.log1p(NEAR_BEST)) / TEMPERATURE
    if how.objective == "ranking":
        data = xgboost.DMatrix(
            features[order], np.exp(-relative), qid=groups[order], base_margin=margin, nthread=how.jobs
        )
        parameters = {
            "objective": "rank:pairwise",
            "lambdarank_pair_method": "mean",
            "lambdarank_num_pair_per_sample": PAIRS,
        }
    else:
        near_best = relative <= np.log1p(NEAR_BEST)
        data = xgboost.DMatrix(
            features[order], near_best, weight=weights[order], base_margin=margin, nthread=how.jobs
        )
        parameters = {"objective": "binary:logistic"}
    found = Trained(_boost(data, how, parameters), -TEMPERATURE, 0.0)
    # an order does not determine the common factor: it is the mean of the remaining ratios
    return Trained(
        found.booster, found.scale, float(np.average(ratio_log - found.correction(features), weights=weights))
    )


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
