"""The uncertainty of corrections: what unlike kernels add, and the levels that held-out errors set."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.unit.costmodel.measured_samples import H200, kernel
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.learned.features import SURE, features
from tilesight.costmodel.learned.spread import (
    GAP_SIGMA,
    HALFWAY,
    KNOTS,
    TWO_SIGMA,
    UNLIKE_SIGMA,
    Spread,
    SureColumns,
    fit_spread,
    unlike,
)

Array = NDArray[np.float64]
# launch, fill, device memory, matrix instructions
COLUMNS = SureColumns((0, 1), (2, 3))
FAR = np.array([50.0])


def shares(*rows: tuple[float, float, float, float]) -> Array:
    return np.array(rows)


def test_a_gap_is_the_predicted_time_over_the_sure_time() -> None:
    found = COLUMNS.gap(
        shares(
            (0.05, 0.05, 0.9, 0.3),  # device memory is the limit
            (0.05, 0.05, 0.1, 0.4),  # half of the time is sure
            (0.3, 0.4, 0.6, 0.0),  # terms overlap: a sure time above the predicted one is no gap
            (0.0, 0.0, 0.0, 0.0),
        )
    )
    assert found[:3] == pytest.approx([0.0, np.log(2), 0.0])
    assert np.isfinite(found[3])


def test_far_kernels_are_uncertain_by_how_much_of_their_time_is_estimated() -> None:
    sure, estimated = shares((0.05, 0.05, 0.9, 0)), shares((0.02, 0.02, 0.06, 0))
    assert unlike(sure, FAR, COLUMNS)[0] == pytest.approx(UNLIKE_SIGMA, rel=1e-3)
    expected = np.hypot(UNLIKE_SIGMA, GAP_SIGMA * np.log(10) ** 2)
    assert unlike(estimated, FAR, COLUMNS)[0] == pytest.approx(expected, rel=1e-3)
    assert unlike(estimated, FAR, None)[0] == pytest.approx(UNLIKE_SIGMA, rel=1e-3)


def test_near_kernels_add_next_to_nothing_and_half_of_the_squares_is_reached_halfway() -> None:
    estimated = shares((0.02, 0.02, 0.06, 0))
    near, halfway, far = (unlike(estimated, np.array([d]), COLUMNS)[0] for d in (0.2, HALFWAY, 50.0))
    assert near < 0.02 * far
    assert halfway**2 == pytest.approx(far**2 / 2, rel=1e-3)
    assert unlike(estimated, np.zeros(1), COLUMNS)[0] == pytest.approx(0, abs=1e-5)


def test_sigma_has_both_parts_as_squares() -> None:
    spread = Spread(None, (0.3,) * len(KNOTS), COLUMNS)
    rows = shares((0.02, 0.02, 0.06, 0))
    assert spread.sigma(rows, FAR)[0] == pytest.approx(np.hypot(0.3, unlike(rows, FAR, COLUMNS)[0]))
    assert spread.sigma(rows, np.zeros(1))[0] == pytest.approx(0.3, rel=1e-3)


@pytest.mark.parametrize("operator", ["copying", "multiplying"])
def test_sure_columns_are_launch_fill_and_the_longer_of_bytes_and_matrix_work(operator: str) -> None:
    gaps = []
    for syncs in (0, 4000):
        profile = kernel(operator, 1 << 26, 8, syncs=syncs)
        prediction = AnalyticalModel().predict([profile], H200)
        us = prediction.terms_us
        sure = us["launch"] + us["fill"] + max(us["dram"], us["matrix"])
        gaps.append(float(SureColumns(*SURE).gap(features([profile], H200, prediction)[None])[0]))
        assert gaps[-1] == pytest.approx(np.log(prediction.latency_us / sure), abs=1e-4)
    assert gaps[1] > gaps[0] + 0.5  # waits at barriers are estimates


def fitted(errors: Array, distance: float) -> Spread:
    rows = np.tile([0.05, 0.05, 0.9, 0.0], (len(errors), 1))
    return fit_spread(
        rows, [errors], [np.full(len(errors), distance)], np.ones(len(errors)), COLUMNS, seed=0, jobs=1
    )


def test_levels_hold_two_thirds_within_one_sigma_and_the_tail_within_two() -> None:
    generator = np.random.default_rng(0)
    rows = np.tile([0.05, 0.05, 0.9, 0.0], (4000, 1))
    near = np.full(4000, 0.5)
    normal = generator.normal(scale=0.1, size=4000)
    sigma = fitted(normal, 0.5).sigma(rows, near)
    assert np.mean(np.abs(normal) <= sigma) == pytest.approx(0.6827, abs=0.01)
    tailed = 0.1 * generator.standard_t(2, size=4000)
    sigma = fitted(tailed, 0.5).sigma(rows, near)
    assert np.mean(np.abs(tailed) <= sigma) > 0.7
    assert np.mean(np.abs(tailed) <= 2 * sigma) == pytest.approx(TWO_SIGMA, abs=0.01)


def test_levels_count_only_what_unlike_kernels_do_not_add_anyway() -> None:
    errors = np.random.default_rng(0).normal(scale=0.25, size=4000)
    far = np.full(4000, 20.0)
    rows = np.tile([0.05, 0.05, 0.9, 0.0], (4000, 1))
    spread = fit_spread(rows, [errors, errors], [far, far], np.ones(4000), COLUMNS, seed=0, jobs=1)
    assert np.mean(np.abs(errors) <= spread.sigma(rows, far)) == pytest.approx(0.6827, abs=0.01)
    small = errors / 10  # smaller than what the distance adds: the level adds nothing
    spread = fit_spread(rows, [small, small], [far, far], np.ones(4000), COLUMNS, seed=0, jobs=1)
    assert spread.level[-1] < 0.01
