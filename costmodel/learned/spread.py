"""The uncertainty of corrections, from errors on cases and kinds that a model was not trained on."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from .boosting import Array

ONE_SIGMA = 0.6827
# Share of errors within two sigma. Errors have longer tails than a normal distribution: sigmas that hold 68 %
# of them hold 90 % twice, and sigmas that hold 95 % twice are a tenth wider than these. With 93 % in place of
# 92, 75 to 77 % of the errors on held-out data were within one.
TWO_SIGMA = 0.92
LEAST_SIGMA = 0.01
KNOTS = (0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)  # distances between which sigma is interpolated
UNSEEN_SIGMA = 0.2  # least sigma of unseen kinds, if there was only one kind to train on
HOME = 1.5  # distances up to this are those of cases like the training cases
LEAST_ROWS = 20.0  # weight of all rows at each knot, beside the rows near it, in rows
# Sigma far from the training data: of a time that is sure, and for each squared unit of its gap. Held-out
# operators show how errors grow with the gap and the distance, but not by how much: the analytical model was
# developed with these operators in view. So both were fitted to public kernels that it had not seen
# (experiments/outside: the half of the first set that was opened last, as version 7 predicted it).
UNLIKE_SIGMA = 0.18
GAP_SIGMA = 0.13
LEAST_SHARE = 1e-3  # of the sure time
# Distance at which half of the squares of both is reached. Chosen on held-out operators and shapes and on the
# halves of the public kernels that were looked at: shares within one and two sigma.
HALFWAY = 2.8


class SureColumns(NamedTuple):
    """Columns of features whose shares of the predicted time are sure.

    They follow from figures of the target and from totals of the kernel, not from estimates of latencies,
    waits and instructions. The shares of `added` are added, and the largest of `limits`.
    """

    added: tuple[int, ...]
    limits: tuple[int, ...]

    def gap(self, features: Array) -> NDArray[np.float64]:
        """log(predicted time / sure time), at least 0, shape (n,)."""
        share = features[:, list(self.added)].sum(axis=1) + features[:, list(self.limits)].max(axis=1)
        return np.asarray(-np.log(np.clip(share, LEAST_SHARE, 1.0)), dtype=np.float64)


@dataclass(frozen=True)
class Spread:
    """The uncertainty of corrections: shape(x) * level, interpolated by distance, and what unlike rows add.

    `booster` predicts the log of the shape; without one the shape is 1. Without `sure` the time of all rows
    counts as sure.
    """

    booster: Any
    level: tuple[float, ...]  # at each of KNOTS, never falling
    sure: SureColumns | None = None

    def sigma(self, features: Array, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        """One sigma of the log ratio, shape (n,)."""
        level = np.interp(distance, KNOTS, self.level)
        found = np.hypot(level * self.shape(features), unlike(features, distance, self.sure))
        return np.maximum(LEAST_SIGMA, found)

    def shape(self, features: Array) -> NDArray[np.float64]:
        """Relative size of the errors of rows with such features, shape (n,)."""
        if self.booster is None or not len(features):
            return np.ones(len(features))
        log_shape = self.booster.inplace_predict(np.ascontiguousarray(features, dtype=np.float32))
        return np.asarray(np.exp(np.clip(log_shape, -1.5, 1.5)), dtype=np.float64)


def unlike(features: Array, distance: NDArray[np.float64], sure: SureColumns | None) -> NDArray[np.float64]:
    """The part of sigma that grows with the distance from the training data, shape (n,).

    A time far above what bytes and matrix instructions take rests on estimates. Near the training data these
    are known to hold; elsewhere they may be wrong by a factor.
    """
    gap = np.zeros(len(features)) if sure is None else sure.gap(features)
    share = 1 / (1 + (HALFWAY / np.maximum(distance, 1e-3)) ** 4)
    return np.asarray(np.sqrt(share) * np.hypot(UNLIKE_SIGMA, GAP_SIGMA * gap**2))


def fit_spread(
    features: Array,
    errors: Sequence[Array],
    distances: Sequence[NDArray[np.float64]],
    weights: Array,
    sure: SureColumns | None,
    seed: int,
    jobs: int,
) -> Spread:
    """Fit the uncertainty to errors of held-out rows.

    The shape is fitted to the errors of held-out cases. The level at a distance is the least with which 68 %
    of the errors near that distance are within one sigma and 92 % within two.

    Args:
        features: shape (n, f).
        errors: errors of held-out cases, and optionally of held-out kinds, each of shape (n,) for the same
            rows.
        distances: distances of the rows from the training rows, for each of `errors`.
        weights: shape (n,).
        sure: columns of `features` with shares of the time that are sure.
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
    error, distance = np.concatenate([np.abs(e) for e in errors]), np.concatenate(list(distances))
    added = np.concatenate([unlike(features, d, sure) for d in distances])
    scale, mass = np.concatenate([shape] * len(errors)), np.concatenate([weights] * len(errors))
    # the least level with which a row is within one sigma, and within two
    within_one, within_two = (
        np.sqrt(np.maximum(0.0, (error / count) ** 2 - added**2)) / scale for count in (1, 2)
    )
    level: list[float] = []
    for knot in KNOTS:
        near = mass * np.exp(-((np.log(np.maximum(distance, 0.1)) - np.log(knot)) ** 2) / (2 * 0.35**2))
        near = near + LEAST_ROWS * mass / mass.sum()
        found = max(_quantile(within_one, near, ONE_SIGMA), _quantile(within_two, near, TWO_SIGMA))
        if len(errors) == 1 and knot > HOME:
            found = max(found, UNSEEN_SIGMA)
        level.append(max(found, level[-1] if level else 0.0))
    return Spread(booster, tuple(level), sure)


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
