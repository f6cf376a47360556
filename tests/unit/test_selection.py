"""Which predicted candidates are measured."""

from __future__ import annotations

import pytest

from tilesight.selection import SIBLING_PENALTY, choose, corrected
from tilesight.space import Config


def config(**values: int) -> Config:
    return Config(values)


def test_best_first() -> None:
    times = {config(a=i, b=10 - i): 10.0 - i for i in range(5)}
    assert [c["a"] for c in choose(times, 3)] == [4, 3, 2]


def test_siblings_give_way_to_the_equally_good() -> None:
    times = {config(a=1, b=1): 10.0, config(a=1, b=2): 10.01, config(a=2, b=3): 10.02}
    assert choose(times, 2) == [config(a=1, b=1), config(a=2, b=3)]


def test_much_better_siblings_do_not() -> None:
    times = {config(a=1, b=1): 10.0, config(a=1, b=2): 10.1, config(a=2, b=3): 10.1 * (1 + 2 * SIBLING_PENALTY)}
    assert choose(times, 2) == [config(a=1, b=1), config(a=1, b=2)]


def test_no_more_than_there_are() -> None:
    assert choose({config(a=1): 1.0}, 5) == [config(a=1)]
    assert choose({}, 5) == []
    assert choose({config(a=1): 1.0}, 0) == []


def test_equal_times_are_ordered_by_config() -> None:
    times = {config(a=a, b=a, c=a): 1.0 for a in (3, 1, 2)}
    assert [c["a"] for c in choose(times, 3)] == [1, 2, 3]


def test_without_measurements_predictions_stay() -> None:
    times = {config(a=1): 2.0}
    assert corrected(times, []) == times


def test_common_factor_moves_all_alike() -> None:
    measured = [(config(a=1, b=1), 10.0, 20.0), (config(a=9, b=9), 10.0, 20.0)]
    moved = corrected({config(a=1, b=2): 5.0, config(a=4, b=4): 7.0}, measured)
    assert moved == {config(a=1, b=2): pytest.approx(10.0), config(a=4, b=4): pytest.approx(14.0)}


def test_local_error_moves_its_neighbours_most() -> None:
    measured = [(config(a=1, b=1, c=1), 10.0, 20.0), (config(a=2, b=2, c=2), 10.0, 10.0)]
    moved = corrected({config(a=1, b=1, c=5): 10.0, config(a=2, b=2, c=5): 10.0}, measured)
    assert moved[config(a=1, b=1, c=5)] > moved[config(a=2, b=2, c=5)]


def test_a_flag_is_not_a_number() -> None:
    times = {Config({"a": True}): 1.0, Config({"a": 1}): 2.0}
    assert choose(times, 2) == list(times)


def test_thousands_are_no_burden() -> None:
    times = {config(a=i % 10, b=i // 10 % 10, c=i // 100): 1.0 + i for i in range(3000)}
    measured = [(c, us, us) for c, us in list(times.items())[:1000]]
    assert len(choose(corrected(times, measured), 64)) == 64
