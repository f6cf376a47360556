"""Uncertainty from the errors of earlier predictions, where times of the same device are on record.

The `cpu` target has the figures of a typical core, so the errors of predictions depend on the machine.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..profile.values import KernelProfile
from ..records.trial import Prediction
from ..target.spec import Target
from .model import CostModel, predict_many

PRIOR_ERRORS = 8.0  # errors that the model's own uncertainty counts as
ONE_SIGMA = 0.68


def sigma_with_errors(prior: float, errors: Sequence[float]) -> float:
    """One sigma, relative, from the model's own one and from recorded |log(measured / predicted)|.

    The more errors are on record, the less the model's own uncertainty counts.
    """
    if not errors:
        return prior
    ordered = sorted(errors)
    seen = math.expm1(ordered[min(len(ordered) - 1, int(ONE_SIGMA * len(ordered)))])
    weight = len(errors) / (len(errors) + PRIOR_ERRORS)
    return math.sqrt((1 - weight) * prior**2 + weight * seen**2)


@dataclass(frozen=True)
class RecordedErrorsModel:
    """A model whose uncertainty follows from recorded errors. Its times are those of `model`."""

    model: CostModel
    errors: tuple[float, ...]

    @property
    def version(self) -> str:
        return self.model.version

    def predict(
        self, kernels: Sequence[KernelProfile], target: Target, built: Mapping[str, int] | None = None
    ) -> Prediction:
        """As `CostModel.predict`."""
        return self._with_errors(self.model.predict(kernels, target, built))

    def predict_many(
        self, candidates: Sequence[Sequence[KernelProfile]], target: Target
    ) -> Sequence[Prediction | Exception]:
        """As `BatchModel.predict_many`."""
        found = predict_many(self.model, candidates, target)
        return [p if isinstance(p, Exception) else self._with_errors(p) for p in found]

    def _with_errors(self, prediction: Prediction) -> Prediction:
        return replace(prediction, uncertainty=sigma_with_errors(prediction.uncertainty, self.errors))
