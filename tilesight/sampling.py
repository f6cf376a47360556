"""Stratified samples of a search space: every value of every parameter, and every pair of values, as evenly as can be."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import numpy as np

from .space import Config, SearchSpace


def stratified(space: SearchSpace, count: int, seed: int = 0, first: Config | None = None) -> list[Config]:
    """`count` distinct legal configs, all of them where there are no more; the same for the same seed.

    One by one that config is taken whose values, and pairs of values, were taken least so far. So a smaller sample of the
    same seed is the beginning of a larger one. `first` begins it where it is legal.
    """
    configs = space.configs()
    if not configs:
        return []
    values, pairs = _strata(space, configs)
    # a value stands in as many pairs as there are other parameters
    weight = max(1, len(space.parameters) - 1)
    taken_values, taken_pairs = np.zeros(values.max() + 1), np.zeros(pairs.max(initial=0) + 1)
    ties = np.random.default_rng(seed).permutation(len(configs)) * (1e-6 / len(configs))
    open_ = np.ones(len(configs), dtype=bool)
    chosen: list[Config] = []
    while len(chosen) < min(count, len(configs)):
        if not chosen and first is not None and first in configs:
            best = configs.index(first)
        else:
            # each further time that a stratum is taken counts less: 1, 1/2, 1/3, ...
            gain = weight * (1 / (1 + taken_values))[values].sum(axis=1) + (1 / (1 + taken_pairs))[pairs].sum(axis=1)
            best = int(np.where(open_, gain + ties, -np.inf).argmax())
        open_[best] = False
        taken_values[values[best]] += 1
        taken_pairs[pairs[best]] += 1
        chosen.append(configs[best])
    return chosen


def _strata(space: SearchSpace, configs: tuple[Config, ...]) -> tuple[Any, Any]:
    """Two tables of a row a config: numbers of the values it has, and of the pairs of them."""
    codes = []
    for parameter in space.parameters:
        # by type too: True equals 1 in Python
        numbers = {(type(value), value): number for number, value in enumerate(parameter.values)}
        codes.append(np.array([numbers[type(config[parameter.name]), config[parameter.name]] for config in configs]))
    sizes = [len(parameter.values) for parameter in space.parameters]
    starts = np.cumsum([0, *sizes])
    values = np.stack([code + start for code, start in zip(codes, starts, strict=False)], axis=1)
    columns, start = [], 0
    for a, b in combinations(range(len(sizes)), 2):
        columns.append(start + codes[a] * sizes[b] + codes[b])
        start += sizes[a] * sizes[b]
    pairs = np.stack(columns, axis=1) if columns else np.zeros((len(configs), 0), dtype=int)
    return values, pairs
