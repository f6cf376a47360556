"""Re-ranking: predictions corrected by the compiler's registers and spills before anything is measured."""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from dataclasses import replace

from ..costmodel.model import CostModel
from ..problem.space import Config
from ..profile.values import KernelProfile
from ..records.trial import BuildResult, Prediction
from ..target.spec import Target

SPARE = 1.5  # candidates built for each one measured: the compiler's figures may drop the rest
MOST_REMEMBERED = 512  # profiles, those of the best predicted: the others are never built
CLEAR = 1.02  # smallest change of a prediction that is reported
FIGURES = ("registers", "spill_bytes", "smem_bytes")


class Reranker:
    """Remembers the profiles of promising candidates, and predicts them again with the compiler's own
    figures.
    """

    def __init__(self, model: CostModel, target: Target) -> None:
        self._model, self._target = model, target
        self._profiles: dict[Config, tuple[KernelProfile, ...]] = {}
        self._slowest: list[tuple[float, str, Config]] = []  # a heap, the slowest first

    def remember(self, config: Config, kernels: tuple[KernelProfile, ...], ranking_us: float) -> None:
        self._profiles[config] = kernels
        heapq.heappush(self._slowest, (-ranking_us, config.key, config))
        if len(self._slowest) > MOST_REMEMBERED:
            del self._profiles[heapq.heappop(self._slowest)[2]]

    def predict(self, config: Config, build: BuildResult, before: Prediction) -> Prediction:
        """The prediction with the compiler's figures; `before` if there are none or the profiles are not
        remembered.
        """
        kernels = self._profiles.get(config)
        given = {name: build.resources[name] for name in FIGURES if name in build.resources}
        if kernels is None or not given:
            return before
        try:
            after = self._model.predict(kernels, self._target, given)
        except ValueError:  # with these figures the kernel would not fit: the measurement decides
            return before
        if not _moved(before, after):
            return before
        figures = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in given.items())
        return replace(
            after,
            notes=(
                *after.notes,
                f"predicted {before.latency_us:.4g} us before the build; the compiler's figures: {figures}",
            ),
        )


def clearly_worse(
    before: Mapping[Config, Prediction],
    after: Mapping[Config, Prediction],
    current_us: Mapping[Config, float],
    best_us: float,
) -> list[Config]:
    """Candidates that the compiler's figures made slower than `best_us` by more than their uncertainty.

    `current_us` are their times, corrected by the measurements so far: the scale of `best_us`.
    """
    return [
        config
        for config, now in after.items()
        if now.latency_us > CLEAR * before[config].latency_us
        and current_us[config] > best_us * (1 + now.uncertainty)
    ]


def _moved(before: Prediction, after: Prediction) -> bool:
    return max(before.latency_us, after.latency_us) > CLEAR * min(before.latency_us, after.latency_us)
