"""The short list: of all configs that were predicted, those that may become kernels of the table. Each is built once.

The model is wrong by some percent, for configs that are alike in the same way. So times are drawn many times over with errors
like that, and configs are listed one by one, each the one that lowers most what it costs (`cover.py`), on the mean of the draws,
to take the best listed one at each size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..residuals import Points, one_thread
from ..space import Config
from .correction import ALIKE, ALIKE_BY_SIZE, OWN, OWN_BY_SIZE, near, places
from .cover import Times, costs, greedily
from .subject import Subject
from .survey import Survey

DRAWS = 24
MOST_LOOKED_AT = 400  # configs among which is drawn: the work grows with their cube


def shortlist(subject: Subject, survey: Survey, sizes: Sequence[int], weights: NDArray[np.float64], count: int, seed: int) -> list[Config]:
    """Up to `count` configs, the default ones of the sizes first, then those that matter most. `sizes` may come in any order, and
    twice."""
    defaults = list(dict.fromkeys(config for size in sizes if (config := subject.default(size)) is not None))
    configs = near_best(survey, sizes, defaults)
    if not configs:
        return []
    times = np.array([_times(subject, survey, config, sizes) for config in configs])
    drawn = np.hstack([times * np.exp(noise) for noise in _draws(configs, sizes, seed)])
    first = [row for row, config in enumerate(configs) if config in defaults]
    listed = greedily(costs(drawn, np.tile(weights, 1 + DRAWS)), max(count, len(first)), first)
    return [configs[row] for row in listed]


def near_best(survey: Survey, sizes: Sequence[int], defaults: Sequence[Config]) -> list[Config]:
    """Configs by how near they come to the best anywhere, without those whose code is another one's, or of which nothing is
    predicted."""
    ratios: dict[Config, float] = {}
    for size in sizes:
        times = survey.times(survey.configs, size)
        best = min(times.values(), default=math.nan)
        for config, us in times.items():
            ratios[config] = 0.0 if config in defaults else min(ratios.get(config, math.inf), us / best)
    seen: set[str] = set()
    found = []
    for config in sorted(ratios, key=lambda c: (ratios[c], c.key)):
        codes = {outlook.lowered.fingerprint for size in sizes if (outlook := survey.outlook(config, size)) is not None}
        if not codes & seen or config in defaults:
            seen |= codes
            found.append(config)
    return found[:MOST_LOOKED_AT]


def _times(subject: Subject, survey: Survey, config: Config, sizes: Sequence[int]) -> Times:
    row = survey.row(config, sizes)
    works = np.array([subject.works(size, config) for size in sizes])
    found: Times = np.where(np.isnan(row) | ~works, np.inf, row)
    return found


def _draws(configs: Sequence[Config], sizes: Sequence[int], seed: int) -> list[Times]:
    """Errors of the model in log time, as `correction.py` takes them to be: none first."""
    generator = np.random.default_rng(seed)
    at = places(sizes, sizes)
    alike = Points(configs).likeness(slice(None), slice(None))
    shape = len(configs), len(sizes)
    found: list[Times] = [np.zeros(shape)]
    with one_thread():
        by_config = np.linalg.cholesky(alike + 1e-6 * np.eye(len(configs)))
        by_size = np.linalg.cholesky(near(at, at) + 1e-6 * np.eye(len(sizes)))
        for _ in range(DRAWS):
            noise = ALIKE * by_config @ generator.standard_normal((len(configs), 1)) + OWN * generator.standard_normal((len(configs), 1))
            noise = noise + ALIKE_BY_SIZE * by_config @ generator.standard_normal(shape) @ by_size.T
            found.append(noise + OWN_BY_SIZE * generator.standard_normal(shape) @ by_size.T)
    return found
