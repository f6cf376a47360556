"""Predictions of many configs at many sizes, corrected by what was measured: a Gaussian process on the model's errors.

The error of a prediction (log of measured over predicted time) is taken as the sum of parts: one for all, one that follows the
size alone, one that alike configs share (`residuals.Points`) and one of each config's own, each of these both as a constant and
as something that changes slowly with the size; and noise. So one measurement of a config says much of it at the next sizes,
something of its relatives, and little of the far end of the range.

Two sizes are near for a config when they are near as numbers and when the config cuts them into nearly as many tiles: at 160 rows
a kernel of 192-row tiles says next to nothing of 218, where it needs a second tile.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
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
REACH = 3.0  # doublings of the size, and of its whole tiles, together after which what changes with it falls to 1/e
MOST_MEASURED = 1400  # that are looked at, evenly taken: the work grows with their cube

Row = NDArray[np.float64]


@dataclass(frozen=True)
class Corrected:
    """Expected times in microseconds and their relative doubt (one sigma), a row a config, a column a size."""

    times: Row
    doubt: Row


def correct(
    configs: Sequence[Config],
    sizes: Sequence[int],
    predicted_us: Row,
    measured: Mapping[tuple[Config, int], tuple[float, float]],
    whole: Callable[[int, Config], int],
) -> Corrected:
    """`predicted_us` has a row for each config and a column for each size, NaN or inf where nothing is predicted; such stay as
    they are. `measured` holds predicted and measured time by config and size; configs may be others than those of the rows.
    `whole` rounds a size up to whole tiles of a config."""
    prior = np.sqrt(BY_SIZE**2 + ALIKE**2 + ALIKE_BY_SIZE**2 + OWN**2 + OWN_BY_SIZE**2 + COMMON**2)
    if not measured or not configs:
        return Corrected(predicted_us.copy(), np.full(predicted_us.shape, prior))
    pairs = list(measured.items())[:: -(-len(measured) // MOST_MEASURED)]
    all_configs = list(dict.fromkeys([*configs, *(config for (config, _), _ in pairs)]))
    number = {config: place for place, config in enumerate(all_configs)}
    alike = Points(all_configs).likeness(slice(None), slice(None))
    rows = np.array([number[config] for (config, _), _ in pairs])
    at = places([size for (_, size), _ in pairs], [whole(size, config) for (config, size), _ in pairs])
    errors = np.log([actual / said for _, (said, actual) in pairs])
    known = _covariance(alike[np.ix_(rows, rows)], rows[:, None] == rows[None, :], near(at, at))
    times, doubt = predicted_us.copy(), np.full(predicted_us.shape, prior)
    with one_thread():
        inverse = np.linalg.inv(known + NOISE**2 * np.eye(len(pairs)))
        weights = inverse @ errors
        for row, config in enumerate(configs):
            own = number[config]
            wanted = places(sizes, [whole(size, config) for size in sizes])
            between = _covariance(alike[own, rows][None, :], (rows == own)[None, :], near(wanted, at))
            mean = between @ weights
            variance = prior**2 - ((between @ inverse) * between).sum(axis=1)
            times[row] = predicted_us[row] * np.exp(mean)
            doubt[row] = np.sqrt(np.maximum(variance, 0.0))
    return Corrected(times, doubt)


def places(sizes: Sequence[int], whole: Sequence[int]) -> Row:
    """Where sizes lie, a row each: the size and its whole tiles, in doublings."""
    return np.log2(np.array([sizes, whole], dtype=np.float64).T)


def near(some: Row, others: Row) -> Row:
    """1 for equal places, towards 0 with what lies between them: a row for each of `some`, a column for each of `others`."""
    found: Row = np.exp(-np.abs(some[:, None, :] - others[None, :, :]).sum(axis=2) / REACH)
    return found


def _covariance(alike: Row, same: NDArray[np.bool_], by_size: Row) -> Row:
    found: Row = (
        COMMON**2
        + BY_SIZE**2 * by_size
        + alike * (ALIKE**2 + ALIKE_BY_SIZE**2 * by_size)
        + np.where(same, OWN**2 + OWN_BY_SIZE**2 * by_size, 0.0)
    )
    return found
