from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import GroupKFold, cross_val_predict
from sklearn.utils.estimator_checks import parametrize_with_checks

from tests.unit.costmodel.measured_samples import FAST
from tilesight.costmodel.learned.boosting import OBJECTIVES
from tilesight.costmodel.learned.estimator import LatencyCorrection, most_cautious
from tilesight.costmodel.learned.spread import few_kinds_factor
from tilesight.costmodel.training import metrics

Array = NDArray[np.float64]


@parametrize_with_checks(
    [
        LatencyCorrection(
            rounds=20, network_share=0.0, members=2, depth=3, min_child_weight=0.0, l2=0.0, learning_rate=0.3
        )
    ]
)
def test_follows_the_conventions_of_scikit_learn(estimator: Any, check: Any) -> None:
    check(estimator)


def cases(count: int = 12, each: int = 30, seed: int = 0) -> tuple[Array, Array, Array, NDArray[np.int64]]:
    """Features, log ratios, log analytical times, cases. The ratios follow the first two features."""
    generator = np.random.default_rng(seed)
    features = generator.normal(size=(count * each, 6))
    ratio = (
        0.3 * np.tanh(features[:, 0])
        + 0.2 * (features[:, 1] > 0)
        + generator.normal(scale=0.02, size=len(features))
    )
    offset = generator.normal(scale=0.2, size=len(features)) + np.repeat(
        generator.normal(scale=2, size=count), each
    )
    return features, ratio, offset, np.repeat(np.arange(count), each)


def mean_top1(predicted: Array, measured: Array, groups: NDArray[np.int64]) -> float:
    return metrics.geometric_mean(
        metrics.top(np.exp(predicted[groups == g]), np.exp(measured[groups == g]), 1)
        for g in np.unique(groups)
    )


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_each_objective_orders_unseen_cases_better_than_the_offset_alone(objective: str) -> None:
    features, ratio, offset, groups = cases()
    new_features, new_ratio, new_offset, new_groups = cases(seed=1)
    model = LatencyCorrection(**{**FAST, "objective": objective, "rounds": 80}).fit(
        features, ratio, groups=groups, offset=offset
    )
    before = mean_top1(new_offset, new_offset + new_ratio, new_groups)
    after = mean_top1(new_offset + model.predict(new_features), new_offset + new_ratio, new_groups)
    assert after > before + 0.02
    assert after > (
        0.93 if objective == "classification" else 0.97
    )  # which never sees how much slower the others are


def test_shuffled_labels_teach_nothing() -> None:
    features, ratio, offset, groups = cases()
    shuffled = np.random.default_rng(5).permutation(ratio)
    new_features, new_ratio, _, new_groups = cases(seed=1)
    learned = (
        LatencyCorrection(**FAST).fit(features, ratio, groups=groups, offset=offset).predict(new_features)
    )
    nothing = (
        LatencyCorrection(**FAST).fit(features, shuffled, groups=groups, offset=offset).predict(new_features)
    )
    orders = [
        metrics.spearman(np.exp(nothing[new_groups == g]), np.exp(new_ratio[new_groups == g]))
        for g in range(12)
    ]
    chance = 3 / np.sqrt(12 * 30)
    assert abs(np.mean([o for o in orders if o is not None])) < chance
    assert np.corrcoef(learned, new_ratio)[0, 1] > 0.9
    random = metrics.geometric_mean(
        metrics.random_top(np.exp(new_ratio[new_groups == g]), 1) for g in range(12)
    )
    assert mean_top1(nothing, new_ratio, new_groups) < random + 0.1


def test_members_do_not_see_the_cases_they_leave_out() -> None:
    features, ratio, offset, groups = cases()
    # a feature that tells the case, and a ratio that depends on nothing else: only leakage could predict it
    # held out
    features[:, 0] = groups
    ratio = np.random.default_rng(3).normal(size=12)[groups]
    model = LatencyCorrection(**FAST).fit(features, ratio, groups=groups, offset=offset)
    assert np.abs(model.held_out_).mean() > 0.5 * np.abs(ratio - ratio.mean()).mean()
    leaking = LatencyCorrection(**FAST).fit(features, ratio, groups=np.arange(len(ratio)), offset=offset)
    assert np.abs(leaking.held_out_).mean() < 0.4 * np.abs(model.held_out_).mean()


def test_corrections_fade_far_from_the_training_data() -> None:
    features, ratio, offset, groups = cases()
    kinds = groups % 3
    # on each kind the first feature means something else: what two kinds teach is wrong for the third
    ratio = np.where(kinds == 0, 1.0, np.where(kinds == 1, -1.0, 0.0)) * features[:, 0] * 0.3
    features[:, 3] = 10.0 * kinds
    model = LatencyCorrection(**FAST).fit(features, ratio, groups=groups, kinds=kinds, offset=offset)
    far = features.copy()
    far[:, 3] = 200.0
    far[:, 4] = -80.0
    ungated = LatencyCorrection(**{**FAST, "gated": False}).fit(
        features, ratio, groups=groups, kinds=kinds, offset=offset
    )
    assert np.isfinite(model.gate_.reach)
    assert np.abs(model.predict(far) - model.gate_.common).max() < 0.5 * np.abs(ungated.predict(far)).max()
    assert model.trust(far).max() < 0.5 < model.trust(features).min()


