"""Predictions corrected by measured neighbours."""

from __future__ import annotations

import pytest

from tilesight.datasets.replay.neighbours import corrected
from tilesight.problem.space import Config


def config(**values: int) -> Config:
    return Config(values)


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
