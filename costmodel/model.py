"""The contract of a cost model, and the errors that it passes on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from ..profile import KernelProfile
from ..target import Target
from ..trial import Prediction


class CostModel(Protocol):
    """Predicts a kernel's time from its profiles alone: no config values, no kernel names.

    `version` changes whenever a prediction could; stored predictions are re-used only under the same one.
    """

    @property
    def version(self) -> str: ...

    def predict(self, kernels: Sequence[KernelProfile], target: Target) -> Prediction:
        """Time of launching `kernels` (those of one function, in order) on `target`."""
        ...
