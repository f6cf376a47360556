"""Models that state another uncertainty of the predictions of a model, whose times they keep."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..profile.values import KernelProfile
from ..records.trial import Prediction
from ..target.spec import Target
from .model import CostModel, predict_many


@dataclass(frozen=True)
class RestatedModel(ABC):
    """A model with the times of `model`, and with an uncertainty of its own."""

    model: CostModel

    @abstractmethod
    def restated(self, uncertainty: float) -> float:
        """The uncertainty to state where `model` states this one; both are relative, one sigma."""

    @property
    def version(self) -> str:
        return self.model.version

    def predict(
        self, kernels: Sequence[KernelProfile], target: Target, built: Mapping[str, int] | None = None
    ) -> Prediction:
        """As `CostModel.predict`."""
        return self._restated(self.model.predict(kernels, target, built))

    def predict_many(
        self, candidates: Sequence[Sequence[KernelProfile]], target: Target
    ) -> Sequence[Prediction | Exception]:
        """As `BatchModel.predict_many`."""
        found = predict_many(self.model, candidates, target)
        return [p if isinstance(p, Exception) else self._restated(p) for p in found]

    def _restated(self, prediction: Prediction) -> Prediction:
        return replace(prediction, uncertainty=self.restated(prediction.uncertainty))
