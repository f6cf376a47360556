"""The measured rows of one training, with what several of its fits read from them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from ..analytical.analytical_model import AnalyticalModel
from .measured import MeasuredRow, codes
from .train import Described, describe
from .yardsticks import count_features


class RowTable:
    """Measured rows. What is derived from them is computed when it is first asked for, and kept."""

    def __init__(self, rows: Sequence[MeasuredRow]) -> None:
        self.rows = rows
        self._described: tuple[str, Described] | None = None

    @cached_property
    def counts(self) -> NDArray[np.float32]:
        """Plain counts of the rows, shape (n, c)."""
        return count_features(self.rows)

    @cached_property
    def problems(self) -> NDArray[np.int64]:
        """The problem of each row as a number, shape (n,)."""
        return codes(row.problem for row in self.rows)

    def described(self, model: AnalyticalModel) -> Described:
        """Analytical times and features of the rows.

        Those of the last model are kept: all folds share one.
        """
        if self._described is None or self._described[0] != model.version:
            self._described = None  # the memory of the former ones is free before the next are made
            self._described = model.version, describe(self.rows, model)
        return self._described[1]
