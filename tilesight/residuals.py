"""Predictions corrected by what was measured: a Gaussian process on how wrong the model was.

The error of a prediction (log of measured over predicted time) is taken as one constant for the whole space, a part that
configs share the more, the nearer they are, and noise. What is measured fixes both parts where it is, and leaves doubt
where it is not. A config is valued by what is expected of it less a part of that doubt, so that among equals the one is
tried that teaches more. The figures were chosen by replays of held-out predictions (experiments/replay).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .space import Config

COMMON_SIGMA = 0.3  # of the constant factor between model and device, in log time
LOCAL_SIGMA = 0.1  # of what neighbours share
NOISE_SIGMA = 0.02  # of what they do not
REACH = 4.0  # steps after which the shared part falls to 1/e
# a doubled number is so much of a step, a fourfold one or more so much twice; another name or flag is a whole step
DOUBLING_STEP, MOST_DOUBLINGS = 0.7, 2.0
CURIOSITY = 0.4  # sigmas of doubt that a config is credited with


def corrected(predicted_us: Mapping[Config, float], measured: Sequence[tuple[Config, float, float]]) -> dict[Config, float]:
    """What each config of `predicted_us` is worth trying as: a time in microseconds, on the scale of the measured ones.

    `measured` holds config, predicted and measured time. Without any, predictions stay. `selection.choose` takes the result.
    """
    if not measured or not predicted_us:
        return dict(predicted_us)
    points = Points([*predicted_us, *(config for config, _, _ in measured)])
    waiting, known = slice(0, len(predicted_us)), slice(len(predicted_us), None)
    errors = np.log([actual / predicted for _, predicted, actual in measured])
    shared = COMMON_SIGMA**2 + LOCAL_SIGMA**2 * points.likeness(known, known)
    between = COMMON_SIGMA**2 + LOCAL_SIGMA**2 * points.likeness(waiting, known)
    with one_thread():
        solved = np.linalg.solve(shared + NOISE_SIGMA**2 * np.eye(len(errors)), np.column_stack([errors, between.T]))
        mean = between @ solved[:, 0]
    variance = COMMON_SIGMA**2 + LOCAL_SIGMA**2 - np.einsum("ij,ji->i", between, solved[:, 1:])
    factors = np.exp(mean - CURIOSITY * np.sqrt(np.maximum(variance, 0.0)))
    return {config: us * float(factor) for (config, us), factor in zip(predicted_us.items(), factors, strict=True)}


def one_thread() -> AbstractContextManager[object]:
    """Linear algebra of a few hundred rows in one thread: beside busy workers more of them only wait for each other."""
    found: AbstractContextManager[object] = _threads().limit(limits=1, user_api="blas")
    return found


@cache
def _threads() -> Any:
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


class Points:
    """Configs of one space as coordinates: logarithms of whole numbers, numbers for names and flags."""

    def __init__(self, configs: Sequence[Config]) -> None:
        names = list(configs[0])
        columns = [[config[name] for config in configs] for name in names]
        self._ordered = [all(isinstance(value, int) and not isinstance(value, bool) for value in column) for column in columns]
        self._columns = [
            np.log2(1.0 + np.abs(np.array(column, dtype=np.float64))) if ordered else _numbered(column)
            for column, ordered in zip(columns, self._ordered, strict=True)
        ]

    def likeness(self, some: slice, others: slice) -> NDArray[np.float64]:
        """1 for equal configs, towards 0 with the steps between them: a row for each of `some`, a column for each of `others`."""
        steps: Any = 0.0
        for column, ordered in zip(self._columns, self._ordered, strict=True):
            apart = np.abs(column[some][:, None] - column[others][None, :])
            steps = steps + (DOUBLING_STEP * np.minimum(apart, MOST_DOUBLINGS) if ordered else (apart > 0).astype(np.float64))
        found: NDArray[np.float64] = np.exp(-steps / REACH)
        return found


def _numbered(values: Sequence[object]) -> NDArray[np.float64]:
    numbers: dict[object, int] = {}
    return np.array([numbers.setdefault((type(value), value), len(numbers)) for value in values], dtype=np.float64)
