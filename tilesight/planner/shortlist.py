"""The short list: the predicted configs that may become kernels of the table. Each is built once.

The model is wrong by some percent, in the same way for similar configs. So times are drawn many times with
errors of that kind, and configs are listed one by one: each is the one that lowers most the mean cost
(`cover.py`) of the best listed config at each size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..problem.space import Config
from ..search.config_similarity import ConfigSimilarity
from ..search.gaussian_process import single_thread
from .cover import Times, costs, greedily
from .plan_problem import PlanProblem
from .size_correction import ALIKE, ALIKE_BY_SIZE, OWN, OWN_BY_SIZE, closeness, coordinates
from .size_predictions import SizePredictions

DRAWS = 24
MOST_CONFIGS = 400  # whose errors are drawn: the work grows with their cube


def shortlist(
    problem: PlanProblem,
    predictions: SizePredictions,
    sizes: Sequence[int],
    weights: NDArray[np.float64],
    count: int,
    seed: int,
    wanted: Sequence[Config] = (),
) -> list[Config]:
    """The configs to build: the default ones of the sizes and wanted ones first, then the most useful ones.

    Args:
        problem: of the plan.
        predictions: of configs at sizes.
        sizes: in any order; a size may come twice.
        weights: of the sizes.
        count: of configs, at most.
        seed: of the drawn errors.
        wanted: configs that are listed in any case, if they are predicted.
    """
    defaults = [config for size in sizes if (config := problem.default(size)) is not None]
    kept = list(dict.fromkeys([*defaults, *wanted]))
    configs = near_best(predictions, sizes, kept)
    if not configs:
        return []
    times = np.array([_times(problem, predictions, config, sizes) for config in configs])
    drawn = np.hstack([times * np.exp(noise) for noise in _draws(configs, sizes, seed)])
    first = [row for row, config in enumerate(configs) if config in kept]
    listed = greedily(costs(drawn, np.tile(weights, 1 + DRAWS)), max(count, len(first)), first)
    return [configs[row] for row in listed]


def near_best(predictions: SizePredictions, sizes: Sequence[int], kept: Sequence[Config]) -> list[Config]:
    """Predicted configs by their least ratio to a size's best time, one of each device code, and `kept`."""
    ratios: dict[Config, float] = {}
    for size in sizes:
        times = predictions.times(predictions.configs, size)
        best = min(times.values(), default=math.nan)
        for config, us in times.items():
            ratios[config] = 0.0 if config in kept else min(ratios.get(config, math.inf), us / best)
    seen: set[str] = set()
    found = []
    for config in sorted(ratios, key=lambda c: (ratios[c], c.key)):
        codes = {
            prediction_at.lowered.fingerprint
            for size in sizes
            if (prediction_at := predictions.prediction_at(config, size)) is not None
        }
        if not codes & seen or config in kept:
            seen |= codes
            found.append(config)
    return found[:MOST_CONFIGS]


def _times(problem: PlanProblem, predictions: SizePredictions, config: Config, sizes: Sequence[int]) -> Times:
    row = predictions.row(config, sizes)
    works = np.array([problem.works(size, config) for size in sizes])
    found: Times = np.where(np.isnan(row) | ~works, np.inf, row)
    return found


def _draws(configs: Sequence[Config], sizes: Sequence[int], seed: int) -> list[Times]:
    """Errors of the model in log time, as `correction.py` takes them to be: none first."""
    generator = np.random.default_rng(seed)
    at = coordinates(sizes, sizes)
    profile_size = ConfigSimilarity(configs).matrix()
    shape = len(configs), len(sizes)
    found: list[Times] = [np.zeros(shape)]
    with single_thread():
        by_config = np.linalg.cholesky(profile_size + 1e-6 * np.eye(len(configs)))
        by_size = np.linalg.cholesky(closeness(at, at) + 1e-6 * np.eye(len(sizes)))
        for _ in range(DRAWS):
            noise = ALIKE * by_config @ generator.standard_normal(
                (len(configs), 1)
            ) + OWN * generator.standard_normal((len(configs), 1))
            noise = noise + ALIKE_BY_SIZE * by_config @ generator.standard_normal(shape) @ by_size.T
            found.append(noise + OWN_BY_SIZE * generator.standard_normal(shape) @ by_size.T)
    return found
