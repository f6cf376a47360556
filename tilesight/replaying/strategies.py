"""Search strategies behind one small contract: which config is measured next, given what came of those before.

They are made of the product's own parts: `Searcher`, `choose`, `corrected`. What a strategy knows before the first answer
stands in `Known`; times reach it through `tell` alone.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from .. import residuals, selection
from ..errors import UnknownNameError
from ..search import Searcher
from ..space import Config, Parameter, SearchSpace
from . import neighbours
from .cases import Guess

FIRST_PICKS = 8  # of the model, before a sampler goes on
FEWEST_FOR_TREES, TREES = 4, 24
Correct = Callable[[Mapping[Config, float], Sequence[tuple[Config, float, float]]], dict[Config, float]]


@dataclass(frozen=True)
class Known:
    """`guesses`: the model's; a config that it refuses has none."""

    space: SearchSpace
    guesses: Mapping[Config, Guess]
    seed: int = 0


class Strategy(Protocol):
    def ask(self) -> Config | None:
        """A config of the space that was not asked before; None where there is nothing more to try."""
        ...

    def tell(self, config: Config, measured_us: float | None) -> None:
        """The time of the config that was asked last, in microseconds; None where it did not build or was wrong."""
        ...


class Listed:
    """Configs in an order that nothing changes."""

    def __init__(self, configs: Sequence[Config]) -> None:
        self._left = deque(configs)

    def ask(self) -> Config | None:
        return self._left.popleft() if self._left else None

    def tell(self, config: Config, measured_us: float | None) -> None:
        pass


class Rounds:
    """The model's best, `size` at a time, without crowding; before each round its predictions are corrected by what came."""

    def __init__(self, known: Known, correct: Correct, size: int) -> None:
        self._guesses = known.guesses
        self._open = {config: guess.ranking_us for config, guess in known.guesses.items()}
        self._correct, self._size = correct, size
        self._pairs: list[tuple[Config, float, float]] = []
        self._picked: deque[Config] = deque()

    def ask(self) -> Config | None:
        if not self._picked:
            self._picked.extend(selection.choose(self._correct(self._open, self._pairs), self._size))
        if not self._picked:
            return None
        config = self._picked.popleft()
        del self._open[config]
        return config

    def tell(self, config: Config, measured_us: float | None) -> None:
        if measured_us is not None:
            self._pairs.append((config, self._guesses[config].predicted_us, measured_us))


class Sampled:
    """One of Optuna's samplers, which knows nothing of the model."""

    def __init__(self, known: Known, sampler: str) -> None:
        self._search = SparseSearcher(known.space, sampler=sampler, seed=known.seed)

    def ask(self) -> Config | None:
        return next(iter(self._search.ask(1)), None)

    def tell(self, config: Config, measured_us: float | None) -> None:
        self._search.tell(config, measured_us, measured=True)


class Seeded:
    """The model's first picks, then a sampler that was told of them and of all predictions."""

    def __init__(self, known: Known, sampler: str) -> None:
        self._known, self._sampler = known, sampler
        self._first = Rounds(known, neighbours.corrected, FIRST_PICKS)
        self._left = FIRST_PICKS
        self._answers: dict[Config, float | None] = {}
        self._search: SparseSearcher | None = None

    def ask(self) -> Config | None:
        if self._left > 0:
            self._left -= 1
            if (picked := self._first.ask()) is not None:
                return picked
        if self._search is None:
            self._search = self._begun()
        return next(iter(self._search.ask(1)), None)

    def tell(self, config: Config, measured_us: float | None) -> None:
        self._answers[config] = measured_us
        self._first.tell(config, measured_us)
        if self._search is not None:
            self._search.tell(config, self._scaled(measured_us), measured=True)

    def _begun(self) -> SparseSearcher:
        search = SparseSearcher(self._known.space, sampler=self._sampler, seed=self._known.seed)
        for config, guess in self._known.guesses.items():
            if config not in self._answers:
                search.hint(config, guess.ranking_us)
        for config, measured_us in self._answers.items():
            search.tell(config, self._scaled(measured_us), measured=True)
        return search

    def _scaled(self, measured_us: float | None) -> float | None:
        """On the scale of predictions, as sessions tell it (`Trials.value`)."""
        guesses = self._known.guesses
        logs = [math.log(us / guesses[c].predicted_us) for c, us in self._answers.items() if us is not None and c in guesses]
        return measured_us if measured_us is None or not logs else measured_us / math.exp(sum(logs) / len(logs))


