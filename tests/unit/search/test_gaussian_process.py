"""Gaussian-process regression, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest

from tilesight.search.gaussian_process import GaussianProcess


def test_one_value_shrinks_by_the_noise() -> None:
    process = GaussianProcess(np.array([[4.0]]), np.array([3.0]), noise=1.0)
    mean, sigma = process.predict(np.array([[4.0], [2.0], [0.0]]), 4.0)
    assert mean == pytest.approx([3 * 4 / 5, 3 * 2 / 5, 0.0])
    assert sigma == pytest.approx(np.sqrt([4 - 16 / 5, 4 - 4 / 5, 4.0]))


def test_prior_variances_may_differ_by_point() -> None:
    process = GaussianProcess(np.eye(2), np.array([1.0, -1.0]), noise=0.1)
    mean, sigma = process.predict(np.zeros((2, 2)), np.array([1.0, 9.0]))
    assert mean.tolist() == [0.0, 0.0]
    assert sigma.tolist() == [1.0, 3.0]


def test_a_variance_never_falls_below_zero() -> None:
    points = np.linspace(0, 1e-6, 5)
    covariance = np.exp(-((points[:, None] - points[None, :]) ** 2))
    process = GaussianProcess(covariance, np.ones(5), noise=1e-6)
    assert (process.predict(covariance, 1.0)[1] >= 0).all()
