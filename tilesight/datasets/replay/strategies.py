"""Search strategies for replays: each chooses the config to measure next, from the results so far.

They consist of parts of the product: `Searcher`, `choose`, `corrected`. All knowledge before the first result
is in `ReplayProblem`; measured times reach a strategy through `tell` alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from ...errors import UnknownNameError
from ...problem.space import Config, Parameter, SearchSpace
from ...search import residual_gp as residuals
from ...search import select as selection
from ...search.optuna_search import Searcher
from . import neighbours
from .cases import ReplayPrediction

FIRST_PICKS = 8  # configs that the model chooses before a sampler
FEWEST_FOR_TREES, TREES = 4, 24
Correct = Callable[[Mapping[Config, float], Sequence[tuple[Config, float, float]]], dict[Config, float]]


@dataclass(frozen=True)
class ReplayProblem:
    """A space with the model's predictions; a config that the model refuses has none."""

    space: SearchSpace
    predictions: Mapping[Config, ReplayPrediction]
    seed: int = 0


class Strategy(Protocol):
    """A search strategy: ask for a config, tell its result, and so on."""

    def ask(self) -> Config | None:
        """A config of the space that was not asked before; None at the end."""
        ...

    def tell(self, config: Config, measured_us: float | None) -> None:
        """Record the time in us of the config that was asked last; None if it failed."""
        ...


class FixedOrder:
    """Configs in a fixed order."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self._left = deque(configs)

    def ask(self) -> Config | None:
        return self._left.popleft() if self._left else None

    def tell(self, config: Config, measured_us: float | None) -> None:
        pass


class ModelRounds:
    """The model's best configs, `size` at a time, with predictions corrected before each round."""

    def __init__(self, problem: ReplayProblem, correct: Correct, size: int) -> None:
        self._predictions = problem.predictions
        self._pending = {config: prediction.ranking_us for config, prediction in problem.predictions.items()}
        self._correct, self._size = correct, size
        self._pairs: list[tuple[Config, float, float]] = []
        self._picked: deque[Config] = deque()

    def ask(self) -> Config | None:
        if not self._picked:
            self._picked.extend(selection.choose(self._correct(self._pending, self._pairs), self._size))
        if not self._picked:
            return None
        config = self._picked.popleft()
        del self._pending[config]
        return config

    def tell(self, config: Config, measured_us: float | None) -> None:
        if measured_us is not None:
            self._pairs.append((config, self._predictions[config].predicted_us, measured_us))


class SamplerStrategy:
    """One of Optuna's samplers, without the model."""

    def __init__(self, problem: ReplayProblem, sampler: str) -> None:
        self._search = SparseSearcher(problem.space, sampler=sampler, seed=problem.seed)

    def ask(self) -> Config | None:
        return next(iter(self._search.ask(1)), None)

    def tell(self, config: Config, measured_us: float | None) -> None:
        self._search.tell(config, measured_us, measured=True)


class SeededSampler:
    """The model's first picks, then a sampler that has their results and all predictions."""

    def __init__(self, problem: ReplayProblem, sampler: str) -> None:
        self._problem, self._sampler = problem, sampler
        self._first = ModelRounds(problem, neighbours.corrected, FIRST_PICKS)
        self._left = FIRST_PICKS
        self._results: dict[Config, float | None] = {}
        self._search: SparseSearcher | None = None

    def ask(self) -> Config | None:
        if self._left > 0:
            self._left -= 1
            if (picked := self._first.ask()) is not None:
                return picked
        if self._search is None:
            self._search = self._make_search()
        return next(iter(self._search.ask(1)), None)

    def tell(self, config: Config, measured_us: float | None) -> None:
        self._results[config] = measured_us
        self._first.tell(config, measured_us)
        if self._search is not None:
            self._search.tell(config, self._scaled(measured_us), measured=True)

    def _make_search(self) -> SparseSearcher:
        search = SparseSearcher(self._problem.space, sampler=self._sampler, seed=self._problem.seed)
        for config, prediction in self._problem.predictions.items():
            if config not in self._results:
                search.hint(config, prediction.ranking_us)
        for config, measured_us in self._results.items():
            search.tell(config, self._scaled(measured_us), measured=True)
        return search

    def _scaled(self, measured_us: float | None) -> float | None:
        """A measured time on the scale of predictions, as in sessions (`Trials.value`)."""
        predictions = self._problem.predictions
        logs = [
            math.log(us / predictions[c].predicted_us)
            for c, us in self._results.items()
            if us is not None and c in predictions
        ]
        return (
            measured_us if measured_us is None or not logs else measured_us / math.exp(sum(logs) / len(logs))
        )


