"""Similarity of the configs of a space, by which Gaussian processes share errors between configs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..problem.config import Config, parameter_names

DECAY_STEPS = 4.0  # distance at which the similarity falls to 1/e
# A step is a different name or flag. A doubled number counts as DOUBLING_STEP, and MAX_DOUBLINGS or more as
# that many.
DOUBLING_STEP, MAX_DOUBLINGS = 0.7, 2.0


class ConfigSimilarity:
    """Configs of one space as coordinates: logarithms of integers, numbers for names and flags.

    A parameter that some configs leave out (`Parameter.default`) has numbers for its values, too.
    """

    def __init__(self, configs: Sequence[Config]) -> None:
        columns = [[config.get(name) for config in configs] for name in parameter_names(configs)]
        self._numeric = [
            all(isinstance(value, int) and not isinstance(value, bool) for value in column)
            for column in columns
        ]
        self._columns = [
            np.log2(1.0 + np.abs(np.array(column, dtype=np.float64)))
            if numeric
            else _category_numbers(column)
            for column, numeric in zip(columns, self._numeric, strict=True)
        ]

    def matrix(self, some: slice = slice(None), others: slice = slice(None)) -> NDArray[np.float64]:
        """Shape (some, others): 1 for equal configs, towards 0 with the steps between them."""
        steps: Any = 0.0
        for column, numeric in zip(self._columns, self._numeric, strict=True):
            apart = np.abs(column[some][:, None] - column[others][None, :])
            doublings = DOUBLING_STEP * np.minimum(apart, MAX_DOUBLINGS)
            steps = steps + (doublings if numeric else (apart > 0).astype(np.float64))
        found: NDArray[np.float64] = np.exp(-steps / DECAY_STEPS)
        return found


def _category_numbers(values: Sequence[object]) -> NDArray[np.float64]:
    numbers: dict[object, int] = {}
    return np.array(
        [numbers.setdefault((type(value), value), len(numbers)) for value in values], dtype=np.float64
    )
