"""The gate: the distance of a kernel from the training data, and the share of its correction that is kept.

Boosted trees also predict far from their training data. On kinds of kernels without training rows, their
corrections go too far: they are best there when a part of them is left out, and the gate leaves it out with
the distance. All features count equally in distances: the important ones alone do not tell a new shape of a
known kernel from a new kernel (experiments/evaluation).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .boosting import Array, case_slices

MOST_REFERENCES = 4096
FARTHEST = 4.0  # standard deviations at which standardised features are cut
CHUNK_ROWS = 256  # a chunk's distances fit in a core's cache


@dataclass(frozen=True)
class Gate:
    """Distances from the training data, and the shares of corrections that are kept.

    Distance 1 is the median distance of a training row to the nearest row of another case. At the
    distance `reach` half of a correction is left; the reach is infinite for no gate. The log factor `common`
    replaces what is left out.
    """

    references: NDArray[np.float64]  # (r, f), standardised, in numbers of half precision
    centre: NDArray[np.float64]  # (f,)
    spread: NDArray[np.float64]  # (f,)
    unit: float
    reach: float = float("inf")
    common: float = 0.0

    def distance(self, features: Array) -> NDArray[np.float64]:
        """Distances to the nearest reference, shape (n,), of rows of shape (n, f)."""
        parts = [
            _nearest(self._coordinates(features[begin : begin + CHUNK_ROWS]), self.references)
            for begin in range(0, len(features), CHUNK_ROWS)
        ]
        return np.asarray(np.concatenate(parts) / self.unit) if parts else np.empty(0)

    def trust(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of a correction that is left at `distance`: 1 near the training data, 0 far away.

        With a reach of 0, corrections do not help and nothing is left.
        """
        if self.reach <= 0:
            return np.zeros_like(distance)
        return np.asarray(1 / (1 + (distance / self.reach) ** 4))

    def _coordinates(self, features: Array) -> NDArray[np.float64]:
        return _standardised(features, self.centre, self.spread)


def fit_gate(features: Array, groups: NDArray[np.integer[Any]], seed: int) -> Gate:
    """Fit the distances of a gate, without its reach.

    Args:
        features: training rows, shape (n, f).
        groups: the case of each row.
        seed: chooses the reference rows.
    """
    rows = np.asarray(features, dtype=np.float64)
    centre = rows.mean(axis=0)
    spread = rows.std(axis=0)
    # a feature that is constant in the training data counts fully as soon as it changes
    spread = np.where(spread > 1e-6, spread, 0.1)
    chosen = _sample(groups, seed)
    references = _standardised(rows[chosen], centre, spread).astype(np.float16).astype(np.float64)
    return Gate(references, centre, spread, _unit(references, groups[chosen]))


def _standardised(features: Array, centre: Array, spread: Array) -> NDArray[np.float64]:
    standard = (np.asarray(features, dtype=np.float64) - centre) / spread
    return np.asarray(np.clip(standard, -FARTHEST, FARTHEST))


def _sample(groups: NDArray[np.integer[Any]], seed: int) -> NDArray[np.intp]:
    """At most MOST_REFERENCES row numbers, equally many of each case."""
    generator = np.random.default_rng(seed)
    cases = list(case_slices(groups))
    each = max(1, MOST_REFERENCES // len(cases))
    picked = [generator.choice(rows, min(each, len(rows)), replace=False) for rows in cases]
    return np.sort(np.concatenate(picked))[: max(MOST_REFERENCES, len(cases))]


def _unit(scaled: NDArray[np.float64], groups: NDArray[np.integer[Any]]) -> float:
    """Median distance to the nearest row of another case, or to the nearest row if there is only one case."""
    labels = groups if (groups != groups[0]).any() else np.arange(len(groups))
    nearest = np.empty(len(scaled))
    for begin in range(0, len(scaled), CHUNK_ROWS):
        own = slice(begin, begin + CHUNK_ROWS)
        squared = _squared(scaled[own], scaled)
        squared[labels[own, None] == labels] = np.inf
        nearest[own] = squared.min(axis=1)
    finite = np.sqrt(nearest[np.isfinite(nearest)])
    return max(float(np.median(finite)), 1e-3) if len(finite) else 1.0


def _nearest(these: NDArray[np.float64], those: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sqrt(_squared(these, those).min(axis=1)))


def _squared(these: NDArray[np.float64], those: NDArray[np.float64]) -> NDArray[np.float64]:
    found = these @ those.T
    found *= -2
    found += (those**2).sum(axis=1)
    found += (these**2).sum(axis=1)[:, None]
    return np.asarray(np.maximum(0.0, found, out=found))
