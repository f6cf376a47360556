"""Search: which configs to look at next, given how good those seen so far are.

`Searcher` is Optuna behind ask and tell, on a finite space. Optuna's samplers know nothing of joint constraints
and repeat themselves, so legality and novelty are kept here: no config is asked twice, none that is illegal, and
an exhausted space ends the search.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from .errors import ToolchainError, UnknownNameError
from .space import Config, Parameter, SearchSpace, Value

ENOUGH_TOLD = 24  # answers from which a regression on the parameters begins to say something
# proposals of the sampler that may be illegal or known before the nearest unseen legal config is taken instead
_MISSES = 2


class Search(Protocol):
    """Contract of a search over a finite space: `tests/contract/test_search.py` holds every implementation to it."""

    @property
    def remaining(self) -> int:
        """Legal configs that were neither asked nor told."""
        ...

    def ask(self, count: int) -> list[Config]:
        """Up to `count` legal configs never handed out before; fewer, or none, when the space is exhausted."""
        ...

    def take(self, configs: Sequence[Config]) -> list[Config]:
        """Hand out `configs`, those that can be: legal ones that were neither asked nor told."""
        ...

    def promising(self, count: int) -> list[Config]:
        """Up to `count` configs never handed out before that a regression on what was told takes for the fastest; none
        before enough was told."""
        ...

    def tell(self, config: Config, value: float | None, *, measured: bool = False) -> None:
        """`value` (a time, smaller is better) of a config, asked or not; None where the candidate failed.

        A measured value may follow a predicted one for the same config and adds to it.
        """
        ...


class Searcher:
    """Optuna's samplers (`SAMPLERS`) on a `SearchSpace`. In memory: what earlier runs learned is told first.

    The same seed and the same answers give the same questions.
    """

    def __init__(
        self,
        space: SearchSpace,
        *,
        sampler: str = "tpe",
        seed: int = 0,
        first: Config | None = None,
        configs: Sequence[Config] | None = None,
    ) -> None:
        """`configs`: those of the legal ones that may be asked and told, where not all; `first` is asked first."""
        self._space = space
        self._open = [p for p in space.parameters if len(p.values) > 1]
        self._legal = space.configs() if configs is None else tuple(configs)
        self._row = {config: row for row, config in enumerate(self._legal)}
        self._unseen = np.ones(len(self._legal), dtype=bool)
        self._axes = [_Axis(parameter) for parameter in self._open]
        self._points = np.array([[axis.coordinate(config[axis.name]) for axis in self._axes] for config in self._legal])
        self._sampler = sampler
        self._takes_constraints = sampler != "cmaes"  # it knows none and warns
        self._seed = seed
        self._random = random.Random(seed)
        self._first = first if first in self._row else None
        self._running: dict[Config, Any] = {}
        self._scores: dict[int, float] = {}  # what was told, by row
        self._worst = 0.0
        self._study = _study(sampler, seed)
        self._distributions = {axis.name: axis.distribution() for axis in self._axes}

    @property
    def remaining(self) -> int:
        return int(self._unseen.sum())

    def ask(self, count: int) -> list[Config]:
        with _one_thread(self._sampler):
            return self._ask(count)

    def _ask(self, count: int) -> list[Config]:
        asked: list[Config] = []
        while len(asked) < count and self.remaining:
            if count - len(asked) >= self.remaining and self._first is None:
                # all of them are wanted: no sampler need be asked
                rest = [self._legal[row] for row in np.flatnonzero(self._unseen)]
                self._random.shuffle(rest)
                self._unseen[:] = False
                return asked + rest
            config = self._next()
            self._unseen[self._row[config]] = False
            asked.append(config)
        return asked

    def take(self, configs: Sequence[Config]) -> list[Config]:
        rows = [row for config in configs if (row := self._row.get(config)) is not None and self._unseen[row]]
        self._unseen[rows] = False
        return [self._legal[row] for row in rows]

    def tell(self, config: Config, value: float | None, *, measured: bool = False) -> None:
        if config not in self._row:
            raise ValueError(f"'{config}' is not a legal config of this space")
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"value {value} of '{config}' must be a positive, finite time")
        self._unseen[self._row[config]] = False
        # samplers see logarithms: a time is wrong by factors
        score = self._worst if value is None else math.log(value)
        self._worst = max(self._worst, score)
        self._scores[self._row[config]] = score
        broken = 1.0 if value is None else 0.0
        trial = self._running.pop(config, None)
        if trial is not None:
            self._close(trial, score, broken)
            return
        from optuna.trial import create_trial

        self._study.add_trial(
            create_trial(
                params={axis.name: axis.to_optuna(config[axis.name]) for axis in self._axes},
                distributions=self._distributions,
                value=score,
                user_attrs={"measured": measured},
                constraints={"works": broken} if self._takes_constraints else None,
            )
        )

    def promising(self, count: int) -> list[Config]:
        """Samplers keep exploring; trees on the parameters find what lies between the good ones already seen."""
        rows = np.flatnonzero(self._unseen)
        if count < 1 or len(self._scores) < ENOUGH_TOLD or not len(rows) or not self._axes:
            return []
        from sklearn.ensemble import ExtraTreesRegressor

        told = list(self._scores)
        trees = ExtraTreesRegressor(n_estimators=64, random_state=self._seed)
        trees.fit(self._points[told], [self._scores[row] for row in told])
        chosen = rows[np.argsort(trees.predict(self._points[rows]), kind="stable")[:count]]
        self._unseen[chosen] = False
        return [self._legal[row] for row in chosen]

    def _next(self) -> Config:
        if self._first is not None:
            first, self._first = self._first, None
            if self._unseen[self._row[first]]:
                return first
        if self.remaining == 1 or not self._axes:
            return self._legal[int(np.flatnonzero(self._unseen)[0])]
        proposal: Config | None = None
        for _ in range(_MISSES):
            trial = self._study.ask(self._distributions)
            proposal = self._config(trial.params)
            row = self._row.get(proposal)
            if row is not None and self._unseen[row]:
                self._running[proposal] = trial
                return proposal
            # an illegal point is data for the sampler; a known one, told again, would draw it there more and more
            if row is None:
                self._close(trial, self._worst, broken=1.0)
            else:
                self._study.tell(trial, state=_fail())
        return self._unseen_near(proposal)

    def _unseen_near(self, proposal: Config | None) -> Config:
        rows = np.flatnonzero(self._unseen)
        if self._sampler == "random" or proposal is None:
            return self._legal[self._random.choice(rows.tolist())]
        wanted = np.array([axis.coordinate(proposal[axis.name]) for axis in self._axes])
        scale = np.array([axis.scale for axis in self._axes])
        # a named choice is either the same or not: its scale makes any difference count as one whole step
        distance = np.minimum(np.abs(self._points[rows] - wanted) * scale, 1.0).sum(axis=1)
        return self._legal[int(rows[int(distance.argmin())])]

    def _config(self, params: Mapping[str, Any]) -> Config:
        values: dict[str, Value] = {p.name: p.values[0] for p in self._space.parameters}
        values |= {axis.name: axis.from_optuna(params[axis.name]) for axis in self._axes}
        return Config(values)

    def _close(self, trial: Any, score: float, broken: float) -> None:
        if self._takes_constraints:
            trial.set_constraint("works", broken)
        self._study.tell(trial, score)


class _Axis:
    """A parameter as Optuna sees it: whole numbers by their position in the list, named choices by their position too,
    but without an order."""

    def __init__(self, parameter: Parameter) -> None:
        self.name = parameter.name
        self._values = parameter.values
        self._ordered = all(isinstance(v, int) and not isinstance(v, bool) for v in parameter.values)
        self._index = {(type(v), v): i for i, v in enumerate(parameter.values)}
        self.scale = 1.0 / (len(parameter.values) - 1) if self._ordered else 1.0

    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        last = len(self._values) - 1
        return IntDistribution(0, last) if self._ordered else CategoricalDistribution(tuple(range(last + 1)))

    def coordinate(self, value: Value) -> int:
        return self._index[type(value), value]

    def to_optuna(self, value: Value) -> int:
        return self.coordinate(value)

    def from_optuna(self, position: int) -> Value:
        return self._values[position]


def _fail() -> Any:
    from optuna.trial import TrialState

    return TrialState.FAIL


def _study(sampler: str, seed: int) -> Any:
    if sampler not in SAMPLERS:
        raise UnknownNameError("sampler", sampler, SAMPLERS)
    import optuna

    with _quiet(optuna):
        try:
            return optuna.create_study(direction="minimize", sampler=SAMPLERS[sampler](optuna.samplers, seed))
        except ImportError as error:
            missing = error.name or str(error)
            raise ToolchainError(f"sampler '{sampler}' needs a package that is not installed: pip install {missing}") from error


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Optuna reports each new study; a program that uses us keeps its own setting."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def _one_thread(sampler: str) -> Iterator[None]:
    """Gaussian processes work on matrices so small that torch's threads only wait for each other: ten times slower."""
    if sampler != "gp":
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _cmaes(samplers: Any, seed: int) -> Any:
    import cmaes  # noqa: F401 - Optuna asks for it only at the second trial

    return samplers.CmaEsSampler(seed=seed, n_startup_trials=16, warn_independent_sampling=False)


SAMPLERS: Mapping[str, Callable[[Any, int], Any]] = {
    "random": lambda samplers, seed: samplers.RandomSampler(seed=seed),
    "tpe": lambda samplers, seed: samplers.TPESampler(seed=seed, n_startup_trials=24),
    "gp": lambda samplers, seed: samplers.GPSampler(seed=seed, n_startup_trials=16, warn_independent_sampling=False),
    "cmaes": _cmaes,
    "nsgaii": lambda samplers, seed: samplers.NSGAIISampler(seed=seed, population_size=32),
}
