"""Stratified samples of a search space: all values, and pairs of values, as evenly as possible."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from ..problem.space import Config, SearchSpace


def stratified(space: SearchSpace, count: int, seed: int = 0, first: Config | None = None) -> list[Config]:
    """`count` distinct legal configs that cover values, and pairs of values, evenly.

    Each step takes the config whose values and pairs were taken least often. So a smaller sample of one seed
    is the beginning of a larger one.

    Args:
        space: the search space.
        count: number of configs; all legal ones are returned if there are fewer.
        seed: decides between equally good configs.
        first: begins the sample, if it is legal.
    """
    configs = space.configs()
    if not configs:
        return []
    values, pairs = _strata(space, configs)
    # each value is part of one pair per other parameter
    weight = max(1, len(space.parameters) - 1)
    taken_values, taken_pairs = np.zeros(values.max() + 1), np.zeros(pairs.max(initial=0) + 1)
    ties = np.random.default_rng(seed).permutation(len(configs)) * (1e-6 / len(configs))
    available = np.ones(len(configs), dtype=bool)
    chosen: list[Config] = []
    while len(chosen) < min(count, len(configs)):
        if not chosen and first is not None and first in configs:
            best = configs.index(first)
        else:
            # the gain of a value or pair falls with the times that it was taken: 1, 1/2, 1/3, ...
            gain = weight * (1 / (1 + taken_values))[values].sum(axis=1) + (1 / (1 + taken_pairs))[pairs].sum(
                axis=1
            )
            best = int(np.where(available, gain + ties, -np.inf).argmax())
        available[best] = False
        taken_values[values[best]] += 1
        taken_pairs[pairs[best]] += 1
        chosen.append(configs[best])
    return chosen


def _strata(space: SearchSpace, configs: tuple[Config, ...]) -> tuple[Any, Any]:
    """Indices of the values of each config, and of its pairs of values: shape (configs, values or pairs)."""
    codes = []
    for parameter in space.parameters:
        # with the type, since True equals 1
        numbers = {(type(value), value): number for number, value in enumerate(parameter.values)}
        found = [parameter.of(config) for config in configs]
        codes.append(np.array([numbers[type(value), value] for value in found if value is not None]))
    sizes = [len(parameter.values) for parameter in space.parameters]
    starts = np.cumsum([0, *sizes])
    values = np.stack([code + start for code, start in zip(codes, starts, strict=False)], axis=1)
    columns, start = [], 0
    for a, b in combinations(range(len(sizes)), 2):
        columns.append(start + codes[a] * sizes[b] + codes[b])
        start += sizes[a] * sizes[b]
    pairs = np.stack(columns, axis=1) if columns else np.zeros((len(configs), 0), dtype=int)
    return values, pairs
