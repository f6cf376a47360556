"""The analytical model corrected by the learned one."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ..profile import KernelProfile
from ..target import Target
from ..trial import ORDER_TERM, Prediction
from .analytical import UNKNOWN_CALL_UNCERTAINTY, AnalyticalModel
from .features import feature_matrix
from .model import CostModel
from .model_file import LearnedModel

CORRECTION = "learned correction"
LITTLE_TRUST = 0.5
# one sigma of the analytical model alone on chips that no constant was fitted to: predictions for an A100 and an MI300X lie 16
# to 30 % off what others published (experiments/public_bands)
UNSEEN_ARCH_UNCERTAINTY = 0.35
MOST_SIGMA = 1.5  # a factor of 4.5 either way says "unknown" well enough


class HybridModel:
    """analytical time x exp(correction). `terms_us` are the analytical ones and the correction's own.

    Where the learned model has seen no kernel of the instruction set, and on CPUs, the analytical prediction stands.
    """

    def __init__(self, analytical: AnalyticalModel, learned: LearnedModel) -> None:
        """Raises `ValueError` where `learned` corrects another version of the analytical model."""
        if learned.analytical_version != analytical.version:
            raise ValueError(f"{learned.version} corrects {learned.analytical_version}, not {analytical.version}")
        self.analytical = analytical
        self.learned = learned
        self.version = f"{analytical.version}+{learned.version}"

    def predict(self, kernels: Sequence[KernelProfile], target: Target, built: Mapping[str, int] | None = None) -> Prediction:
        """Time of launching `kernels` one after the other. Raises `ValueError` where one does not fit the target."""
        return self.corrected([self.analytical.predict(kernels, target, built)], [kernels], target)[0]

    def was_trained_on(self, run: str) -> bool:
        """Whether the learned part was: see `TrainedModel`."""
        return self.learned.was_trained_on(run)

    def predict_many(self, candidates: Sequence[Sequence[KernelProfile]], target: Target) -> list[Prediction | ValueError]:
        """Each candidate's prediction, or why there is none; thousands cost the learned part milliseconds."""
        found: list[Prediction | ValueError] = []
        for kernels in candidates:
            try:
                found.append(self.analytical.predict(kernels, target))
            except ValueError as error:
                found.append(error)
        fitting = [i for i, answer in enumerate(found) if isinstance(answer, Prediction)]
        predictions = [p for p in found if isinstance(p, Prediction)]
        for place, answer in zip(fitting, self.corrected(predictions, [candidates[i] for i in fitting], target), strict=True):
            found[place] = answer
        return found

    def corrected(
        self, analytical: Sequence[Prediction], candidates: Sequence[Sequence[KernelProfile]], target: Target
    ) -> list[Prediction]:
        """Analytical predictions of `candidates`, each corrected."""
        if not analytical:
            return []
        if not target.is_gpu or target.arch not in self.learned.archs:
            return [self._unseen(p, target) for p in analytical]
        strange = self._strange(target)
        rows = feature_matrix([(kernels, target, p) for kernels, p in zip(candidates, analytical, strict=True)])
        found = self.learned.correction.apply(rows)
        parts = np.stack([found.time, found.sigma, found.trust, found.order], axis=1).tolist()
        return [self._one(p, time, sigma, trust, order, strange) for p, (time, sigma, trust, order) in zip(analytical, parts, strict=True)]

    def _unseen(self, analytical: Prediction, target: Target) -> Prediction:
        if not target.is_gpu:
            return replace(analytical, model=self.version)
        note = f"the learned model has seen {', '.join(self.learned.archs)} only: the analytical one stands"
        uncertainty = max(analytical.uncertainty, UNSEEN_ARCH_UNCERTAINTY)
        return replace(analytical, model=self.version, notes=(*analytical.notes, note), uncertainty=uncertainty)

    def _strange(self, target: Target) -> tuple[str, ...]:
        """A note where none of the training's targets is this one, nor described the same device."""
        data = self.learned.card["data"]
        if target.name in data["targets"] or set(target.device_names) & set(data["devices"]):
            return ()
        return (f"the learned model was trained on {', '.join(data['targets'])}, not on {target.name}",)

    def _one(
        self, analytical: Prediction, correction: float, sigma: float, trust: float, order: float, strange: tuple[str, ...]
    ) -> Prediction:
        factor, doubtful = math.exp(correction), analytical.uncertainty >= UNKNOWN_CALL_UNCERTAINTY
        uncertainty = math.expm1(min(sigma, MOST_SIGMA))
        note: tuple[str, ...] = ()
        if trust < LITTLE_TRUST:
            note = (f"unlike the kernels that the learned model has seen: {trust:.0%} of its correction is left",)
        latency_us = analytical.latency_us * factor
        return replace(
            analytical,
            latency_us=latency_us,
            utilization={name: min(1.0, share / factor) for name, share in analytical.utilization.items()},
            terms_us={**analytical.terms_us, CORRECTION: latency_us - analytical.latency_us, ORDER_TERM: latency_us * math.expm1(order)},
            # what was not understood, or is another chip, is as uncertain as before: no training row has it
            uncertainty=max(uncertainty, analytical.uncertainty) if doubtful or strange else uncertainty,
            notes=(*analytical.notes, *note, *strange),
            model=self.version,
        )


class NotedModel:
    """A model whose every prediction carries a note."""

    def __init__(self, model: CostModel, note: str) -> None:
        self.model, self.note, self.version = model, note, model.version

    def predict(self, kernels: Sequence[KernelProfile], target: Target, built: Mapping[str, int] | None = None) -> Prediction:
        found = self.model.predict(kernels, target, built)
        return replace(found, notes=(*found.notes, self.note))


__all__ = ["CORRECTION", "HybridModel", "NotedModel"]
