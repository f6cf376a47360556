"""Predictions of many configs at many sizes, corrected by what was measured: a Gaussian process on the model's errors.

The error of a prediction (log of measured over predicted time) is taken as the sum of parts: one for all, one that alike configs
share (`residuals.Points`) and one of each config's own, each of these as a constant, as something that changes slowly with the
size, and in proportion to the share of the tiles that is masked, which the model takes to be free (kernels that move their last
tile mask nothing from one tile on: there it is learned to be nothing); and noise. So one measurement
of a config says much of it at the next sizes, something of its relatives, and little of the far end of the range.

Two sizes are near for a config when they are near as numbers and when the config cuts them into nearly as many tiles: at 160 rows
a kernel of 192-row tiles says next to nothing of 218, where it needs a second tile.

The figures were chosen on the masked kernels of experiments/partial_tiles: of ten configs at all but a third or a half of the
sizes, the mean error in log time is 0.064 and 0.055 without the part for masked rows, 0.045 and 0.041 with it.
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
ALIKE, ALIKE_BY_SIZE = 0.08, 0.09
OWN, OWN_BY_SIZE = 0.05, 0.07
MASKED, ALIKE_MASKED, OWN_MASKED = 0.3, 0.6, 0.4  # where all rows are masked
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
    where = [places(sizes, [whole(size, config) for size in sizes]) for config in configs]
    prior = np.array([_variance(there) for there in where]).reshape(predicted_us.shape)
    if not measured or not configs:
        return Corrected(predicted_us.copy(), np.sqrt(prior))
    every = list(measured.items())
    pairs = every if len(every) <= MOST_MEASURED else [every[n] for n in np.linspace(0, len(every) - 1, MOST_MEASURED).astype(int)]
    all_configs = list(dict.fromkeys([*configs, *(config for (config, _), _ in pairs)]))
    number = {config: place for place, config in enumerate(all_configs)}
    alike = Points(all_configs).likeness(slice(None), slice(None))
    rows = np.array([number[config] for (config, _), _ in pairs])
    at = places([size for (_, size), _ in pairs], [whole(size, config) for (config, size), _ in pairs])
    errors = np.log([actual / said for _, (said, actual) in pairs])
    known = _covariance(alike[np.ix_(rows, rows)], rows[:, None] == rows[None, :], at, at)
    times, doubt = predicted_us.copy(), np.sqrt(prior)
    with one_thread():
        inverse = np.linalg.inv(known + NOISE**2 * np.eye(len(pairs)))
        weights = inverse @ errors
        for row, config in enumerate(configs):
            own = number[config]
            between = _covariance(alike[own, rows][None, :], (rows == own)[None, :], where[row], at)
            variance = prior[row] - ((between @ inverse) * between).sum(axis=1)
            times[row] = predicted_us[row] * np.exp(between @ weights)
            doubt[row] = np.sqrt(np.maximum(variance, 0.0))
    return Corrected(times, doubt)


def places(sizes: Sequence[int], whole: Sequence[int]) -> Row:
    """Where sizes lie, a row each: the size and its whole tiles, in doublings."""
    return np.log2(np.array([sizes, whole], dtype=np.float64).T)


def near(some: Row, others: Row) -> Row:
    """1 for equal places, towards 0 with what lies between them: a row for each of `some`, a column for each of `others`."""
    found: Row = np.exp(-np.abs(some[:, None, :] - others[None, :, :]).sum(axis=2) / REACH)
    return found


def _covariance(alike: Row, same: NDArray[np.bool_], some: Row, others: Row) -> Row:
    close, masked = near(some, others), _masked(some)[:, None] * _masked(others)[None, :]
    shared = alike * (ALIKE**2 + ALIKE_BY_SIZE**2 * close + ALIKE_MASKED**2 * masked)
    own = np.where(same, OWN**2 + OWN_BY_SIZE**2 * close + OWN_MASKED**2 * masked, 0.0)
    found: Row = COMMON**2 + BY_SIZE**2 * close + MASKED**2 * masked + shared + own
    return found


def _variance(there: Row) -> Row:
    """What is not known of a config at each place before anything is measured: the covariance of each with itself."""
    parts = COMMON**2 + BY_SIZE**2 + ALIKE**2 + ALIKE_BY_SIZE**2 + OWN**2 + OWN_BY_SIZE**2
    found: Row = parts + (MASKED**2 + ALIKE_MASKED**2 + OWN_MASKED**2) * _masked(there) ** 2
    return found


def _masked(there: Row) -> Row:
    """The share of the tiles that lies beyond the size."""
    found: Row = 1 - np.exp2(there[:, 0] - there[:, 1])
    return found
