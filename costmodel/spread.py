"""How wrong a correction may be: from errors on cases, and on kinds, that a model had not seen."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .boosting import Array

ONE_SIGMA = 0.6827
LEAST_SIGMA = 0.01
KNOTS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # distances between which sigma is interpolated
UNSEEN_SIGMA = 0.2  # at least, of kinds never seen, where only one kind could be learned from
HOME = 1.5  # distances up to here are those of cases like the training's
LEAST_ROWS = 20.0  # an effective number of rows near a knot, below which all rows lend theirs


@dataclass(frozen=True)
class Spread:
    """sigma(x) = `shape`(x) * interpolation of `level` by distance. `booster` predicts the log of the shape; None: 1."""

    booster: Any
    level: tuple[float, ...]  # at KNOTS; never falls with distance

    def sigma(self, features: Array, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        """(n,) one sigma of the log ratio."""
        level = np.interp(distance, KNOTS, self.level)
        return np.maximum(LEAST_SIGMA, level * self.shape(features))

    def shape(self, features: Array) -> NDArray[np.float64]:
        if self.booster is None or not len(features):
            return np.ones(len(features))
        log_shape = self.booster.inplace_predict(np.ascontiguousarray(features, dtype=np.float32))
        return np.asarray(np.exp(np.clip(log_shape, -1.5, 1.5)), dtype=np.float64)


def fit_spread(
    features: Array, errors: Sequence[Array], distances: Sequence[NDArray[np.float64]], weights: Array, seed: int, jobs: int
) -> Spread:
    """`errors[0]` are those of held-out cases, `errors[1]`, where given, those of held-out kinds, of the same rows.

    The shape follows the features where the first kind of errors does; the level at a distance is set so that 68 % of the
    errors around it lie within one sigma.
    """
    import xgboost

    # log of the absolute error, less what it is for the mean row: noise of one row is large, so the trees are few and shallow
    target = np.log(np.maximum(np.abs(errors[0]), LEAST_SIGMA))
    data = xgboost.DMatrix(features, target - np.average(target, weights=weights), weight=weights, nthread=jobs)
    booster = xgboost.train(
        {
            "tree_method": "hist",
            "max_depth": 2,
            "eta": 0.05,
            "min_child_weight": 20,
            "lambda": 20,
            "base_score": 0.0,
            "seed": seed,
            "nthread": jobs,
        },
        data,
        num_boost_round=40,
    )
    shape = Spread(booster, (1.0,) * len(KNOTS)).shape(features)
    scaled = np.concatenate([np.abs(e) / shape for e in errors])
    where = np.concatenate(list(distances))
    mass = np.concatenate([weights] * len(errors))
    level: list[float] = []
    for knot in KNOTS:
        near = mass * np.exp(-((np.log(np.maximum(where, 0.1)) - np.log(knot)) ** 2) / (2 * 0.35**2))
        near = near + LEAST_ROWS * mass / mass.sum()
        found = _quantile(scaled, near, ONE_SIGMA)
        if len(errors) == 1 and knot > HOME:
            found = max(found, UNSEEN_SIGMA)
        level.append(max(found, level[-1] if level else 0.0))
    return Spread(booster, tuple(level))


def few_kinds_factor(kinds: int) -> float:
    """By how much errors of `kinds` held-out kinds understate those of another one: each kind is one draw, however many rows
    it has, so the spread of a new one follows Student's t with as many degrees less one."""
    from scipy.stats import t as student_t  # for training alone

    return float(student_t.ppf((1 + ONE_SIGMA) / 2, kinds - 1) * math.sqrt(1 + 1 / kinds))


def _quantile(values: Array, weights: Array, share: float) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][min(len(values) - 1, int(np.searchsorted(total, share * total[-1])))])
