"""Predictions of many configs at many sizes, corrected by what was measured: a Gaussian process on the model's errors.

The error of a prediction (log of measured over predicted time) is taken as the sum of parts: one for all, one that follows the
size alone, one that alike configs share (`residuals.Points`) and one of each config's own, each of these both as a constant and
as something that changes slowly with the size; and noise. So one measurement of a config says much of it at the next sizes,
something of its relatives, and little of the far end of the range.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..residuals import Points, one_thread
from ..space import Config

# in log time
COMMON, BY_SIZE = 0.3, 0.15
ALIKE, ALIKE_BY_SIZE = 0.08, 0.06
OWN, OWN_BY_SIZE = 0.05, 0.05
NOISE = 0.01
REACH = 1.5  # doublings of the size after which what changes with it falls to 1/e
MOST_MEASURED = 600  # that are looked at, the latest: the work grows with their cube

Row = NDArray[np.float64]


@dataclass(frozen=True)
class Corrected:
    """Expected times in microseconds and their relative doubt (one sigma), a row a config, a column a size."""

    times: Row
    doubt: Row


def correct(
    configs: Sequence[Config], sizes: Sequence[int], predicted_us: Row, measured: Mapping[tuple[Config, int], tuple[float, float]]
) -> Corrected:
    """`predicted_us` has a row for each config and a column for each size, NaN or inf where nothing is predicted; such stay as
    they are. `measured` holds predicted and measured time by config and size; configs may be others than those of the rows."""
    prior = np.sqrt(BY_SIZE**2 + ALIKE**2 + ALIKE_BY_SIZE**2 + OWN**2 + OWN_BY_SIZE**2 + COMMON**2)
    if not measured or not configs:
        return Corrected(predicted_us.copy(), np.full(predicted_us.shape, prior))
    pairs = list(measured.items())[-MOST_MEASURED:]
    all_configs = list(dict.fromkeys([*configs, *(config for (config, _), _ in pairs)]))
    number = {config: place for place, config in enumerate(all_configs)}
    alike = Points(all_configs).likeness(slice(None), slice(None))
    rows = np.array([number[config] for (config, _), _ in pairs])
    at = np.log2([float(size) for (_, size), _ in pairs])
    errors = np.log([actual / said for _, (said, actual) in pairs])
    known = _covariance(alike[np.ix_(rows, rows)], rows[:, None] == rows[None, :], _near(at, at))
    times, doubt = predicted_us.copy(), np.full(predicted_us.shape, prior)
    wanted = np.log2([float(size) for size in sizes])
    with one_thread():
        inverse = np.linalg.inv(known + NOISE**2 * np.eye(len(pairs)))
        weights = inverse @ errors
        near = _near(wanted, at)
        for row, config in enumerate(configs):
            own = number[config]
            between = _covariance(alike[own, rows][None, :], (rows == own)[None, :], near)
            mean = between @ weights
            variance = prior**2 - np.einsum("ij,jk,ik->i", between, inverse, between)
            times[row] = predicted_us[row] * np.exp(mean)
            doubt[row] = np.sqrt(np.maximum(variance, 0.0))
    return Corrected(times, doubt)


def _covariance(alike: Row, same: NDArray[np.bool_], near: Row) -> Row:
    found: Row = (
        COMMON**2 + BY_SIZE**2 * near + alike * (ALIKE**2 + ALIKE_BY_SIZE**2 * near) + np.where(same, OWN**2 + OWN_BY_SIZE**2 * near, 0.0)
    )
    return found


def _near(some: Row, others: Row) -> Row:
    found: Row = np.exp(-np.abs(some[:, None] - others[None, :]) / REACH)
    return found
