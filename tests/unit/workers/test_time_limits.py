"""Adaptive time limits: between the first value and the floor, as the slowest success allows."""

from __future__ import annotations

import pytest

from tilesight.workers import TimeLimit


def after(limit: TimeLimit, *seconds: float) -> float:
    for each in seconds:
        limit.record(each)
    return limit.seconds


def test_the_first_value_holds_for_eight_successes() -> None:
    limit = TimeLimit(120.0, floor_s=5.0, factor=10.0)
    assert limit.seconds == 120.0
    assert after(limit, *[0.1] * 7) == 120.0
    assert after(limit, 2.0) == 20.0


@pytest.mark.parametrize(
    ("slowest", "expected"), [(0.01, 5.0), (0.5, 5.0), (3.0, 30.0), (12.0, 120.0), (100.0, 120.0)]
)
def test_it_follows_the_slowest_success_within_its_bounds(slowest: float, expected: float) -> None:
    assert after(TimeLimit(120.0, floor_s=5.0, factor=10.0), slowest, *[0.01] * 7) == expected


def test_a_slower_success_widens_it_again() -> None:
    limit = TimeLimit(120.0, floor_s=5.0, factor=10.0)
    assert after(limit, *[1.0] * 8) == 10.0
    assert after(limit, 9.0) == 90.0
    assert after(limit, 1.0) == 90.0


def test_a_limit_that_does_not_adapt() -> None:
    assert after(TimeLimit(30.0, floor_s=30.0), *[0.1] * 20) == 30.0


@pytest.mark.parametrize(
    ("first_s", "floor_s", "factor", "text"),
    [
        (10, 20, 2, "up to that, not 20"),
        (10, 0, 2, "above 0"),
        (0, 0, 2, "above 0"),
        (10, 1, 0.5, r"factor=0\.5 must be at least 1"),
    ],
)
def test_invalid_arguments_are_refused(first_s: float, floor_s: float, factor: float, text: str) -> None:
    with pytest.raises(ValueError, match=text):
        TimeLimit(first_s, floor_s=floor_s, factor=factor)
