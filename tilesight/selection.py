"""Selection: which of the predicted candidates are worth a build and a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .space import Config

# a config that differs in one parameter from one already picked must promise this much more to be picked as well
SIBLING_PENALTY = 0.02


def choose(predicted_us: Mapping[Config, float], count: int) -> list[Config]:
    """The `count` most promising configs, best first, without crowding: a model that is wrong is wrong for siblings alike."""
    left = sorted(predicted_us, key=lambda config: (predicted_us[config], config.key))
    if not left:
        return []
    codes = _codes(left)
    cost = np.array([predicted_us[config] for config in left])
    picked: list[Config] = []
    while len(picked) < min(count, len(left)):
        best = int(cost.argmin())
        picked.append(left[best])
        siblings = (codes != codes[best]).sum(axis=1) == 1
        cost[siblings] += SIBLING_PENALTY * np.array([predicted_us[left[i]] for i in np.flatnonzero(siblings)])
        cost[best] = np.inf
    return picked


def corrected(predicted_us: Mapping[Config, float], measured: Sequence[tuple[Config, float, float]]) -> dict[Config, float]:
    """Predictions moved by how wrong the model was on measured configs, the more alike the more.

    `measured` holds config, predicted and measured time in microseconds. What all measured ones have in common (a
    constant factor) moves every prediction alike; what only some have moves those near them.
    """
    if not measured or not predicted_us:
        return dict(predicted_us)
    errors = np.log([actual / predicted for _, predicted, actual in measured])
    common = errors.mean()
    codes = _codes([*predicted_us, *(config for config, _, _ in measured)])
    waiting, known = codes[: len(predicted_us)], codes[len(predicted_us) :]
    # each changed parameter halves what a measured config counts
    weights = 0.5 ** np.array([(known != row).sum(axis=1) for row in waiting])
    # one more observation, of no error of its own, keeps a far config near the common factor
    local = weights @ (errors - common) / (1.0 + weights.sum(axis=1))
    factors = np.exp(common + local)
    return {config: us * float(factor) for (config, us), factor in zip(predicted_us.items(), factors, strict=True)}


def _codes(configs: Sequence[Config]) -> Any:
    """A row of small numbers for each config; equal where values are equal."""
    numbers: dict[object, int] = {}
    return np.array([[numbers.setdefault((name, type(v), v), len(numbers)) for name, v in config.items()] for config in configs])
