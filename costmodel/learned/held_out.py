"""Training rows, predictions of rows by members that were trained without them, and their loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .boosting import Array, case_slices
from .correction import Member, blend
from .gate import Gate

ORDER_WEIGHT = 1.0  # weight of errors within a case, which decide the ranking, relative to absolute errors


@dataclass(frozen=True)
class TrainingRows:
    """Training rows: `ratio` is log(measured / analytical), `start` log(analytical)."""

    features: Array
    ratio: NDArray[np.float64]
    start: NDArray[np.float64]
    cases: NDArray[np.int64]
    weights: NDArray[np.float64]

    def of(self, chosen: NDArray[np.bool_]) -> TrainingRows:
        return TrainingRows(
            self.features[chosen],
            self.ratio[chosen],
            self.start[chosen],
            self.cases[chosen],
            self.weights[chosen],
        )


@dataclass(frozen=True)
class HeldOutPredictions:
    """Predictions of rows by members that were trained without them, and distances from training rows."""

    ratio: NDArray[np.float64]
    time: NDArray[np.float64]
    distance: NDArray[np.float64]

    @classmethod
    def empty(cls, ratio: NDArray[np.float64]) -> HeldOutPredictions:
        return cls(ratio, np.empty_like(ratio), np.empty_like(ratio))

    def put(
        self, own: NDArray[np.bool_], rows: TrainingRows, member: Member, distance: NDArray[np.float64]
    ) -> None:
        self.time[own], self.distance[own] = member.time(rows.features[own]), distance

    def errors(self, gate: Gate, common: Any = None) -> NDArray[np.float64]:
        """log(measured / predicted) with `gate`, shape (n,).

        `common` replaces the common factor of the gate.
        """
        return self.ratio - blend(
            self.time, gate.trust(self.distance), gate.common if common is None else common
        )


def held_out_loss(error: NDArray[np.float64], weights: Array, cases: NDArray[Any]) -> float:
    """Mean absolute error, plus that within cases after subtraction of the mean of each case."""
    within = error.copy()
    for rows in case_slices(cases):
        within[rows] -= np.average(error[rows], weights=weights[rows])
    return float(
        np.average(np.abs(error), weights=weights)
        + ORDER_WEIGHT * np.average(np.abs(within), weights=weights)
    )