class SparseSearcher(Searcher):
    """A searcher of a space of which only some points are recorded: what is not recorded is unknown, and not illegal."""

    def hint(self, config: Config, value: float) -> None:
        """Tell a predicted time of a config that may still be asked."""
        unseen = self._unseen.copy()
        self.tell(config, value)
        self._unseen = unseen

    def _close(self, trial: Any, score: float, broken: float) -> None:
        if self._config(trial.params) in self._row:
            super()._close(trial, score, broken)
            return
        from optuna.trial import TrialState

        self._study.tell(trial, state=TrialState.FAIL)


def by_trees(predicted_us: Mapping[Config, float], measured: Sequence[tuple[Config, float, float]]) -> dict[Config, float]:
    """Predictions corrected by trees on the parameters, which learn the errors so far."""
    if len(measured) < FEWEST_FOR_TREES or not predicted_us:
        return dict(predicted_us)
    from sklearn.ensemble import ExtraTreesRegressor

    table = _table([*predicted_us, *(config for config, _, _ in measured)])
    trees = ExtraTreesRegressor(n_estimators=TREES, random_state=0)
    trees.fit(table[len(predicted_us) :], [math.log(actual / predicted) for _, predicted, actual in measured])
    moved = trees.predict(table[: len(predicted_us)])
    return {config: us * math.exp(error) for (config, us), error in zip(predicted_us.items(), moved, strict=True)}


def _table(configs: Sequence[Config]) -> list[list[float]]:
    """Numbers and flags as they are, names by number."""
    names: dict[object, int] = {}
    return [
        [float(v) if isinstance(v, int) else float(names.setdefault((name, v), len(names))) for name, v in config.items()]
        for config in configs
    ]


@dataclass(frozen=True, slots=True)
class Entry:
    """`guided`: by predictions. `differs`: from seed to seed. `sampler`: of Optuna, where there is one."""

    meaning: str
    make: Callable[[Known], Strategy]
    guided: bool = True
    differs: bool = False
    sampler: str = ""

    def check(self) -> None:
        """Raise `ToolchainError` where a package is missing."""
        if self.sampler:
            Searcher(SearchSpace([Parameter("any", (0, 1))]), sampler=self.sampler)


def _sampled(sampler: str, meaning: str) -> Entry:
    return Entry(meaning, lambda known: Sampled(known, sampler), guided=False, differs=True, sampler=sampler)


def _seeded(sampler: str, meaning: str) -> Entry:
    told = f"the model's first {FIRST_PICKS}, then {meaning}, told of all predictions"
    return Entry(told, lambda known: Seeded(known, sampler), differs=True, sampler=sampler)


def _corrected(correct: Correct, meaning: str, size: int = 1) -> Entry:
    return Entry(meaning, lambda known: Rounds(known, correct, size))


def _by_model(known: Known) -> Strategy:
    return Listed(sorted(known.guesses, key=lambda config: (known.guesses[config].ranking_us, config.key)))


STRATEGIES: Mapping[str, Entry] = {
    "random": _sampled("random", "any config"),
    "exhaustive": Entry("the space's order", lambda known: Listed(known.space.configs()), guided=False),
    "tpe": _sampled("tpe", "Optuna's TPE"),
    "gp": _sampled("gp", "Optuna's Gaussian process"),
    "cmaes": _sampled("cmaes", "Optuna's CMA-ES"),
    "nsgaii": _sampled("nsgaii", "Optuna's NSGA-II"),
    "model": Entry("the model's order", _by_model),
    "rounds": _corrected(neighbours.corrected, "the model's best 16 at a time, corrected by measured neighbours between rounds", 16),
    "neighbours": _corrected(neighbours.corrected, "the model's best, corrected by measured neighbours after each"),
    "residuals": _corrected(residuals.corrected, "the model's best, corrected by a Gaussian process on its errors after each"),
    "trees": _corrected(by_trees, "the model's best, corrected by trees on its errors after each"),
    "model+tpe": _seeded("tpe", "Optuna's TPE"),
    "model+gp": _seeded("gp", "Optuna's Gaussian process"),
}


def make(name: str, known: Known) -> Strategy:
    """Raises `UnknownNameError`."""
    if name not in STRATEGIES:
        raise UnknownNameError("strategy", name, STRATEGIES)
    return STRATEGIES[name].make(known)
