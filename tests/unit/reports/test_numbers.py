"""Numbers as text."""

from __future__ import annotations

import math

import pytest

from tilesight.reports.numbers import sigma, spread


@pytest.mark.parametrize(
    ("uncertainty", "one_sigma", "behind_a_time"),
    [
        (0.123, "12.3 %", "give or take 12.3 % (one sigma)"),
        (0.5, "50.0 %", "give or take 50.0 % (one sigma)"),
        (0.76, "a factor of 1.8", "within a factor of 1.8 in about two of three cases"),
        (3.48, "a factor of 4.5", "within a factor of 4.5 in about two of three cases"),
        (math.nan, "-", "give or take - (one sigma)"),
    ],
)
def test_one_sigma(uncertainty: float, one_sigma: str, behind_a_time: str) -> None:
    assert sigma(uncertainty) == one_sigma
    assert spread(uncertainty) == behind_a_time
