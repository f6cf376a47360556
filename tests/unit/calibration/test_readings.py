"""Medians of samples, and how well the samples tell them."""

from __future__ import annotations

import random
from statistics import NormalDist

import pytest

from tilesight.calibration.readings import median_interval, settled_reading


@pytest.mark.parametrize(
    ("count", "places"), [(1, (0, 0)), (2, (0, 1)), (5, (0, 4)), (7, (0, 6)), (15, (3, 11)), (100, (39, 60))]
)
def test_the_interval_of_a_median_by_its_number_of_samples(count: int, places: tuple[int, int]) -> None:
    """Places of tables of the sign test."""
    values = list(range(count))
    random.Random(1).shuffle(values)
    assert median_interval(values) == places


def test_the_interval_holds_the_median_as_often_as_it_says() -> None:
    chance = random.Random(7)
    held = 0
    for _ in range(2000):
        low, high = median_interval([chance.gauss() for _ in range(15)])
        held += low <= NormalDist().median <= high
    assert 0.95 <= held / 2000 <= 0.98


def test_the_spread_of_a_settled_reading() -> None:
    assert settled_reading("a", [4.0] * 9, "").spread == 0
    assert settled_reading("a", [0.0] * 9, "").spread == 0
    assert settled_reading("a", [-1.0, 0.0, 1.0], "").spread == float("inf")
    found = settled_reading("a", [-8.0, -10.0, -12.0], "by hand")
    assert (found.value, found.spread, found.method) == (-10.0, pytest.approx(0.4), "by hand")
    assert found.samples == (-8.0, -10.0, -12.0)
