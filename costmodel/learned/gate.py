"""The gate: the distance of a kernel from the training data, and the share of its correction that is kept.

Boosted trees also predict far from their training data. On kinds of kernels without training rows, such
corrections make good analytical predictions worse, so the gate lets corrections fade with the distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .boosting import Array, case_slices

MOST_REFERENCES = 512
FARTHEST = 4.0  # standard deviations at which standardised features are cut
CHUNK_ROWS = 4096


@dataclass(frozen=True)
class Gate:
    """Distances from the training data, and the shares of corrections that are kept.

    Distance 1 is the median distance of a training row to the nearest row of another case. At the distance
    `reach`, half of a correction is kept; it is infinite for no gate. Far away, the log factor `common`
    replaces the correction.
    """

    references: NDArray[np.float64]  # (r, f), standardised and weighted
    centre: NDArray[np.float64]  # (f,)
    scale: NDArray[np.float64]  # (f,), factor of each standardised feature
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
        """Share of a correction that is kept at `distance`: 1 near the training data, 0 far away."""
        if self.reach <= 0:
            return np.zeros_like(distance)
        return np.asarray(1 / (1 + (distance / self.reach) ** 4))

    def _coordinates(self, features: Array) -> NDArray[np.float64]:
        return _scaled(features, self.centre, self.spread, self.scale)


def fit_gate(features: Array, groups: NDArray[np.integer[Any]], importance: Array, seed: int) -> Gate:
    """Fit the distances of a gate, without its reach.

    Args:
        features: training rows, shape (n, f).
        groups: the case of each row.
        importance: shape (f,), with sum 1: the weights of the features in distances.
        seed: chooses the reference rows.
    """
    rows = np.asarray(features, dtype=np.float64)
    centre = rows.mean(axis=0)
    spread = rows.std(axis=0)
    # a feature that is constant in the training data counts fully as soon as it changes
    spread = np.where(spread > 1e-6, spread, 0.1)
    weights = np.maximum(np.asarray(importance, dtype=np.float64), 0.2 / len(importance))
    scale = np.sqrt(weights / weights.sum())
    scaled = _scaled(rows, centre, spread, scale)
    chosen = _sample(groups, seed)
    unit = _unit(scaled[chosen], groups[chosen])
    return Gate(scaled[chosen], centre, scale, spread, unit)


def _scaled(features: Array, centre: Array, spread: Array, scale: Array) -> NDArray[np.float64]:
    standard = (np.asarray(features, dtype=np.float64) - centre) / spread
    return np.asarray(np.clip(standard, -FARTHEST, FARTHEST) * scale)


def _sample(groups: NDArray[np.integer[Any]], seed: int) -> NDArray[np.intp]:
    """At most MOST_REFERENCES row numbers, equally many of each case."""
    generator = np.random.default_rng(seed)
    cases = list(case_slices(groups))
    each = max(1, MOST_REFERENCES // len(cases))
    picked = [generator.choice(rows, min(each, len(rows)), replace=False) for rows in cases]
    return np.sort(np.concatenate(picked))[: max(MOST_REFERENCES, len(cases))]


def _unit(scaled: NDArray[np.float64], groups: NDArray[np.integer[Any]]) -> float:
    """Median distance to the nearest row of another case, or to the nearest row if there is only one case."""
    squared = _squared(scaled, scaled)
    same = groups[:, None] == groups[None, :]
    if same.all():
        same = np.eye(len(groups), dtype=bool)
    squared[same] = np.inf
    nearest = np.sqrt(squared.min(axis=1, initial=np.inf))
    finite = nearest[np.isfinite(nearest)]
    return max(float(np.median(finite)), 1e-3) if len(finite) else 1.0


def _nearest(these: NDArray[np.float64], those: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.sqrt(_squared(these, those).min(axis=1)))


def _squared(these: NDArray[np.float64], those: NDArray[np.float64]) -> NDArray[np.float64]:
    product = these @ those.T
    return np.asarray(
        np.maximum(0.0, (these**2).sum(axis=1)[:, None] + (those**2).sum(axis=1)[None, :] - 2 * product)
    )
