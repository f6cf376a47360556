"""The hybrid model: the analytical model, corrected by a learned model."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...profile.values import KernelProfile
from ...records.trial import ORDER_TERM, Prediction
from ...target.spec import Target
from ..analytical.analytical_model import AnalyticalModel
from ..analytical.constants import UNMEASURED_UNCERTAINTY
from ..analytical.kernel_terms import BASE_UNCERTAINTY, UNKNOWN_CALL_UNCERTAINTY
from ..analytical.network import NOTE as SEVERAL_DEVICES
from ..model import CostModel, fast_part
from .features import feature_matrix
from .model_file import LearnedModel

CORRECTION = "learned correction"
LITTLE_TRUST = 0.5
UNLIKE = "unlike the kernels that the learned model has seen"  # begins the note on little trust
# least sigma on chips of an instruction set without training rows
UNSEEN_ARCH_UNCERTAINTY = math.hypot(BASE_UNCERTAINTY, UNMEASURED_UNCERTAINTY)
MOST_SIGMA = 1.5  # limit of the uncertainty: a factor of 4.5 in both directions


class HybridModel:
    """Predicts analytical time x exp(correction). `terms_us` are the analytical terms and the correction.

    On CPUs and for instruction sets without training rows, the analytical prediction is not corrected.
    """

    def __init__(self, analytical: AnalyticalModel, learned: LearnedModel) -> None:
        """Raises `ValueError` if `learned` corrects another version of the analytical model."""
        if learned.analytical_version != analytical.version:
            raise ValueError(
                f"{learned.version} corrects {learned.analytical_version}, not {analytical.version}"
            )
        self.analytical = analytical
        self.learned = learned
        self.version = f"{analytical.version}+{learned.version}"

    def predict(
        self, kernels: Sequence[KernelProfile], target: Target, built: Mapping[str, int] | None = None
    ) -> Prediction:
        """Predict as `CostModel.predict`. Raises `ValueError` if a kernel does not fit the target."""
        return self.corrected([self.analytical.predict(kernels, target, built)], [kernels], target)[0]

    @property
    def fast(self) -> CostModel:
        return self.analytical

    def was_trained_on(self, run: str) -> bool:
        """Whether the learned part was trained on that run, as in `TrainedModel`."""
        return self.learned.was_trained_on(run)

    def predict_many(
        self, candidates: Sequence[Sequence[KernelProfile]], target: Target
    ) -> list[Prediction | ValueError]:
        """The prediction of each candidate, or its error.

        The learned part takes milliseconds for thousands.
        """
        found: list[Prediction | ValueError] = []
        for kernels in candidates:
            try:
                found.append(self.analytical.predict(kernels, target))
            except ValueError as error:
                found.append(error)
        fitting = [i for i, answer in enumerate(found) if isinstance(answer, Prediction)]
        predictions = [p for p in found if isinstance(p, Prediction)]
        corrected = self.corrected(predictions, [candidates[i] for i in fitting], target)
        for index, prediction in zip(fitting, corrected, strict=True):
            found[index] = prediction
        return found

    def corrected(
        self, analytical: Sequence[Prediction], candidates: Sequence[Sequence[KernelProfile]], target: Target
    ) -> list[Prediction]:
        """The analytical predictions of `candidates`, corrected."""
        if not analytical:
            return []
        if not target.is_gpu or target.arch not in self.learned.archs:
            return [self._unseen(p, target) for p in analytical]
        if any(kernel.communicates for kernels in candidates for kernel in kernels):
            # the ways of one operator must be comparable: none of them is corrected
            return [self._of_several_devices(p) for p in analytical]
        target_notes = self._target_notes(target)
        rows = feature_matrix(
            [(kernels, target, p) for kernels, p in zip(candidates, analytical, strict=True)]
        )
        found = self.learned.correction.apply(rows)
        parts = np.stack([found.time, found.sigma, found.trust, found.order], axis=1).tolist()
        return [
            self._one(p, time, sigma, trust, order, target_notes)
            for p, (time, sigma, trust, order) in zip(analytical, parts, strict=True)
        ]

    def _of_several_devices(self, analytical: Prediction) -> Prediction:
        return replace(analytical, model=self.version, notes=(*analytical.notes, SEVERAL_DEVICES))

    def _unseen(self, analytical: Prediction, target: Target) -> Prediction:
        if not target.is_gpu:
            return replace(analytical, model=self.version)
        note = f"the learned model has seen {', '.join(self.learned.archs)} only: the analytical one stands"
        uncertainty = max(analytical.uncertainty, UNSEEN_ARCH_UNCERTAINTY)
        return replace(
            analytical, model=self.version, notes=(*analytical.notes, note), uncertainty=uncertainty
        )

    def _target_notes(self, target: Target) -> tuple[str, ...]:
        """A note if the model was trained on neither this target nor the same device; else nothing."""
        data = self.learned.card["data"]
        if target.name in data["targets"] or set(target.device_names) & set(data["devices"]):
            return ()
        return (f"the learned model was trained on {', '.join(data['targets'])}, not on {target.name}",)

    def _one(
        self,
        analytical: Prediction,
        correction: float,
        sigma: float,
        trust: float,
        order: float,
        target_notes: tuple[str, ...],
    ) -> Prediction:
        factor, not_understood = math.exp(correction), analytical.uncertainty >= UNKNOWN_CALL_UNCERTAINTY
        uncertainty = math.expm1(min(sigma, MOST_SIGMA))
        note: tuple[str, ...] = ()
        if trust < LITTLE_TRUST:
            note = (f"{UNLIKE}: {trust:.0%} of its correction is left",)
        latency_us = analytical.latency_us * factor
        return replace(
            analytical,
            latency_us=latency_us,
            utilization={name: min(1.0, share / factor) for name, share in analytical.utilization.items()},
            terms_us={
                **analytical.terms_us,
                CORRECTION: latency_us - analytical.latency_us,
                ORDER_TERM: latency_us * math.expm1(order),
            },
            # unknown calls, other chips and spills of unlike kernels are not in the training data: they stay
            # at least as uncertain as before
            uncertainty=max(uncertainty, analytical.uncertainty)
            if not_understood or target_notes or (note and analytical.terms_us.get("spills"))
            else uncertainty,
            notes=(*analytical.notes, *note, *target_notes),
            model=self.version,
        )


class NotedModel:
    """A model that adds a note to each prediction."""

    def __init__(self, model: CostModel, note: str) -> None:
        self.model, self.note, self.version = model, note, model.version

    @property
    def fast(self) -> CostModel:
        return fast_part(self.model)

    def predict(
        self, kernels: Sequence[KernelProfile], target: Target, built: Mapping[str, int] | None = None
    ) -> Prediction:
        found = self.model.predict(kernels, target, built)
        return replace(found, notes=(*found.notes, self.note))


__all__ = ["CORRECTION", "HybridModel", "NotedModel"]
