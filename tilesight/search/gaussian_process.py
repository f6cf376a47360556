"""Gaussian-process regression with a given covariance matrix, for a few hundred points."""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class GaussianProcess:
    """The posterior of a Gaussian process with mean 0, given its values at some points.

    Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, equations 2.25 and 2.26.

    Args:
        covariance: shape (n, n), prior covariance of the points.
        values: shape (n,), the observed values.
        noise: standard deviation of the noise of a value.
    """

    def __init__(self, covariance: Array, values: Array, noise: float) -> None:
        with single_thread():
            self._precision = np.linalg.inv(covariance + noise**2 * np.eye(len(values)))
            self._weights = self._precision @ values

    def predict(self, covariance: Array, variance: Array | float) -> tuple[Array, Array]:
        """Predict the values at other points.

        Args:
            covariance: shape (m, n), prior covariance of the other points with the observed ones.
            variance: shape (m,) or one for all, prior variance of the other points.

        Returns:
            The mean and the standard deviation of each value, each of shape (m,).
        """
        with single_thread():
            mean = covariance @ self._weights
            explained = ((covariance @ self._precision) * covariance).sum(axis=1)
        return mean, np.sqrt(np.maximum(variance - explained, 0.0))


def single_thread() -> AbstractContextManager[object]:
    """A context in which linear algebra runs in one thread.

    For a few hundred rows beside busy workers, more threads only wait for each other.
    """
    limit: AbstractContextManager[object] = _thread_pools().limit(limits=1, user_api="blas")
    return limit


@cache
def _thread_pools() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()
