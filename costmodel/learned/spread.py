"""The uncertainty of corrections, from errors on cases and kinds that a model was not trained on."""

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
UNSEEN_SIGMA = 0.2  # least sigma of unseen kinds, if there was only one kind to train on
HOME = 1.5  # distances up to this are those of cases like the training cases
LEAST_ROWS = 20.0  # weight of all rows at each knot, beside the rows near it, in rows


@dataclass(frozen=True)
class Spread:
    """The uncertainty of corrections: sigma(x) = shape(x) * level, interpolated by distance.

    `booster` predicts the log of the shape; without one the shape is 1.
    """

    booster: Any
    level: tuple[float, ...]  # at each of KNOTS, never falling

    def sigma(self, features: Array, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        """One sigma of the log ratio, shape (n,)."""
        level = np.interp(distance, KNOTS, self.level)
        return np.maximum(LEAST_SIGMA, level * self.shape(features))

    def shape(self, features: Array) -> NDArray[np.float64]:
        """Relative size of the errors of rows with such features, shape (n,)."""
        if self.booster is None or not len(features):
            return np.ones(len(features))
        log_shape = self.booster.inplace_predict(np.ascontiguousarray(features, dtype=np.float32))
        return np.asarray(np.exp(np.clip(log_shape, -1.5, 1.5)), dtype=np.float64)


def fit_spread(
    features: Array,
    errors: Sequence[Array],
    distances: Sequence[NDArray[np.float64]],
    weights: Array,
    seed: int,
    jobs: int,
) -> Spread:
    """Fit the uncertainty to errors of held-out rows.

    The shape is fitted to the errors of held-out cases. The level at a distance is set so that 68 % of the
    errors near that distance are within one sigma.

    Args:
        features: shape (n, f).
        errors: errors of held-out cases, and optionally of held-out kinds, each of shape (n,) for the same
            rows.
        distances: distances of the rows from the training rows, for each of `errors`.
        weights: shape (n,).
        seed: seed of the trees.
        jobs: threads.
    """
    import xgboost

    # log of the absolute error less its mean; the noise of a single row is large, so the trees are few and
    # shallow
    target = np.log(np.maximum(np.abs(errors[0]), LEAST_SIGMA))
    data = xgboost.DMatrix(
        features, target - np.average(target, weights=weights), weight=weights, nthread=jobs
    )
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
    distance = np.concatenate(list(distances))
    mass = np.concatenate([weights] * len(errors))
    level: list[float] = []
    for knot in KNOTS:
        near = mass * np.exp(-((np.log(np.maximum(distance, 0.1)) - np.log(knot)) ** 2) / (2 * 0.35**2))
        near = near + LEAST_ROWS * mass / mass.sum()
        found = _quantile(scaled, near, ONE_SIGMA)
        if len(errors) == 1 and knot > HOME:
            found = max(found, UNSEEN_SIGMA)
        level.append(max(found, level[-1] if level else 0.0))
    return Spread(booster, tuple(level))


def few_kinds_factor(kinds: int) -> float:
    """Factor by which the errors of `kinds` held-out kinds understate those of another kind.

    Each kind is one sample, whatever its number of rows, so the error of a new kind follows Student's t
    distribution with one degree of freedom less than there are kinds.
    """
    from scipy.stats import t as student_t  # only training needs it

    return float(student_t.ppf((1 + ONE_SIGMA) / 2, kinds - 1) * math.sqrt(1 + 1 / kinds))


def _quantile(values: Array, weights: Array, share: float) -> float:
    order = np.argsort(values)
    total = np.cumsum(weights[order])
    return float(values[order][min(len(values) - 1, int(np.searchsorted(total, share * total[-1])))])
