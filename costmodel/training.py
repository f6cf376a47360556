"""From measured rows to a trained correction: analytical predictions, features, fit."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..trial import Prediction
from .analytical import AnalyticalModel
from .constants import Constants
from .features import NAMES, features
from .learned import LatencyCorrection
from .measured import MeasuredRow, codes, measured_log

log = logging.getLogger(__name__)


class ConstantsFit(Protocol):
    """Fits the analytical model's constants to measured rows, as `calibration.fit` does."""

    def __call__(self, rows: Sequence[MeasuredRow], /) -> Constants: ...


@dataclass(frozen=True)
class Described:
    """What a model sees of rows: analytical times (infinite where it refused), and features (zeros there)."""

    predictions: tuple[Prediction | None, ...]
    analytical_us: NDArray[np.float64]
    features: NDArray[np.float32]

    @property
    def usable(self) -> NDArray[np.bool_]:
        return np.isfinite(self.analytical_us)


def describe(rows: Sequence[MeasuredRow], model: AnalyticalModel) -> Described:
    """Analytical prediction and features of each row."""
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
    rows: Sequence[MeasuredRow], described: Described, chosen: NDArray[np.bool_] | None = None, **parameters: Any
) -> LatencyCorrection:
    """Fit to the `chosen` rows (all where left out) that the analytical model does not refuse.

    Cases are groups, operators are kinds. Raises `ValueError` where fewer than two rows are left.
    """
    used = described.usable if chosen is None else described.usable & chosen
    kept = [row for row, keep in zip(rows, used, strict=True) if keep]
    offset = np.log(described.analytical_us[used])
    return LatencyCorrection(**parameters).fit(
        described.features[used],
        measured_log(kept) - offset,
        groups=codes(row.case for row in kept),
        kinds=codes(row.operator for row in kept),
        offset=offset,
    )
