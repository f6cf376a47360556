from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from tilesight.costmodel.training import metrics


def test_top_is_best_time_over_the_best_of_the_picks() -> None:
    predicted, measured = [1.0, 2.0, 3.0, 4.0], [10.0, 8.0, 5.0, 20.0]
    assert metrics.top(predicted, measured, 1) == pytest.approx(0.5)
    assert metrics.top(predicted, measured, 2) == pytest.approx(5 / 8)
    assert metrics.top(predicted, measured, 3) == 1.0
    assert metrics.top(predicted, measured, 99) == 1.0


def test_equal_predictions_are_drawn_not_put_in_file_order() -> None:
    assert metrics.top([1.0, 1.0], [10.0, 5.0], 1) == pytest.approx((0.5 + 1.0) / 2)
    assert metrics.top([1.0, 1.0], [5.0, 10.0], 1) == pytest.approx((0.5 + 1.0) / 2)
    # one sure pick, and one of two drawn
    assert metrics.top([0.5, 1.0, 1.0], [8.0, 4.0, 16.0], 2) == pytest.approx((1.0 + 0.5) / 2)


@pytest.mark.parametrize("count", [1, 2, 3, 5])
def test_random_choice_is_the_mean_over_all_draws(count: int) -> None:
    measured = [3.0, 9.0, 4.0, 7.0, 5.0]
    draws = [3.0 / min(draw) for draw in itertools.combinations(measured, count)]
    assert metrics.random_top(measured, count) == pytest.approx(sum(draws) / len(draws))


def test_top_five_percent_rounds_up() -> None:
    assert [metrics.top_count(n) for n in (1, 20, 21, 200)] == [1, 1, 2, 10]


def test_spearman() -> None:
    assert metrics.spearman([1, 2, 3], [10, 20, 30]) == pytest.approx(1.0)
    assert metrics.spearman([1, 2, 3], [3, 2, 1]) == pytest.approx(-1.0)
    assert metrics.spearman([1, 1, 2, 3], [1, 2, 3, 4]) == pytest.approx(0.9486833)  # ties at their mean rank
    assert metrics.spearman([1, 1, 1], [1, 2, 3]) is None


def test_mape_leaves_refused_candidates_out_and_they_rank_last() -> None:
    predicted, measured = [math.inf, 11.0, 18.0], [5.0, 10.0, 20.0]
    assert metrics.mape(predicted, measured) == pytest.approx(0.1)
    assert metrics.top(predicted, measured, 1) == pytest.approx(0.5)
    assert metrics.mape([math.inf], [1.0]) is None
    assert metrics.scores(predicted, measured, times=False).mape is None


def test_wrong_input_is_refused() -> None:
    with pytest.raises(ValueError, match="one length"):
        metrics.top([1.0], [1.0, 2.0], 1)
    with pytest.raises(ValueError, match="above 0"):
        metrics.mape([1.0], [0.0])
    with pytest.raises(ValueError, match="NaN"):
        metrics.mape([math.nan], [1.0])
    with pytest.raises(ValueError, match="above 0"):
        metrics.geometric_mean([1.0, 0.0])
    assert metrics.geometric_mean(np.array([1.0, 4.0])) == pytest.approx(2.0)
