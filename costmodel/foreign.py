"""Predictions of kernels that others wrote, which are less certain than those of operators in view."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..profile.values import KernelProfile
from ..records.trial import Prediction
from ..target.spec import Target
from .model import CostModel

# One sigma of the logarithm of the time that kernels of others add. The rules of the analytical model were
# found with TileSight's operators in view, which their held-out errors do not tell. With 0.15, 71 to 80 % of
# the errors on three sets of public kernels, as they were predicted unseen, are within one sigma and 87 to
# 92 % within two; without it 53 to 76 % and 80 to 88 % (experiments/outside/h200/unseen.csv).
FOREIGN_SIGMA = 0.15


@dataclass(frozen=True)
class ForeignModel:
    """A model that states how uncertain it is for kernels of others. Its times are those of `model`."""

    model: CostModel

    @property
    def version(self) -> str:
        return self.model.version

    def predict(
        self, kernels: Sequence[KernelProfile], target: Target, built: Mapping[str, int] | None = None
    ) -> Prediction:
        """As `CostModel.predict`."""
        found = self.model.predict(kernels, target, built)
        sigma = math.hypot(math.log1p(found.uncertainty), FOREIGN_SIGMA)
        return replace(found, uncertainty=math.expm1(sigma))
