"""Predictions corrected by measured neighbours: the simpler correction, which `residuals` is held against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..selection import codes_of
from ..space import Config


def corrected(predicted_us: Mapping[Config, float], measured: Sequence[tuple[Config, float, float]]) -> dict[Config, float]:
    """Predictions moved by how wrong the model was on measured configs, the more alike the more.

    `measured` holds config, predicted and measured time in microseconds. What all measured ones have in common (a
    constant factor) moves every prediction alike; what only some have moves those near them.
    """
    if not measured or not predicted_us:
        return dict(predicted_us)
    errors = np.log([actual / predicted for _, predicted, actual in measured])
    common = errors.mean()
    codes = codes_of([*predicted_us, *(config for config, _, _ in measured)])
    waiting, known = codes[: len(predicted_us)], codes[len(predicted_us) :]
    # each changed parameter halves what a measured config counts
    weights = 0.5 ** np.array([(known != row).sum(axis=1) for row in waiting])
    # one more observation, of no error of its own, keeps a far config near the common factor
    local = weights @ (errors - common) / (1.0 + weights.sum(axis=1))
    factors = np.exp(common + local)
    return {config: us * float(factor) for (config, us), factor in zip(predicted_us.items(), factors, strict=True)}
