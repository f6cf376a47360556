"""Numbers as text."""

from __future__ import annotations

import math

import pytest

from tilesight.reports.numbers import rounded, sigma, spread


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


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (2.2, "2.2"),
        (1234.56, "1235"),
        (9999.4, "9999"),
        (35771.9, "35,772"),
        (-12345.6, "-12,346"),
        (1.5e7, "15,000,000"),
    ],
)
def test_times_in_sentences_have_no_powers_of_ten(value: float, text: str) -> None:
    assert rounded(value) == text
