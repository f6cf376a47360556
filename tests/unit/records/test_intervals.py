"""Intervals of the median: against the binomial distribution, and against samples of known medians."""

from __future__ import annotations

import math
import random

import pytest

from tilesight.records.intervals import half_width, median_interval


def test_the_ranks_are_those_of_the_tables() -> None:
    """Table A3 of Conover's book, and the ranks that the binomial distribution gives for other sizes."""
    for count, rank in ((6, 1), (8, 1), (9, 2), (15, 4), (20, 6), (50, 18), (100, 40)):
        low, high = median_interval([float(i) for i in range(1, count + 1)])
        assert (low, high) == (rank, count + 1 - rank), count


@pytest.mark.parametrize("count", [6, 7, 20, 49, 200, 3000])
def test_the_confidence_holds_with_the_narrowest_interval(count: int) -> None:
    low, high = median_interval([float(i) for i in range(count)])
    rank = int(low) + 1
    outside = 2 * sum(math.comb(count, k) for k in range(rank))
    assert 20 * outside <= 2**count
    assert 20 * (outside + 2 * math.comb(count, rank)) > 2**count
    assert high == count - rank


def test_too_few_samples_have_no_interval() -> None:
    assert median_interval([1.0] * 5) == (-math.inf, math.inf)
    assert median_interval([]) == (-math.inf, math.inf)
    assert half_width([1.0] * 5) == math.inf
    assert median_interval([1.0] * 7, 0.99) == (-math.inf, math.inf)


def test_outliers_do_not_count() -> None:
    assert half_width([10.0] * 30 + [1000.0]) == 0.0


def test_the_true_median_is_inside_as_often_as_stated_also_for_skewed_samples() -> None:
    random.seed(1)
    inside = 0
    for _ in range(1000):
        low, high = median_interval([random.expovariate(1.0) ** 3 for _ in range(25)])
        inside += low <= math.log(2) ** 3 <= high
    assert 935 <= inside <= 985
