"""Trains the learned model: a scikit-learn estimator that predicts log(measured / analytical).

It is an ensemble. Each member is trained without a part of the cases, and predicts the time by a weighted
mean of boosted trees and a small neural network: their errors differ, so those of the mean are smaller. The
errors of a member on the cases that it does not know calibrate the uncertainty. The errors of models on a
kind of kernel that they were not trained on set the gate. Beside these, each member has trees that separate
the best candidates of a case from the others. They generalise to kinds of kernels that were not seen, unlike
corrections of the time.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self, TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.validation import check_is_fitted, column_or_1d, validate_data

from .boosting import OBJECTIVES, Boosting, case_weights, train
from .correction import CorrectedRows, Correction, Member
from .gate import Gate, fit_gate
from .held_out import HeldOutPredictions, TrainingRows, held_out_loss
from .network import Network
from .network_training import NetworkTraining, train_networks
from .spread import HOME, Spread, SureColumns, few_kinds_factor, fit_spread

Choice = TypeVar("Choice")
DEFAULT_REACH = 2.0
REACHES = (0.0, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, float("inf"))
# trees for the order need fewer rounds than trees for the time: with more rounds they overfit
ORDER_ROUNDS, ORDER_DEPTH = 250, 4


class LatencyCorrection(RegressorMixin, BaseEstimator):  # type: ignore[misc]
    """Learns the log ratio of measured to analytically predicted time from dimensionless features.

    Args:
        objective: regression, ranking, or classification (near the best of its case or not).
        members: number of models in the ensemble; each is trained without its share of the cases.
        rounds: number of trees for the time of each member.
        depth: depth of these trees.
        learning_rate: weight of each tree.
        feature_share: share of the features that each node of a tree may use.
        min_child_weight: least weight of a leaf.
        l2: regularisation of the leaves.
        goodness: within a case, the weight of a candidate is (best time / its time) ** goodness.
        network_share: with objective regression, the weight of the networks in the time, beside that of the
            trees; 0 for none.
        epochs: how often each row is drawn in the training of a network.
        order_share: with objective regression, the weight of the trees for the order in the ranking score; 0
            for none. It does not change the predicted time.
        gated: whether corrections fade with the distance from the training data.
        sure: columns of the features with shares of the analytical time that are sure, as two tuples: those
            that are added and those of which the largest counts. The uncertainty of rows unlike the training
            data grows with the rest of the time.
        n_jobs: threads for training.
        random_state: seed.

    Attributes:
        correction_: members, gate and spread.
        n_features_in_: number of features.
        importances_: share of the gain by feature.
        coverage_: share of the held-out rows within one sigma.
        held_out_: log error of each training row, by the member that was trained without its case.
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
        network_share: float = 0.6,
        epochs: int = 40,
        order_share: float = 0.3,
        gated: bool = True,
        sure: tuple[tuple[int, ...], tuple[int, ...]] | None = None,
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
        self.network_share = network_share
        self.epochs = epochs
        self.order_share = order_share
        self.gated = gated
        self.sure = sure
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
        """Train the ensemble.

        Args:
            X: features, shape (n, f).
            y: log(measured / analytical), shape (n,).
            groups: the case of each row; one case if left out.
            kinds: the kind of kernel of each row. With two or more kinds, models trained without one kind set
                the gate.
            offset: log(analytical time), shape (n,), which determines the order of candidates within a case;
                the same for all rows if left out.

        Raises:
            ValueError: a parameter is out of range, or the lengths of the arguments differ.
        """
        features, ratio = validate_data(self, X, y, y_numeric=True, dtype=np.float32, ensure_min_samples=2)
        ratio = column_or_1d(ratio).astype(np.float64)
        self._check()
        count = len(ratio)
        cases = _label_numbers(groups, count, "groups")
        start = np.zeros(count) if offset is None else column_or_1d(offset).astype(np.float64)
        if len(start) != count:
            raise ValueError(f"offset has {len(start)} values for {count} rows; give one for each row")
        rows = TrainingRows(features, ratio, start, cases, case_weights(start + ratio, cases, self.goodness))
        seen_kinds = (
            _label_numbers(kinds, count, "kinds") if kinds is not None else np.zeros(count, dtype=np.int64)
        )
        parts = _left_out_by(cases, self.members, self.random_state)
        part_numbers = range(int(parts.max()) + 1)
        kind_numbers = range(int(seen_kinds.max()) + 1) if self.gated and seen_kinds.max() else range(0)
        trained = self._train(
            rows,
            [parts != part for part in part_numbers] + [seen_kinds != kind for kind in kind_numbers],
            [self.random_state + part for part in part_numbers] + [self.random_state for _ in kind_numbers],
        )
        self.members_ = trained[: len(part_numbers)]
        self.importances_ = _importances(self.members_, features.shape[1])
        gate = fit_gate(features, cases, self.random_state)
        unseen_cases = self._unseen_cases(rows, parts)
        unseen_kinds = self._unseen_kinds(rows, seen_kinds, trained[len(part_numbers) :])
        self.gate_ = self._set_gate(gate, rows, seen_kinds, unseen_cases, unseen_kinds)
        self.held_out_ = unseen_cases.errors(self.gate_)
        self.spread_ = self._fit_spread(rows, seen_kinds, unseen_cases, unseen_kinds)
        self.correction_ = Correction(tuple(self.members_), self.gate_, self.spread_)
        inside = np.abs(self.held_out_) <= self.spread_.sigma(features, unseen_cases.distance)
        self.coverage_ = float(np.average(inside, weights=rows.weights))
        return self

    def predict(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """Predicted log(measured / analytical), shape (n,)."""
        return self.predict_with_sigma(X)[0]

    def predict_with_sigma(
        self,
        X: ArrayLike,  # noqa: N803
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The correction and its uncertainty (one sigma) of the log ratio, each of shape (n,)."""
        found = self.applied(X)
        return found.time, found.sigma

    def trust(self, X: ArrayLike) -> NDArray[np.float64]:  # noqa: N803
        """Share of the correction that the gate keeps, shape (n,): 1 near the training data, 0 far away."""
        return self.applied(X).trust

    def applied(self, X: ArrayLike) -> CorrectedRows:  # noqa: N803
        """All corrections of rows of shape (n, f)."""
        check_is_fitted(self)
        return self.correction_.apply(validate_data(self, X, reset=False, dtype=np.float32))

    def _check(self) -> None:
        if self.objective not in OBJECTIVES:
            raise ValueError(f"objective '{self.objective}' is unknown; use one of {', '.join(OBJECTIVES)}")
        if self.members < 1 or self.rounds < 1:
            raise ValueError(f"members={self.members} and rounds={self.rounds} must be at least 1")
        if self.epochs < 1:
            raise ValueError(f"epochs={self.epochs} must be at least 1")
        for name, share in {"order_share": self.order_share, "network_share": self.network_share}.items():
            if not 0 <= share <= 1:
                raise ValueError(f"{name}={share} must lie between 0 and 1")

    def _train(
        self, rows: TrainingRows, masks: Sequence[NDArray[np.bool_]], seeds: Sequence[int]
    ) -> list[Member]:
        """A member for each mask of rows, with the seed of its trees."""
        # with a single case its member is trained on it
        chosen = [mask if mask.any() else np.ones_like(mask) for mask in masks]
        networks: Sequence[Network | None] = [None] * len(chosen)
        if self.objective == "regression" and self.network_share:
            how = NetworkTraining(self.epochs, seed=self.random_state)
            networks = train_networks(rows.features, rows.ratio, rows.weights, chosen, how)
        return [
            self._member(rows.of(mask), seed, network)
            for mask, seed, network in zip(chosen, seeds, networks, strict=True)
        ]

    def _member(self, own: TrainingRows, seed: int, network: Network | None) -> Member:
        """The trees for rows `own`, beside the network that was trained on them."""
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
        time = train(own.features, own.ratio, own.start, own.cases, own.weights, how)
        if network is not None:
            time, network = time.times(1 - self.network_share), network.times(self.network_share)
        if self.objective != "regression" or not self.order_share:
            return Member(time, network=network)
        how = replace(
            how,
            objective="classification",
            rounds=min(self.rounds, ORDER_ROUNDS),
            depth=min(self.depth, ORDER_DEPTH),
        )
        order = train(own.features, own.ratio, own.start, own.cases, own.weights, how)
        # the trees for the time determine the common factor, so the mean of the order is 0
        mean = float(np.average(order.correction(own.features), weights=own.weights))
        order = replace(order, intercept=order.intercept - mean)
        return Member(time, order.times(self.order_share), network)

    def _unseen_cases(self, rows: TrainingRows, parts: NDArray[np.integer[Any]]) -> HeldOutPredictions:
        """Predictions of the rows by the members that were trained without them."""
        found = HeldOutPredictions.empty(rows.ratio)
        for part, member in enumerate(self.members_):
            own = parts == part
            if own.all():
                found.put(own, rows, member, np.ones(len(rows.ratio)))
            else:
                gate = fit_gate(rows.features[~own], rows.cases[~own], self.random_state)
                found.put(own, rows, member, gate.distance(rows.features[own]))
        return found

    def _unseen_kinds(
        self, rows: TrainingRows, kinds: NDArray[np.integer[Any]], trained: Sequence[Member]
    ) -> HeldOutPredictions | None:
        """Predictions of the rows by the models that were trained without their kind.

        None if there is one kind.
        """
        if not trained:
            return None
        found = HeldOutPredictions.empty(rows.ratio)
        for kind, member in enumerate(trained):
            own = kinds == kind
            gate = fit_gate(rows.features[~own], rows.cases[~own], self.random_state)
            found.put(own, rows, member, gate.distance(rows.features[own]))
        return found

    def _set_gate(
        self,
        gate: Gate,
        rows: TrainingRows,
        kinds: NDArray[np.integer[Any]],
        unseen_cases: HeldOutPredictions,
        unseen_kinds: HeldOutPredictions | None,
    ) -> Gate:
        """The gate whose reach predicts and orders held-out cases and held-out kinds well."""
        if not self.gated:
            return gate
        if unseen_kinds is None:  # a single kind tells nothing about others
            return replace(gate, reach=DEFAULT_REACH)
        means = np.array(
            [
                np.average(rows.ratio[kinds == k], weights=rows.weights[kinds == k])
                for k in range(kinds.max() + 1)
            ]
        )
        others = (means.sum() - means[kinds]) / (len(means) - 1)  # common factor of the other kinds

        def losses(reach: float, share: float) -> NDArray[np.float64]:
            """The loss of each kind, for its rows as held-out cases and as a held-out kind."""
            tried = replace(gate, reach=reach)
            errors = (
                unseen_cases.errors(replace(tried, common=float(share * means.mean()))),
                unseen_kinds.errors(tried, share * others),
            )
            own = [kinds == k for k in range(kinds.max() + 1)]
            return np.array(
                [sum(held_out_loss(e[k], rows.weights[k], rows.cases[k]) for e in errors) for k in own]
            )

        tried = {(r, s): losses(r, s) for r in REACHES for s in (0.0, 0.5, 1.0)}
        reach, share = min(tried, key=lambda pair: float(tried[pair].mean()))
        if reach:  # corrections help: those of kernels like the training kernels are kept
            reach, share = most_cautious({pair: own for pair, own in tried.items() if pair[0]})
        return replace(gate, reach=reach, common=float(share * means.mean()))

    def _fit_spread(
        self,
        rows: TrainingRows,
        kinds: NDArray[np.integer[Any]],
        unseen_cases: HeldOutPredictions,
        unseen_kinds: HeldOutPredictions | None,
    ) -> Spread:
        errors, distances = [self.held_out_], [unseen_cases.distance]
        if unseen_kinds is not None:
            # a row of another kind that is close to the training rows is like them
            factor = np.where(unseen_kinds.distance > HOME, few_kinds_factor(int(kinds.max()) + 1), 1.0)
            errors.append(unseen_kinds.errors(self.gate_) * factor)
            distances.append(unseen_kinds.distance)
        sure = None if self.sure is None else SureColumns(*self.sure)
        return fit_spread(
            rows.features, errors, distances, rows.weights, sure, self.random_state, self.n_jobs or 1
        )


def most_cautious(losses: Mapping[Choice, NDArray[np.float64]]) -> Choice:
    """The first choice that is not clearly worse than the best one: by at most one standard error.

    A correction that helps some kinds of kernels can make another one much worse, and each kind is one sample
    only. Source: the one-standard-error rule of Breiman, Friedman, Olshen and Stone, 1984.

    Args:
        losses: the losses of all kinds with each choice, shape (kinds,), the most cautious choice first.
    """
    best = min(losses, key=lambda choice: float(losses[choice].mean()))
    for choice, found in losses.items():
        worse = found - losses[best]
        if worse.mean() <= worse.std(ddof=1) / math.sqrt(len(worse)):
            return choice
    return best


def _label_numbers(labels: ArrayLike | None, count: int, name: str) -> NDArray[np.int64]:
    if labels is None:
        return np.zeros(count, dtype=np.int64)
    given = column_or_1d(labels)
    if len(given) != count:
        raise ValueError(f"{name} has {len(given)} values for {count} rows; give one for each row")
    return np.asarray(np.unique(given, return_inverse=True)[1], dtype=np.int64)


def _left_out_by(cases: NDArray[np.int64], members: int, seed: int) -> NDArray[np.int64]:
    """The member that leaves out each row: whole cases in shuffled order, or single rows of a single case."""
    units = cases if cases.max() > 0 else np.arange(len(cases))
    count = int(units.max()) + 1
    order = np.random.default_rng(seed).permutation(count)
    part = np.empty(count, dtype=np.int64)
    part[order] = np.arange(count) % max(1, min(members, count))
    return np.asarray(part[units])


def _importances(members: list[Member], count: int) -> NDArray[np.float64]:
    total = np.zeros(count)
    for member in members:
        for name, gain in member.trees.booster.get_score(importance_type="total_gain").items():
            total[int(name[1:])] += gain
    return total / total.sum() if total.sum() > 0 else np.full(count, 1 / count)


__all__ = ["LatencyCorrection"]
