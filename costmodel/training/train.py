"""Trains a correction on measured rows: analytical predictions, features, and the fit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...records.trial import Prediction
from ..analytical.analytical_model import AnalyticalModel
from ..learned.estimator import LatencyCorrection
from ..learned.features import NAMES, SURE, features
from .measured import MeasuredRow, codes, measured_log

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Described:
    """Analytical times and features of rows. The time of a refused row is infinite, its features are 0."""

    predictions: tuple[Prediction | None, ...]
    analytical_us: NDArray[np.float64]
    features: NDArray[np.float32]

    @property
    def usable(self) -> NDArray[np.bool_]:
        """Mask of the rows that the analytical model does not refuse."""
        return np.isfinite(self.analytical_us)


def describe(rows: Sequence[MeasuredRow], model: AnalyticalModel) -> Described:
    """Compute the analytical prediction and the features of each row."""
    predictions: list[Prediction | None] = []
    vectors = np.zeros((len(rows), len(NAMES)), dtype=np.float32)
    for number, row in enumerate(rows):
        try:
            prediction = model.predict(row.kernels, row.target)
        except ValueError as error:
            log.debug("%s %s is refused: %s", row.case, dict(row.config), error)
            predictions.append(None)
            continue
        predictions.append(prediction)
        vectors[number] = features(row.kernels, row.target, prediction)
    times = np.array([np.inf if p is None else p.latency_us for p in predictions])
    return Described(tuple(predictions), times, vectors)


def train_correction(
    rows: Sequence[MeasuredRow],
    described: Described,
    chosen: NDArray[np.bool_] | None = None,
    **parameters: Any,
) -> LatencyCorrection:
    """Train a correction on rows that the analytical model does not refuse.

    Cases are groups, operators are kinds.

    Args:
        rows: the measured rows.
        described: their analytical times and features.
        chosen: mask of the rows to train on; all if left out.
        parameters: parameters of `LatencyCorrection`.

    Raises:
        ValueError: fewer than two rows are left.
    """
    used = described.usable if chosen is None else described.usable & chosen
    kept = [row for row, keep in zip(rows, used, strict=True) if keep]
    offset = np.log(described.analytical_us[used])
    return LatencyCorrection(sure=SURE, **parameters).fit(
        described.features[used],
        measured_log(kept) - offset,
        groups=codes(row.case for row in kept),
        kinds=codes(row.operator for row in kept),
        offset=offset,
    )
