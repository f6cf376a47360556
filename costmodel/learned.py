"""The learned model: an estimator in scikit-learn's conventions that predicts log(measured / analytical).

An ensemble of boosted trees, each member trained without a part of the cases. What a member says of the cases that it has
not seen calibrates the uncertainty; what models trained without a whole kind of kernel say of that kind sets the gate.
Beside trees for the time each member has trees that tell the best of a case from the others: what they learn holds also for
kinds of kernels never seen, where corrections of the time do not.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from .boosting import OBJECTIVES, Array, Boosting, case_slices, case_weights, train
from .correction import Corrected, Correction, Member, blend
from .gate import Gate, fit_gate
from .spread import HOME, Spread, few_kinds_factor, fit_spread

DEFAULT_REACH = 2.0
REACHES = (0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, float("inf"))
# trees for the order need fewer rounds than those for the time: with more they repeat the cases they saw
ORDER_ROUNDS, ORDER_DEPTH = 250, 4
ORDER_WEIGHT = 1.0  # of errors within a case, which decide the ranking, beside absolute ones


class LatencyCorrection(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Learns the log ratio of measured to analytically predicted time from dimensionless features.

    Parameters
    ----------
    objective : regression, ranking or classification (near the best of its case or not)
    members : models in the ensemble; each leaves out its share of the cases
    rounds, depth, learning_rate, feature_share, min_child_weight, l2 : of each member's trees
    order_share : beside objective regression, how much of what trees trained by classification say of the order is added to
        the log time where candidates are put in order; no part of the time; 0 for none
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
        rounds: int = 300,
        depth: int = 5,
        learning_rate: float = 0.1,
        feature_share: float = 0.3,
        min_child_weight: float = 5.0,
        l2: float = 3.0,
        goodness: float = 0.5,
        order_share: float = 0.3,
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
        self.order_share = order_share
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
        rows = _Rows(features, ratio, start, cases, case_weights(start + ratio, cases, self.goodness))
        seen_kinds = _numbered(kinds, count, "kinds") if kinds is not None else np.zeros(count, dtype=np.int64)
        parts = _dealt(cases, self.members, self.random_state)
        self.members_ = [self._train(rows, parts != part, self.random_state + part) for part in range(parts.max() + 1)]
        self.importances_ = _importances(self.members_, features.shape[1])
        gate = fit_gate(features, cases, self.importances_, self.random_state)
        home = self._unseen_cases(rows, parts)
        abroad = self._unseen_kinds(rows, seen_kinds)
        self.gate_ = self._set_gate(gate, rows, seen_kinds, home, abroad)
        self.held_out_ = home.errors(self.gate_)
        self.spread_ = self._fit_spread(rows, seen_kinds, home, abroad)
        self.correction_ = Correction(tuple(self.members_), self.gate_, self.spread_)
        inside = np.abs(self.held_out_) <= self.spread_.sigma(features, home.distance)
        self.coverage_ = float(np.average(inside, weights=rows.weights))
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """(n,) log(measured / analytical)."""
        return self.predict_with_sigma(X)[0]

    def predict_with_sigma(self, X: ArrayLike) -> tuple[NDArray[np.float64], NDArray[np.float64]]:  # noqa: N803
        """(n,) correction and (n,) its uncertainty, one sigma, both of the log ratio."""
        found = self.applied(X)
        return found.time, found.sigma

    def trust(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """(n,) share of the correction that the gate leaves: 1 near the training data, towards 0 far from it."""
        return self.applied(X).trust

    def applied(self, X: ArrayLike) -> Corrected:  # noqa: N803
        """All that is known of rows (n, f)."""
        check_is_fitted(self)
        return self.correction_.apply(validate_data(self, X, reset=False, dtype=np.float32))

    def _check(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective '{self.objective}' is unknown; use one of {', '.join(OBJECTIVES)}")
        if self.members < 1 or self.rounds < 1:
            raise ValueError(f"members={self.members} and rounds={self.rounds} must be at least 1")
        if not 0 <= self.order_share <= 1:
            raise ValueError(f"order_share={self.order_share} must lie between 0 and 1")

    def _train(self, rows: _Rows, chosen: NDArray[np.bool_], seed: int) -> Member:
        if not chosen.any():  # one case alone: its member sees it
            chosen = np.ones(len(rows.ratio), dtype=bool)
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
        own = rows.of(chosen)
        time = train(own.features, own.ratio, own.start, own.cases, own.weights, how)
        if self.objective != "regression" or not self.order_share:
            return Member(time)
        how = replace(how, objective="classification", rounds=min(self.rounds, ORDER_ROUNDS), depth=min(self.depth, ORDER_DEPTH))
        order = train(own.features, own.ratio, own.start, own.cases, own.weights, how)
        # the common factor is the other trees' part: these move candidates against each other, and on average nothing
        mean = float(np.average(order.correction(own.features), weights=own.weights))
        return Member(time, replace(order, scale=self.order_share * order.scale, intercept=self.order_share * (order.intercept - mean)))

    def _unseen_cases(self, rows: _Rows, parts: NDArray[np.integer[Any]]) -> _Unseen:
        """What the members say of the rows that they have not seen."""
        found = _Unseen.empty(rows.ratio)
        for part, member in enumerate(self.members_):
            own = parts == part
            if own.all():
                found.put(own, rows, member, np.ones(len(rows.ratio)))
            else:
                gate = fit_gate(rows.features[~own], rows.cases[~own], self.importances_, self.random_state)
                found.put(own, rows, member, gate.distance(rows.features[own]))
        return found

    def _unseen_kinds(self, rows: _Rows, kinds: NDArray[np.integer[Any]]) -> _Unseen | None:
        """What a model trained without a row's kind says of it; None where there is only one kind."""
        if not self.gated or kinds.max() == 0:
            return None
        found = _Unseen.empty(rows.ratio)
        for kind in range(kinds.max() + 1):
            own = kinds == kind
            member = self._train(rows, ~own, self.random_state)
            importance = _importances([member], rows.features.shape[1])
            gate = fit_gate(rows.features[~own], rows.cases[~own], importance, self.random_state)
            found.put(own, rows, member, gate.distance(rows.features[own]))
        return found

    def _set_gate(self, gate: Gate, rows: _Rows, kinds: NDArray[np.integer[Any]], home: _Unseen, abroad: _Unseen | None) -> Gate:
        """The reach under which held-out cases and held-out kinds together are predicted and ordered best."""
        if not self.gated:
            return gate
        if abroad is None:  # of one kind alone nothing can be learned about others
            return replace(gate, reach=DEFAULT_REACH)
        means = np.array([np.average(rows.ratio[kinds == k], weights=rows.weights[kinds == k]) for k in range(kinds.max() + 1)])
        others = (means.sum() - means[kinds]) / (len(means) - 1)  # the common factor of the kinds that were seen

        def loss(reach: float, share: float) -> float:
            tried = replace(gate, reach=reach)
            errors = (home.errors(replace(tried, common=float(share * means.mean()))), abroad.errors(tried, share * others))
            return sum(_loss(e, rows.weights, rows.cases) for e in errors)

        reach, share = min(((r, s) for r in REACHES for s in (0.0, 0.5, 1.0)), key=lambda pair: loss(*pair))
        return replace(gate, reach=reach, common=float(share * means.mean()))

    def _fit_spread(self, rows: _Rows, kinds: NDArray[np.integer[Any]], home: _Unseen, abroad: _Unseen | None) -> Spread:
        errors, distances = [self.held_out_], [home.distance]
        if abroad is not None:
            # a row of another kind that lies among the training's is like them
            factor = np.where(abroad.distance > HOME, few_kinds_factor(int(kinds.max()) + 1), 1.0)
            errors.append(abroad.errors(self.gate_) * factor)
            distances.append(abroad.distance)
        return fit_spread(rows.features, errors, distances, rows.weights, self.random_state, self.n_jobs or 1)