class SparseSearcher(Searcher):
    """A searcher of a partly recorded space: configs without a record are unknown, not illegal."""

    def hint(self, config: Config, value: float) -> None:
        """Tell the predicted time of a config, which may still be asked."""
        untried = self._untried.copy()
        self.tell(config, value)
        self._untried = untried

    def _close(self, trial: Any, score: float, broken: float) -> None:
        if self._config(trial.params) in self._row:
            super()._close(trial, score, broken)
            return
        from optuna.trial import TrialState

        self._study.tell(trial, state=TrialState.FAIL)


def by_trees(
    predicted_us: Mapping[Config, float], measured: Sequence[tuple[Config, float, float]]
) -> dict[Config, float]:
    """Predictions corrected by a regression with trees on the errors so far."""
    if len(measured) < FEWEST_FOR_TREES or not predicted_us:
        return dict(predicted_us)
    from sklearn.ensemble import ExtraTreesRegressor

    table = _table([*predicted_us, *(config for config, _, _ in measured)])
    trees = ExtraTreesRegressor(n_estimators=TREES, random_state=0)
    trees.fit(table[len(predicted_us) :], [math.log(actual / predicted) for _, predicted, actual in measured])
    moved = trees.predict(table[: len(predicted_us)])
    return {
        config: us * math.exp(error) for (config, us), error in zip(predicted_us.items(), moved, strict=True)
    }


def _table(configs: Sequence[Config]) -> list[list[float]]:
    """Parameters as numbers: names are numbered, flags are 0 or 1."""
    names: dict[object, int] = {}
    return [
        [
            float(v) if isinstance(v, int) else float(names.setdefault((name, v), len(names)))
            for name, v in config.items()
        ]
        for config in configs
    ]


@dataclass(frozen=True, slots=True)
class StrategyEntry:
    """A strategy of `STRATEGIES`.

    Attributes:
        meaning: description for people.
        make: makes the strategy.
        guided: it uses predictions.
        differs: it depends on the seed.
        sampler: Optuna's sampler that it uses; "" for none.
    """

    meaning: str
    make: Callable[[ReplayProblem], Strategy]
    guided: bool = True
    differs: bool = False
    sampler: str = ""

    def check(self) -> None:
        """Raise `ToolchainError` if a package is missing."""
        if self.sampler:
            Searcher(SearchSpace([Parameter("any", (0, 1))]), sampler=self.sampler)


def _sampled(sampler: str, meaning: str) -> StrategyEntry:
    return StrategyEntry(
        meaning,
        lambda problem: SamplerStrategy(problem, sampler),
        guided=False,
        differs=True,
        sampler=sampler,
    )


def _seeded(sampler: str, meaning: str) -> StrategyEntry:
    description = f"the model's first {FIRST_PICKS}, then {meaning} with all predictions"
    return StrategyEntry(
        description, lambda problem: SeededSampler(problem, sampler), differs=True, sampler=sampler
    )


def _corrected(correct: Correct, meaning: str, size: int = 1) -> StrategyEntry:
    return StrategyEntry(meaning, lambda problem: ModelRounds(problem, correct, size))


def _by_model(problem: ReplayProblem) -> Strategy:
    return FixedOrder(
        sorted(problem.predictions, key=lambda config: (problem.predictions[config].ranking_us, config.key))
    )


STRATEGIES: Mapping[str, StrategyEntry] = {
    "random": _sampled("random", "any config"),
    "exhaustive": StrategyEntry(
        "the space's order", lambda problem: FixedOrder(problem.space.configs()), guided=False
    ),
    "tpe": _sampled("tpe", "Optuna's TPE"),
    "gp": _sampled("gp", "Optuna's Gaussian process"),
    "cmaes": _sampled("cmaes", "Optuna's CMA-ES"),
    "nsgaii": _sampled("nsgaii", "Optuna's NSGA-II"),
    "model": StrategyEntry("the model's order", _by_model),
    "rounds": _corrected(
        neighbours.corrected,
        "the model's best 16 at a time, corrected by measured neighbours between rounds",
        16,
    ),
    "neighbours": _corrected(
        neighbours.corrected, "the model's best, corrected by measured neighbours after each"
    ),
    "residuals": _corrected(
        residuals.corrected, "the model's best, corrected by a Gaussian process on its errors after each"
    ),
    "trees": _corrected(by_trees, "the model's best, corrected by trees on its errors after each"),
    "model+tpe": _seeded("tpe", "Optuna's TPE"),
    "model+gp": _seeded("gp", "Optuna's Gaussian process"),
}


def make(name: str, problem: ReplayProblem) -> Strategy:
    """The strategy of that name. Raises `UnknownNameError`."""
    if name not in STRATEGIES:
        raise UnknownNameError("strategy", name, STRATEGIES)
    return STRATEGIES[name].make(problem)
