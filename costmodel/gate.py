"""How far a kernel is from those that the learned model has seen, and how much of a correction is left there.

Boosted trees answer everywhere, also where they have seen nothing: on kinds of kernel that were not trained on, an
ungated correction makes a good analytical prediction worse. The gate lets it fade with distance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .boosting import Array, case_slices

MOST_REFERENCES = 512
FARTHEST = 4.0  # standard deviations: what is farther is far, however far
CHUNK_ROWS = 4096


@dataclass(frozen=True)
class Gate:
    """Distance 1 is that of a training row to the nearest row of another case, in the median.

    `reach` is the distance at which half of a correction is left; infinite for no gate. `common` is the log factor that
    takes the correction's place beyond.
    """

    references: NDArray[np.float64]  # (r, f), standardised and weighted
    centre: NDArray[np.float64]  # (f,)
    scale: NDArray[np.float64]  # (f,): what a standardised feature is multiplied by
    spread: NDArray[np.float64]  # (f,)
    unit: float
    reach: float = float("inf")
    common: float = 0.0

    def distance(self, features: Array) -> NDArray[np.float64]:
        """(n,) distances of rows (n, f) to the nearest reference."""
        parts = [
            _nearest(self._place(features[begin : begin + CHUNK_ROWS]), self.references) for begin in range(0, len(features), CHUNK_ROWS)
        ]
        return np.asarray(np.concatenate(parts) / self.unit) if parts else np.empty(0)

    def trust(self, distance: NDArray[np.float64]) -> NDArray[np.float64]:
        """Share of a correction that is left at `distance`: 1 at home, 0 far away."""
        if self.reach <= 0:
            return np.zeros_like(distance)
        return np.asarray(1 / (1 + (distance / self.reach) ** 4))

    def _place(self, features: Array) -> NDArray[np.float64]:
        return _placed(features, self.centre, self.spread, self.scale)


def fit_gate(features: Array, groups: NDArray[np.integer[Any]], importance: Array, seed: int) -> Gate:
    """Distances by the features that corrections depend on: each is weighted by its `importance` (f,), which sums to 1."""
    rows = np.asarray(features, dtype=np.float64)
    centre = rows.mean(axis=0)
    spread = rows.std(axis=0)
    # a feature that never moved tells of something new as soon as it does
    spread = np.where(spread > 1e-6, spread, 0.1)
    weights = np.maximum(np.asarray(importance, dtype=np.float64), 0.2 / len(importance))
    scale = np.sqrt(weights / weights.sum())
    placed = _placed(rows, centre, spread, scale)
    chosen = _sample(groups, seed)
    unit = _unit(placed[chosen], groups[chosen])
    return Gate(placed[chosen], centre, scale, spread, unit)


def _placed(features: Array, centre: Array, spread: Array, scale: Array) -> NDArray[np.float64]:
    standard = (np.asarray(features, dtype=np.float64) - centre) / spread
    return np.asarray(np.clip(standard, -FARTHEST, FARTHEST) * scale)


def _sample(groups: NDArray[np.integer[Any]], seed: int) -> NDArray[np.intp]:
    """Rows of all cases alike, at most MOST_REFERENCES."""
    generator = np.random.default_rng(seed)
    cases = list(case_slices(groups))
    each = max(1, MOST_REFERENCES // len(cases))
    picked = [generator.choice(rows, min(each, len(rows)), replace=False) for rows in cases]
    return np.sort(np.concatenate(picked))[: max(MOST_REFERENCES, len(cases))]


def _unit(placed: NDArray[np.float64], groups: NDArray[np.integer[Any]]) -> float:
    """Median distance to the nearest row of another case (of all rows, where there is only one case)."""
    squared = _squared(placed, placed)
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
    return np.asarray(np.maximum(0.0, (these**2).sum(axis=1)[:, None] + (those**2).sum(axis=1)[None, :] - 2 * product))
