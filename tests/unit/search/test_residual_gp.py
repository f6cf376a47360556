"""Predictions corrected by a Gaussian process on the model's errors."""

from __future__ import annotations

import pytest

from tilesight.problem.space import Config
from tilesight.search.residual_gp import corrected
from tilesight.search.select import choose


def config(**values: int | str | bool) -> Config:
    return Config(values)


def test_without_measurements_predictions_stay() -> None:
    times = {config(a=1): 2.0, config(a=2): 3.0}
    assert corrected(times, []) == times
    assert corrected({}, [(config(a=1), 1.0, 2.0)]) == {}


def test_a_common_factor_moves_all() -> None:
    measured = [(config(a=a, b=b), 10.0, 20.0) for a in (1, 2, 4, 8) for b in (1, 4)]
    moved = corrected({config(a=1, b=2): 5.0, config(a=64, b=64): 7.0}, measured)
    assert moved[config(a=1, b=2)] == pytest.approx(10.0, rel=0.03)
    assert moved[config(a=64, b=64)] == pytest.approx(14.0, rel=0.06)


def test_the_error_of_a_config_moves_the_nearer_ones_more() -> None:
    measured = [(config(a=16, b="x"), 10.0, 12.0), (config(a=256, b="y"), 10.0, 10.0)]
    moved = corrected({config(a=a, b="x"): 10.0 for a in (32, 64, 128)}, measured)
    assert moved[config(a=32, b="x")] > moved[config(a=64, b="x")] > moved[config(a=128, b="x")]


def test_numbers_are_near_by_their_ratio_and_names_are_not() -> None:
    measured = [(config(n=16, mode="a"), 10.0, 13.0), (config(n=512, mode="q"), 10.0, 10.0)]
    moved = corrected(
        {config(n=32, mode="a"): 10.0, config(n=128, mode="a"): 10.0, config(n=16, mode="b"): 10.0}, measured
    )
    assert moved[config(n=32, mode="a")] > moved[config(n=128, mode="a")]
    assert moved[config(n=32, mode="a")] > moved[config(n=16, mode="b")]


def test_flags_are_no_numbers() -> None:
    measured = [(config(flag=True, n=1), 10.0, 13.0), (config(flag=False, n=1), 10.0, 10.0)]
    moved = corrected({config(flag=True, n=2): 10.0, config(flag=False, n=2): 10.0}, measured)
    assert moved[config(flag=True, n=2)] > moved[config(flag=False, n=2)]


def test_of_equals_the_one_that_teaches_more_comes_first() -> None:
    measured = [(config(a=16, b=16), 10.0, 10.0)]
    moved = corrected({config(a=16, b=32): 10.0, config(a=64, b=64): 10.0}, measured)
    assert choose(moved, 1) == [config(a=64, b=64)]


def test_doubt_outweighs_no_clear_difference() -> None:
    measured = [(config(a=16, b=16), 10.0, 10.0)]
    moved = corrected({config(a=16, b=32): 10.0, config(a=1024, b=1024): 11.0}, measured)
    assert choose(moved, 1) == [config(a=16, b=32)]


def test_the_same_config_measured_twice_is_no_obstacle() -> None:
    measured = [(config(a=1), 10.0, 11.0), (config(a=1), 10.0, 11.2)]
    assert corrected({config(a=2): 10.0}, measured)[config(a=2)] == pytest.approx(11.0, rel=0.06)


def test_the_order_of_what_was_measured_does_not_matter() -> None:
    measured = [(config(a=a, b="x" if a > 4 else "y"), 10.0, 9.0 + a / 10) for a in (1, 2, 4, 8, 16)]
    waiting = {config(a=a, b=b): 10.0 + a for a in (1, 32) for b in ("x", "y")}
    assert corrected(waiting, measured) == pytest.approx(corrected(waiting, measured[::-1]))


def test_thousands_are_no_burden() -> None:
    times = {config(a=i % 10, b=i // 10 % 10, c=i // 100): 1.0 + i for i in range(3000)}
    measured = [(c, us, us) for c, us in list(times.items())[:128]]
    assert len(choose(corrected(times, measured), 64)) == 64
