"""Selection: which predicted candidates are built and measured."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from ..problem.config import Config, Value, parameter_names

# For each picked config that differs in one parameter, a config's predicted time counts as this share longer.
SIBLING_PENALTY = 0.02


def choose(predicted_us: Mapping[Config, float], count: int, pending: Sequence[Config] = ()) -> list[Config]:
    """The `count` most promising configs, best first, spread over the space.

    The errors of a model are alike for configs that differ in one parameter (siblings). So siblings of picked
    configs get a penalty.

    Args:
        predicted_us: predicted times by config, in us.
        count: number of configs.
        pending: configs that were picked before; their siblings get the penalty too.
    """
    candidates = sorted(predicted_us, key=lambda config: (predicted_us[config], config.key))
    if not candidates:
        return []
    codes = config_codes([*candidates, *pending])
    codes, pending_codes = codes[: len(candidates)], codes[len(candidates) :]
    times = np.array([predicted_us[config] for config in candidates])
    cost = times.copy()
    for row in pending_codes:
        cost[_siblings(codes, row)] += SIBLING_PENALTY * times[_siblings(codes, row)]
    picked: list[Config] = []
    while len(picked) < min(count, len(candidates)):
        best = int(cost.argmin())
        picked.append(candidates[best])
        siblings = _siblings(codes, codes[best])
        cost[siblings] += SIBLING_PENALTY * times[siblings]
        cost[best] = np.inf
    return picked


def _siblings(codes: Any, row: Any) -> Any:
    return (codes != row).sum(axis=1) == 1


def config_codes(configs: Sequence[Config]) -> Any:
    """Integers of shape (configs, parameters): equal where the values of a parameter are equal."""
    names = parameter_names(configs)
    numbers: dict[object, int] = {}

    def code(name: str, value: Value | None) -> int:
        return numbers.setdefault((name, type(value), value), len(numbers))

    return np.array([[code(name, config.get(name)) for name in names] for config in configs])
