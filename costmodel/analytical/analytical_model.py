"""The analytical cost model: predicts the time of a function, kernel by kernel, without training.

    latency = launch + prologue of the first block + makespan of all blocks + epilogue of the last

kernel_terms.py computes the terms of one kernel. docs/model.md gives the source of each term.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ...profile.values import KernelProfile
from ...records.timeline import TimelinePart
from ...records.trial import Prediction
from ...target.spec import Target
from . import cpu_core as cpu
from .clocks import under_load
from .constants import DEFAULT, Constants
from .first_level import with_held_sectors, with_held_tables
from .gathers import with_stores_once
from .kernel_terms import KernelTerms
from .network import library_collective, meeting
from .occupancy import misfit
from .timeline import kernel_parts, one_after_another
from .traffic import Traffic

# Share of the launch cost that a further kernel of a function adds: its launch waits in the queue while the
# kernel before it runs. Measured on an H200, experiments/launches.
FURTHER_LAUNCH_SHARE = 0.25
CODE_VERSION = 33  # raise it with every change of this package that changes a prediction


class AnalyticalModel:
    """Predicts from profiles and the description of the target; `terms_us` of a prediction explains it."""

    def __init__(self, constants: Constants = DEFAULT) -> None:
        self.constants = constants
        digest = hashlib.sha256(repr(constants).encode()).hexdigest()[:6]
        self.version = f"analytical-{CODE_VERSION}.{digest}"

    def predict(
        self, kernels: Sequence[KernelProfile], target: Target, built: Mapping[str, int] | None = None
    ) -> Prediction:
        """Predict the time of launching kernels one after another.

        Args:
            kernels: the profiles, in launch order.
            target: the target to predict for.
            built: the compiler's figures. They are ignored for several kernels, since they belong to the
                whole function.

        Raises:
            ValueError: a kernel does not fit the target.
        """
        parts = [self._one(kernel, target, built if len(kernels) == 1 else None) for kernel in kernels]
        if len(parts) == 1:
            return parts[0]
        parts = [parts[0], *(_following(part) for part in parts[1:])]
        total = sum(p.latency_us for p in parts)
        resources = dict.fromkeys(r for p in parts for r in p.utilization)
        terms = dict.fromkeys(t for p in parts for t in p.terms_us)
        longest = max(parts, key=lambda p: p.latency_us)
        return Prediction(
            latency_us=total,
            utilization={
                r: sum(p.utilization.get(r, 0.0) * p.latency_us for p in parts) / total for r in resources
            },
            limiting=longest.limiting,
            terms_us={t: sum(p.terms_us.get(t, 0.0) for p in parts) for t in terms},
            uncertainty=max(p.uncertainty for p in parts),
            notes=tuple(dict.fromkeys(n for p in parts for n in p.notes)),
            model=self.version,
            expected=_together([(p.expected, p.latency_us) for p in parts]),
        )

    def _one(self, profile: KernelProfile, target: Target, built: Mapping[str, int] | None) -> Prediction:
        if profile.kind == "cpu":
            return cpu.predict(profile, target, self.version)
        if profile.collective is not None:
            return library_collective(profile.collective, target, self.version)
        if profile.meetings:
            return meeting(profile, target, self.version)
        return self._terms(profile, target, built).prediction(self.version)

    def _terms(
        self, profile: KernelProfile, target: Target, built: Mapping[str, int] | None = None
    ) -> KernelTerms:
        """The terms of a kernel that runs on the cores of a GPU."""
        reason = misfit(profile, target)
        if reason is not None:
            raise ValueError(f"kernel {reason}")
        profile = with_stores_once(profile)
        terms = KernelTerms(profile, under_load(profile, target), self.constants, built)
        served = with_held_tables(with_held_sectors(profile, target, terms.resident), target, terms.resident)
        return terms if served is profile else replace(terms, profile=served)

    def traffic(self, kernels: Sequence[KernelProfile], target: Target) -> list[Traffic | None]:
        """The traffic of each kernel; None of one that does not run on the cores of a GPU.

        Raises:
            ValueError: a kernel does not fit the target.
        """
        return [
            None if kernel.kind == "cpu" or kernel.is_exchange else self._terms(kernel, target).traffic
            for kernel in kernels
        ]

    def timeline(self, kernels: Sequence[KernelProfile], target: Target) -> list[TimelinePart]:
        """What the latency of a prediction consists of, as rows of spans of time.

        The rows of each part that add up to it are those numbers from which `predict` adds up the latency.

        Raises:
            ValueError: a kernel does not fit the target, or is one of a processor.
        """
        if any(kernel.kind == "cpu" for kernel in kernels):
            raise ValueError("kernel of a processor: its model has sums of whole loops only, no timeline")
        predictions = [self._one(kernel, target, None) for kernel in kernels]
        predictions = [predictions[0], *(_following(part) for part in predictions[1:])]
        found: list[TimelinePart] = []
        for number, (kernel, prediction) in enumerate(zip(kernels, predictions, strict=True), 1):
            name = f"kernel {number}" if len(kernels) > 1 else "kernel"
            terms = None if kernel.is_exchange else self._terms(kernel, target)
            found += kernel_parts(name, prediction, terms)
        return [*one_after_another(predictions), *found] if len(kernels) > 1 else found


def _following(part: Prediction) -> Prediction:
    """The prediction of a kernel that is launched while another one runs."""
    launch_us = part.terms_us.get("launch", 0.0)
    return replace(
        part,
        latency_us=part.latency_us - (1 - FURTHER_LAUNCH_SHARE) * launch_us,
        terms_us={**part.terms_us, "launch": FURTHER_LAUNCH_SHARE * launch_us},
    )


def _together(parts: Sequence[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """Counter values of several kernels: bytes and instructions are added, shares and clocks averaged."""
    means, total = ("l2_hit", "occupancy", "clock_mhz"), sum(us for _, us in parts)
    names = dict.fromkeys(name for counts, _ in parts for name in counts)
    return {
        name: sum(c.get(name, 0.0) * (us / total if name in means else 1.0) for c, us in parts)
        for name in names
    }


__all__ = ["AnalyticalModel"]
