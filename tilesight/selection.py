"""Selection: which of the predicted candidates are worth a build and a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .space import Config

# a config that differs in one parameter from one already picked must promise this much more to be picked as well
SIBLING_PENALTY = 0.02


def choose(predicted_us: Mapping[Config, float], count: int, beside: Sequence[Config] = ()) -> list[Config]:
    """The `count` most promising configs, best first, without crowding: a model that is wrong is wrong for siblings alike.
    `beside` are configs on their way already."""
    left = sorted(predicted_us, key=lambda config: (predicted_us[config], config.key))
    if not left:
        return []
    codes = codes_of([*left, *beside])
    codes, known = codes[: len(left)], codes[len(left) :]
    times = np.array([predicted_us[config] for config in left])
    cost = times.copy()
    for row in known:
        cost[_siblings(codes, row)] += SIBLING_PENALTY * times[_siblings(codes, row)]
    picked: list[Config] = []
    while len(picked) < min(count, len(left)):
        best = int(cost.argmin())
        picked.append(left[best])
        siblings = _siblings(codes, codes[best])
        cost[siblings] += SIBLING_PENALTY * times[siblings]
        cost[best] = np.inf
    return picked


def _siblings(codes: Any, row: Any) -> Any:
    return (codes != row).sum(axis=1) == 1


def codes_of(configs: Sequence[Config]) -> Any:
    """A row of small numbers for each config; equal where values are equal."""
    numbers: dict[object, int] = {}
    return np.array([[numbers.setdefault((name, type(v), v), len(numbers)) for name, v in config.items()] for config in configs])