def test_uncertainty_covers_and_grows_with_distance() -> None:
    features, ratio, offset, groups = cases()
    model = LatencyCorrection(**FAST).fit(features, ratio, groups=groups, kinds=groups % 3, offset=offset)
    new_features, new_ratio, _, _ = cases(seed=1)
    predicted, sigma = model.predict_with_sigma(new_features)
    assert 0.5 < np.mean(np.abs(new_ratio - predicted) <= sigma) < 0.9
    # the errors are smaller than what the distance between cases adds to sigma, so more than 68 % are within
    assert 0.55 < model.coverage_ < 0.9
    near, far = (
        model.spread_.sigma(new_features, np.full(len(new_features), distance)) for distance in (0.5, 6.0)
    )
    assert (far >= near).all()


def test_columns_of_sure_shares_widen_sigma_where_they_are_small() -> None:
    features, ratio, offset, groups = cases(count=6)
    features[:, 2:5] = 0.3
    model = LatencyCorrection(**FAST, sure=((2, 3), (4, 5))).fit(
        features, ratio, groups=groups, kinds=groups % 3, offset=offset
    )
    sure, estimated = (np.tile(features[:1], (1, 1)) for _ in range(2))
    sure[:, 2:6], estimated[:, 2:6] = 0.5, 0.01
    far = np.full(1, 5.0)
    assert model.spread_.sigma(estimated, far)[0] > 2 * model.spread_.sigma(sure, far)[0]
    without = LatencyCorrection(**FAST).fit(features, ratio, groups=groups, kinds=groups % 3, offset=offset)
    np.testing.assert_array_equal(model.predict(features), without.predict(features))


def test_the_most_cautious_of_equally_good_choices_is_taken() -> None:
    losses = {
        "far": np.array([0.30, 0.31, 0.29, 0.30]),  # clearly worse than the best
        "near": np.array([0.21, 0.18, 0.22, 0.20]),  # worse by 0.0025, of which kinds differ by more
        "best": np.array([0.20, 0.20, 0.20, 0.20]),
    }
    assert most_cautious(losses) == "near"
    assert most_cautious({name: losses[name] for name in ("far", "best")}) == "best"


def test_few_kinds_widen_the_uncertainty() -> None:
    assert few_kinds_factor(5) == pytest.approx(1.25, abs=0.02)
    assert few_kinds_factor(2) > few_kinds_factor(3) > few_kinds_factor(100) == pytest.approx(1.01, abs=0.01)


def test_order_is_learned_beside_the_time() -> None:
    features, ratio, offset, groups = cases()
    with_order = LatencyCorrection(**FAST).fit(features, ratio, groups=groups, offset=offset)
    without = LatencyCorrection(**{**FAST, "order_share": 0.0}).fit(
        features, ratio, groups=groups, offset=offset
    )
    assert all(member.order is not None for member in with_order.members_)
    assert all(member.order is None for member in without.members_)
    np.testing.assert_array_equal(
        with_order.predict(features), without.predict(features)
    )  # it is no part of the time
    moved = with_order.applied(features).order
    assert np.std(moved) > 1e-3  # candidates move against each other, on average not at all
    assert abs(np.mean(moved)) < 0.3 * np.std(moved) + 0.02
    assert not without.applied(features).order.any()


def test_a_single_kind_uses_the_default_reach() -> None:
    features, ratio, offset, groups = cases(count=2)
    model = LatencyCorrection(**FAST).fit(features, ratio, groups=groups, offset=offset)
    assert model.predict_with_sigma(features + 100)[1].min() >= 0.05
    assert model.trust(features + 100).max() < 0.2


def test_cases_have_the_same_weight_for_any_number_of_rows() -> None:
    features = np.zeros((110, 2))
    ratio = np.r_[np.full(100, 1.0), np.full(10, -1.0)]
    groups = np.r_[np.zeros(100), np.ones(10)]
    model = LatencyCorrection(**{**FAST, "members": 1}).fit(features, ratio, groups=groups)
    assert model.members_[0].trees.intercept == pytest.approx(0.0, abs=1e-6)


def test_is_deterministic_and_clonable() -> None:
    features, ratio, offset, groups = cases(count=4)
    first = LatencyCorrection(**FAST).fit(features, ratio, groups=groups, offset=offset)
    second = clone(first).fit(features, ratio, groups=groups, offset=offset)
    np.testing.assert_array_equal(first.predict(features), second.predict(features))
    held_out = cross_val_predict(clone(first), features, ratio, groups=groups, cv=GroupKFold(4))
    assert np.corrcoef(held_out, ratio)[0, 1] > 0.8


@pytest.mark.parametrize(
    ("parameters", "arguments", "message"),
    [
        (
            {"objective": "guessing"},
            {},
            "objective 'guessing' is unknown; use one of regression, ranking, classification",
        ),
        ({"members": 0}, {}, "members=0"),
        ({"order_share": 1.5}, {}, "order_share=1.5"),
        ({}, {"groups": [1, 2]}, "groups has 2 values for 60 rows"),
        ({}, {"kinds": [1]}, "kinds has 1 values"),
        ({}, {"offset": [0.0]}, "offset has 1 values"),
    ],
)
def test_wrong_input_is_named(parameters: dict[str, Any], arguments: dict[str, Any], message: str) -> None:
    features, ratio, _, _ = cases(count=2)
    with pytest.raises(ValueError, match=message):
        LatencyCorrection(**parameters).fit(features, ratio, **arguments)
