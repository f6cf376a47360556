"""Corrects predictions of configs at many sizes by measurements: a Gaussian process on the model's errors.

The error of a prediction (log of measured over predicted time) is modelled as a sum of parts for all configs,
for similar configs (`search.config_similarity`) and for each single config, and of noise. Each of these three
has a constant part, a part that changes slowly with the size, and a part in proportion to the share of the
tiles that is masked, which the cost model takes to be free. For kernels that shift their last tile instead of
masking it, the last part is learned to be 0. So a measurement of a config says much about it at the next
sizes, something about similar configs, and little about the far end of the range.

Two sizes are close for a config if they are close as numbers and if the config divides them into similar
numbers of tiles: a measurement at 160 rows of a kernel with tiles of 192 rows says next to nothing about 218
rows, where a second tile is needed.

The constants were chosen on the masked kernels of experiments/partial_tiles. For ten configs measured at all
sizes but a third or a half, the mean error in log time is 0.064 and 0.055 without the part for masked rows,
and 0.045 and 0.041 with it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..problem.space import Config
from ..search.config_similarity import ConfigSimilarity
from ..search.gaussian_process import GaussianProcess

# standard deviations in log time
COMMON, COMMON_BY_SIZE = 0.3, 0.15
ALIKE, ALIKE_BY_SIZE = 0.08, 0.09
OWN, OWN_BY_SIZE = 0.05, 0.07
COMMON_MASKED, ALIKE_MASKED, OWN_MASKED = 0.3, 0.6, 0.4  # if all rows are masked
NOISE = 0.01
DECAY_DOUBLINGS = (
    3.0  # doublings of the size and of its whole tiles, together, after which the covariance falls to 1/e
)
MAX_MEASURED = 1400  # measurements in use, an even sample of all: the work grows with their cube

Row = NDArray[np.float64]


@dataclass(frozen=True)
class CorrectedTimes:
    """Expected times in microseconds and their relative uncertainty (one sigma), of shape (configs,
    sizes)."""

    times: Row
    uncertainty: Row


def correct(
    configs: Sequence[Config],
    sizes: Sequence[int],
    predicted_us: Row,
    measured: Mapping[tuple[Config, int], tuple[float, float]],
    whole: Callable[[int, Config], int],
) -> CorrectedTimes:
    """Correct predicted times by measurements.

    Args:
        configs: the configs of the rows.
        sizes: the sizes of the columns.
        predicted_us: shape (configs, sizes), predicted microseconds. NaN and infinity stay as they are.
        measured: (predicted time, measured time) by (config, size), also of configs that have no row.
        whole: rounds a size up to whole tiles of a config.
    """
    points = [coordinates(sizes, [whole(size, config) for size in sizes]) for config in configs]
    prior = np.array([_variance(point) for point in points]).reshape(predicted_us.shape)
    if not measured or not configs:
        return CorrectedTimes(predicted_us.copy(), np.sqrt(prior))
    pairs = list(measured.items())
    if len(pairs) > MAX_MEASURED:
        pairs = [pairs[n] for n in np.linspace(0, len(pairs) - 1, MAX_MEASURED).astype(int)]
    all_configs = list(dict.fromkeys([*configs, *(config for (config, _), _ in pairs)]))
    number = {config: index for index, config in enumerate(all_configs)}
    similarity = ConfigSimilarity(all_configs).matrix()
    rows = np.array([number[config] for (config, _), _ in pairs])
    at = coordinates([size for (_, size), _ in pairs], [whole(size, config) for (config, size), _ in pairs])
    errors = np.log([actual / predicted for _, (predicted, actual) in pairs])
    covariance = _covariance(similarity[np.ix_(rows, rows)], rows[:, None] == rows[None, :], at, at)
    process = GaussianProcess(covariance, errors, NOISE)
    times, uncertainty = predicted_us.copy(), np.sqrt(prior)
    for row, config in enumerate(configs):
        own = number[config]
        between = _covariance(similarity[own, rows][None, :], (rows == own)[None, :], points[row], at)
        mean, uncertainty[row] = process.predict(between, prior[row])
        times[row] = predicted_us[row] * np.exp(mean)
    return CorrectedTimes(times, uncertainty)


def coordinates(sizes: Sequence[int], whole: Sequence[int]) -> Row:
    """Coordinates of sizes, shape (sizes, 2): log2 of the size and of its whole tiles."""
    return np.log2(np.array([sizes, whole], dtype=np.float64).T)


def closeness(some: Row, others: Row) -> Row:
    """Shape (some, others): 1 for equal coordinates, towards 0 with their distance."""
    found: Row = np.exp(-np.abs(some[:, None, :] - others[None, :, :]).sum(axis=2) / DECAY_DOUBLINGS)
    return found


def _covariance(similarity: Row, same: NDArray[np.bool_], some: Row, others: Row) -> Row:
    close, masked = closeness(some, others), _masked(some)[:, None] * _masked(others)[None, :]
    shared = similarity * (ALIKE**2 + ALIKE_BY_SIZE**2 * close + ALIKE_MASKED**2 * masked)
    own = np.where(same, OWN**2 + OWN_BY_SIZE**2 * close + OWN_MASKED**2 * masked, 0.0)
    found: Row = COMMON**2 + COMMON_BY_SIZE**2 * close + COMMON_MASKED**2 * masked + shared + own
    return found


def _variance(points: Row) -> Row:
    """Prior variance of a config at each point: the covariance of the point with itself."""
    parts = COMMON**2 + COMMON_BY_SIZE**2 + ALIKE**2 + ALIKE_BY_SIZE**2 + OWN**2 + OWN_BY_SIZE**2
    found: Row = parts + (COMMON_MASKED**2 + ALIKE_MASKED**2 + OWN_MASKED**2) * _masked(points) ** 2
    return found


def _masked(points: Row) -> Row:
    """The share of the tiles that lies beyond the size."""
    found: Row = 1 - np.exp2(points[:, 0] - points[:, 1])
    return found
