"""A search without Optuna and without trees, for tests of what surrounds a search: a session takes half the
time.
"""

from __future__ import annotations

import random
from collections.abc import Sequence

import numpy as np

from tilesight.problem.space import Config, SearchSpace
from tilesight.search.optuna_search import MIN_RESULTS


class AdditiveSearch:
    """Asks configs at random; expects of a config the mean times of its values."""

    def __init__(
        self,
        space: SearchSpace,
        *,
        sampler: str = "tpe",
        seed: int = 0,
        first: Config | None = None,
        configs: Sequence[Config] | None = None,
    ) -> None:
        self._legal = list(space.configs() if configs is None else configs)
        self._points = np.array(
            [[p.values.index(p.of(config)) for p in space.parameters] for config in self._legal]  # type: ignore[arg-type]
        )
        self._untried = dict.fromkeys(self._legal)
        self._row = {config: row for row, config in enumerate(self._legal)}
        self._scores: dict[int, float] = {}
        self._first = first
        self._random = random.Random(seed)

    @property
    def remaining(self) -> int:
        return len(self._untried)

    def ask(self, count: int) -> list[Config]:
        drawn = [self._first] if self._first in self._untried else []
        others = [config for config in self._untried if config not in drawn]
        drawn += self._random.sample(others, min(len(others), count - len(drawn)))
        return self.take(drawn)

    def take(self, configs: Sequence[Config]) -> list[Config]:
        found = [config for config in configs if config in self._untried]
        for config in found:
            del self._untried[config]
        return found

    def promising(self, count: int) -> list[Config]:
        if count < 1 or len(self._scores) < MIN_RESULTS or not self._untried:
            return []
        rows, scores = list(self._scores), np.log(list(self._scores.values()))
        expected = np.zeros(len(self._legal))
        for column in self._points.T:
            for value in set(column):
                known = scores[column[rows] == value]
                expected[column == value] += known.mean() if len(known) else scores.mean()
        return self.take(sorted(self._untried, key=lambda config: float(expected[self._row[config]]))[:count])

    def tell(self, config: Config, value: float | None, *, measured: bool = False) -> None:
        self._untried.pop(config, None)
        worst = max(self._scores.values(), default=1.0)
        self._scores[self._row[config]] = worst if value is None else value