@dataclass(frozen=True)
class _Rows:
    """Training rows: `ratio` is log(measured / analytical), `start` log(analytical)."""

    features: Array
    ratio: NDArray[np.float64]
    start: NDArray[np.float64]
    cases: NDArray[np.int64]
    weights: NDArray[np.float64]

    def of(self, chosen: NDArray[np.bool_]) -> _Rows:
        return _Rows(self.features[chosen], self.ratio[chosen], self.start[chosen], self.cases[chosen], self.weights[chosen])


@dataclass(frozen=True)
class _Unseen:
    """Of each row, what a member says that was trained without it, and how far it lies from what that one was trained on."""

    ratio: NDArray[np.float64]
    time: NDArray[np.float64]
    distance: NDArray[np.float64]

    @classmethod
    def empty(cls, ratio: NDArray[np.float64]) -> _Unseen:
        return cls(ratio, np.empty_like(ratio), np.empty_like(ratio))

    def put(self, own: NDArray[np.bool_], rows: _Rows, member: Member, distance: NDArray[np.float64]) -> None:
        self.time[own], self.distance[own] = member.time.correction(rows.features[own]), distance

    def errors(self, gate: Gate, common: Any = None) -> NDArray[np.float64]:
        """(n,) log(measured / predicted) under `gate`, or with other common factors than the gate's."""
        return self.ratio - blend(self.time, gate.trust(self.distance), gate.common if common is None else common)


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


def _importances(members: list[Member], count: int) -> NDArray[np.float64]:
    total = np.zeros(count)
    for member in members:
        for name, gain in member.time.booster.get_score(importance_type="total_gain").items():
            total[int(name[1:])] += gain
    return total / total.sum() if total.sum() > 0 else np.full(count, 1 / count)


__all__ = ["LatencyCorrection"]
