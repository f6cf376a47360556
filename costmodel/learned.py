"""The learned model: an estimator in scikit-learn's conventions that predicts log(measured / analytical).

An ensemble of boosted trees, each trained without a part of the cases. What a member says of the cases that it has not
seen calibrates the uncertainty; what models trained without a whole kind of kernel say of that kind sets the gate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from .boosting import OBJECTIVES, Array, Boosting, Trained, case_slices, case_weights, train
from .correction import Correction, blend
from .gate import Gate, fit_gate, trust
from .spread import Spread, fit_spread

DEFAULT_REACH = 2.0
REACHES = (0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, float("inf"))
ORDER_WEIGHT = 1.0  # of errors within a case, which decide the ranking, beside absolute ones


class LatencyCorrection(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Learns the log ratio of measured to analytically predicted time from dimensionless features.

    Parameters
    ----------
    objective : regression, ranking or classification (near the best of its case or not)
    members : models in the ensemble; each leaves out its share of the cases
    rounds, depth, learning_rate, feature_share, min_child_weight, l2 : of each member's trees
    goodness : within a case a candidate weighs (best time / its time) ** goodness
    gated : let corrections fade with the distance from the training data
    n_jobs : threads for training
    random_state : seed

    Attributes after fit: `correction_` (members, gate and spread, ready to be applied), `n_features_in_`,
    `importances_` (share of the gain by feature), `coverage_` (share of held-out rows within one sigma), `held_out_` (log
    error of each training row by the member that has not seen its case).
    """

    def __init__(
        self,
        *,
        objective: str = "regression",
        members: int = 5,
        rounds: int = 250,
        depth: int = 4,
        learning_rate: float = 0.05,
        feature_share: float = 0.3,
        min_child_weight: float = 5.0,
        l2: float = 3.0,
        goodness: float = 0.5,
        gated: bool = True,
        n_jobs: int | None = None,
        random_state: int = 0,
    ) -> None:
        self.objective = objective
        self.members = members
        self.rounds = rounds
        self.depth = depth
        self.learning_rate = learning_rate
        self.feature_share = feature_share
        self.min_child_weight = min_child_weight
        self.l2 = l2
        self.goodness = goodness
        self.gated = gated
        self.n_jobs = n_jobs
        self.random_state = random_state

    def fit(
        self,
        X: ArrayLike,  # noqa: N803
        y: ArrayLike,
        groups: ArrayLike | None = None,
        kinds: ArrayLike | None = None,
        offset: ArrayLike | None = None,
    ) -> Self:
        """`X` (n, f); `y` (n,) is log(measured / analytical).

        `groups` names the case of each row (all one where left out), `kinds` what each case computes: with two kinds or
        more the gate is set by models that have not seen a kind. `offset` is log(analytical time), needed to know the
        order of candidates within a case; the same for all where left out.
        """
        features, ratio = validate_data(self, X, y, y_numeric=True, dtype=np.float32, ensure_min_samples=2)
        ratio = column_or_1d(ratio).astype(np.float64)
        self._check()
        count = len(ratio)
        cases = _numbered(groups, count, "groups")
        start = np.zeros(count) if offset is None else column_or_1d(offset).astype(np.float64)
        if len(start) != count:
            raise ValueError(f"offset has {len(start)} values for {count} rows; give one for each row")
        weights = case_weights(start + ratio, cases, self.goodness)
        parts = _dealt(cases, self.members, self.random_state)
        self.members_ = [
            self._train(features, ratio, start, cases, weights, parts != part, self.random_state + part) for part in range(parts.max() + 1)
        ]
        self.importances_ = _importances(self.members_, features.shape[1])
        unseen = np.empty(count)
        for part, member in enumerate(self.members_):
            unseen[parts == part] = member.correction(features[parts == part])
        gate = fit_gate(features, cases, self.importances_, self.random_state)
        away = np.empty(count)
        for part in range(parts.max() + 1):
            own = parts == part
            away[own] = (
                1.0 if own.all() else fit_gate(features[~own], cases[~own], self.importances_, self.random_state).distance(features[own])
            )
        seen_kinds = _numbered(kinds, count, "kinds") if kinds is not None else np.zeros(count, dtype=np.int64)
        far, far_distance = self._unseen_kinds(features, ratio, start, cases, weights, seen_kinds)
        self.gate_ = self._set_gate(gate, ratio, weights, cases, seen_kinds, unseen, away, far, far_distance)
        self.held_out_ = ratio - blend(unseen, self.gate_.trust(away), self.gate_.common)
        self.spread_ = self._fit_spread(features, ratio, weights, away, far, far_distance)
        self.correction_ = Correction(tuple(self.members_), self.gate_, self.spread_)
        inside = np.abs(self.held_out_) <= self.spread_.sigma(features, away)
        self.coverage_ = float(np.average(inside, weights=weights))
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """(n,) log(measured / analytical)."""
        return self.predict_with_sigma(X)[0]

    def predict_with_sigma(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # noqa: N803
        """(n,) correction and (n,) its uncertainty, one sigma, both of the log ratio."""
        check_is_fitted(self)
        correction, sigma, _ = self.correction_.apply(validate_data(self, X, reset=False, dtype=np.float32))
        return correction, sigma

    def trust(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """(n,) share of the correction that the gate leaves: 1 near the training data, towards 0 far from it."""
        check_is_fitted(self)
        return self.correction_.apply(validate_data(self, X, reset=False, dtype=np.float32))[2]

    def _check(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective '{self.objective}' is unknown; use one of {', '.join(OBJECTIVES)}")
        if self.members < 1 or self.rounds < 1:
            raise ValueError(f"members={self.members} and rounds={self.rounds} must be at least 1")

    def _train(
        self,
        features: Array,
        ratio: Array,
        start: Array,
        cases: NDArray[np.integer[Any]],
        weights: Array,
        chosen: NDArray[np.bool_],
        seed: int,
    ) -> Trained:
        if not chosen.any():  # one case alone: its member sees it
            chosen = np.ones(len(ratio), dtype=bool)
        how = Boosting(
            self.objective,
            self.rounds,
            self.depth,
            self.learning_rate,
            self.feature_share,
            self.min_child_weight,
            self.l2,
            seed,
            self.n_jobs or 1,
        )
        return train(features[chosen], ratio[chosen], start[chosen], cases[chosen], weights[chosen], how)

    def _unseen_kinds(
        self, features: Array, ratio: Array, start: Array, cases: NDArray[Any], weights: Array, kinds: NDArray[np.integer[Any]]
    ) -> tuple[NDArray[np.float64] | None, NDArray[np.float64]]:
        """Corrections of each row by a model trained without its kind, and its distance from what that one saw."""
        if not self.gated or kinds.max() == 0:
            return None, np.empty(0)
        found, distance = np.empty(len(ratio)), np.empty(len(ratio))
        for kind in range(kinds.max() + 1):
            own = kinds == kind
            model = self._train(features, ratio, start, cases, weights, ~own, self.random_state)
            found[own] = model.correction(features[own])
            importance = _importances([model], features.shape[1])
            distance[own] = fit_gate(features[~own], cases[~own], importance, self.random_state).distance(features[own])
        return found, distance

    def _set_gate(
        self,
        gate: Gate,
        ratio: Array,
        weights: Array,
        cases: NDArray[Any],
        kinds: NDArray[np.integer[Any]],
        unseen: NDArray[np.float64],
        away: NDArray[np.float64],
        far: NDArray[np.float64] | None,
        far_distance: NDArray[np.float64],
    ) -> Gate:
        """The reach under which held-out cases and held-out kinds together are predicted and ordered best."""
        if not self.gated:
            return gate
        if far is None:  # of one kind alone nothing can be learned about others
            return replace(gate, reach=DEFAULT_REACH)
        means = np.array([np.average(ratio[kinds == k], weights=weights[kinds == k]) for k in range(kinds.max() + 1)])
        others = (means.sum() - means[kinds]) / (len(means) - 1)  # the common factor of the kinds that were seen

        def loss(reach: float, share: float) -> float:
            home = _loss(ratio - blend(unseen, trust(away, reach), share * means.mean()), weights, cases)
            abroad = _loss(ratio - blend(far, trust(far_distance, reach), share * others), weights, cases)
            return home + abroad

        reach, share = min(((r, s) for r in REACHES for s in (0.0, 0.5, 1.0)), key=lambda pair: loss(*pair))
        return replace(gate, reach=reach, common=float(share * means.mean()))

    def _fit_spread(
        self,
        features: Array,
        ratio: Array,
        weights: Array,
        away: NDArray[np.float64],
        far: NDArray[np.float64] | None,
        far_distance: NDArray[np.float64],
    ) -> Spread:
        errors = [self.held_out_]
        distances = [away]
        if far is not None:
            errors.append(ratio - blend(far, self.gate_.trust(far_distance), self.gate_.common))
            distances.append(far_distance)
        return fit_spread(features, errors, distances, weights, self.random_state, self.n_jobs or 1)


def _loss(error: NDArray[np.float64], weights: Array, cases: NDArray[Any]) -> float:
    """Mean absolute error, and that of the order within cases: each case less its own weighted mean."""
    within = error.copy()
    for rows in case_slices(cases):
        within[rows] -= np.average(error[rows], weights=weights[rows])
    return float(np.average(np.abs(error), weights=weights) + ORDER_WEIGHT * np.average(np.abs(within), weights=weights))


def _numbered(labels: ArrayLike | None, count: int, name: str) -> NDArray[np.int64]:
    if labels is None:
        return np.zeros(count, dtype=np.int64)
    given = column_or_1d(labels)
    if len(given) != count:
        raise ValueError(f"{name} has {len(given)} values for {count} rows; give one for each row")
    return np.asarray(np.unique(given, return_inverse=True)[1], dtype=np.int64)


def _dealt(cases: NDArray[np.int64], members: int, seed: int) -> NDArray[np.int64]:
    """Which member leaves a row out: whole cases, dealt in a shuffled order; rows where there is one case only."""
    units = cases if cases.max() > 0 else np.arange(len(cases))
    count = int(units.max()) + 1
    order = np.random.default_rng(seed).permutation(count)
    part = np.empty(count, dtype=np.int64)
    part[order] = np.arange(count) % max(1, min(members, count))
    return np.asarray(part[units])


def _importances(members: list[Trained], count: int) -> NDArray[np.float64]:
    total = np.zeros(count)
    for member in members:
        for name, gain in member.booster.get_score(importance_type="total_gain").items():
            total[int(name[1:])] += gain
    return total / total.sum() if total.sum() > 0 else np.full(count, 1 / count)


__all__ = ["LatencyCorrection"]
