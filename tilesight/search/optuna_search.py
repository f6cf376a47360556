"""Search: which configs to try next, from the results so far, by Optuna's samplers.

`Searcher` is Optuna's ask and tell on a finite space. Optuna's samplers do not handle joint constraints and
repeat configs. So `Searcher` checks both: it never asks a config twice, nor an illegal one, and it ends when
the space is exhausted.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import numpy as np

from ..errors import UnknownNameError
from ..extras import missing_extra
from ..problem.space import Config, Parameter, SearchSpace, Value

MIN_RESULTS = 24  # results that a regression on the parameters needs
# proposals of the sampler before the nearest untried legal config is taken
_MAX_PROPOSALS = 2


class Search(Protocol):
    """A search over a finite space; `tests/contract/test_search.py` tests every implementation."""

    @property
    def remaining(self) -> int:
        """Number of legal configs that were neither asked nor told."""
        ...

    def ask(self, count: int) -> list[Config]:
        """Up to `count` legal configs that were not handed out before; fewer if the space is exhausted."""
        ...

    def take(self, configs: Sequence[Config]) -> list[Config]:
        """Hand out those of `configs` that are legal and were neither asked nor told."""
        ...

    def promising(self, count: int) -> list[Config]:
        """Up to `count` untried configs that a regression on the results expects to be fastest.

        None before there are enough results.
        """
        ...

    def tell(self, config: Config, value: float | None, *, measured: bool = False) -> None:
        """Record the result of a legal config, asked or not.

        Args:
            config: the config.
            value: its time, smaller is better; None if it failed.
            measured: whether the time was measured. A measured time may follow a predicted one and adds to
                it.

        Raises:
            ValueError: `config` is not legal, or `value` is not positive and finite.
        """
        ...


class Searcher:
    """A search by one of Optuna's samplers (`SAMPLERS`). The same seed and results give the same configs.

    It stores nothing on disk; results of earlier runs must be told first.
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
        """Begin a search.

        Args:
            space: the search space.
            sampler: a name of `SAMPLERS`.
            seed: of the sampler.
            first: is asked first, if it is legal.
            configs: legal configs that may be asked and told; None for all.

        Raises:
            UnknownNameError: no sampler has that name.
            ToolchainError: the sampler needs a package that is not installed.
        """
        self._space = space
        self._tuned = [p for p in space.parameters if len(p.values) > 1]
        self._legal = space.configs() if configs is None else tuple(configs)
        self._row = {config: row for row, config in enumerate(self._legal)}
        self._untried = np.ones(len(self._legal), dtype=bool)
        self._axes = [_Axis(parameter) for parameter in self._tuned]
        self._points = np.array([[axis.coordinate(config) for axis in self._axes] for config in self._legal])
        self._sampler = sampler
        self._takes_constraints = sampler != "cmaes"  # CMA-ES warns of constraints
        self._seed = seed
        self._random = random.Random(seed)
        self._first = first if first in self._row else None
        self._running: dict[Config, Any] = {}
        self._scores: dict[int, float] = {}  # logarithms of the results, by row
        self._worst = 0.0
        self._study = _study(sampler, seed)
        self._distributions = {axis.name: axis.distribution() for axis in self._axes}

    @property
    def remaining(self) -> int:
        return int(self._untried.sum())

    def ask(self, count: int) -> list[Config]:
        with _one_thread(self._sampler):
            return self._ask(count)

    def _ask(self, count: int) -> list[Config]:
        configs: list[Config] = []
        while len(configs) < count and self.remaining:
            if count - len(configs) >= self.remaining and self._first is None:
                # all configs are wanted: no sampler is needed
                rest = [self._legal[row] for row in np.flatnonzero(self._untried)]
                self._random.shuffle(rest)
                self._untried[:] = False
                return configs + rest
            config = self._next()
            self._untried[self._row[config]] = False
            configs.append(config)
        return configs

    def take(self, configs: Sequence[Config]) -> list[Config]:
        rows = [
            row for config in configs if (row := self._row.get(config)) is not None and self._untried[row]
        ]
        self._untried[rows] = False
        return [self._legal[row] for row in rows]

    def tell(self, config: Config, value: float | None, *, measured: bool = False) -> None:
        if config not in self._row:
            raise ValueError(f"'{config}' is not a legal config of this space")
        if value is not None and not (math.isfinite(value) and value > 0):
            raise ValueError(f"value {value} of '{config}' must be a positive, finite time")
        self._untried[self._row[config]] = False
        # samplers get logarithms, since errors of times are factors
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
                params={axis.name: axis.coordinate(config) for axis in self._axes},
                distributions=self._distributions,
                value=score,
                user_attrs={"measured": measured},
                constraints={"works": broken} if self._takes_constraints else None,
            )
        )

    def promising(self, count: int) -> list[Config]:
        """Configs by a regression with trees, which find good configs between those with results."""
        rows = np.flatnonzero(self._untried)
        if count < 1 or len(self._scores) < MIN_RESULTS or not len(rows) or not self._axes:
            return []
        from sklearn.ensemble import ExtraTreesRegressor

        observed = list(self._scores)
        trees = ExtraTreesRegressor(n_estimators=64, random_state=self._seed)
        trees.fit(self._points[observed], [self._scores[row] for row in observed])
        chosen = rows[np.argsort(trees.predict(self._points[rows]), kind="stable")[:count]]
        self._untried[chosen] = False
        return [self._legal[row] for row in chosen]

    def _next(self) -> Config:
        if self._first is not None:
            first, self._first = self._first, None
            if self._untried[self._row[first]]:
                return first
        if self.remaining == 1 or not self._axes:
            return self._legal[int(np.flatnonzero(self._untried)[0])]
        proposal: Config | None = None
        for _ in range(_MAX_PROPOSALS):
            trial = self._study.ask(self._distributions)
            proposal = self._config(trial.params)
            row = self._row.get(proposal)
            if row is not None and self._untried[row]:
                self._running[proposal] = trial
                return proposal
            # An illegal point is data for the sampler. A tried one is not told again, since that would
            # attract the sampler to it.
            if row is None:
                self._close(trial, self._worst, broken=1.0)
            else:
                self._study.tell(trial, state=_fail())
        return self._nearest_untried(proposal)

    def _nearest_untried(self, proposal: Config | None) -> Config:
        rows = np.flatnonzero(self._untried)
        if self._sampler == "random" or proposal is None:
            return self._legal[self._random.choice(rows.tolist())]
        wanted = np.array([axis.coordinate(proposal) for axis in self._axes])
        scale = np.array([axis.scale for axis in self._axes])
        # any difference of a name or flag counts as one whole step
        distance = np.minimum(np.abs(self._points[rows] - wanted) * scale, 1.0).sum(axis=1)
        return self._legal[int(rows[int(distance.argmin())])]

    def _config(self, params: Mapping[str, Any]) -> Config:
        values: dict[str, Value] = {p.name: p.values[0] for p in self._space.parameters}
        values |= {axis.name: axis.from_optuna(params[axis.name]) for axis in self._axes}
        return self._space.config(values)

    def _close(self, trial: Any, score: float, broken: float) -> None:
        if self._takes_constraints:
            trial.set_constraint("works", broken)
        self._study.tell(trial, score)


class _Axis:
    """A parameter for Optuna: positions in its list of values, ordered for integers alone."""

    def __init__(self, parameter: Parameter) -> None:
        self.name, self._parameter = parameter.name, parameter
        self._values = parameter.values
        self._ordered = all(isinstance(v, int) and not isinstance(v, bool) for v in parameter.values)
        self._index = {(type(v), v): i for i, v in enumerate(parameter.values)}
        self.scale = 1.0 / (len(parameter.values) - 1) if self._ordered else 1.0

    def distribution(self) -> Any:
        from optuna.distributions import CategoricalDistribution, IntDistribution

        last = len(self._values) - 1
        return IntDistribution(0, last) if self._ordered else CategoricalDistribution(tuple(range(last + 1)))

    def coordinate(self, config: Config) -> int:
        """Position of the value in `config`."""
        value = self._parameter.of(config)
        assert value is not None, f"'{config}' has no {self.name}"
        return self._index[type(value), value]

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
            raise missing_extra("samplers", f"sampler '{sampler}'") from error


@contextmanager
def _quiet(optuna: Any) -> Iterator[None]:
    """Switch off Optuna's report of each new study, and restore the program's setting."""
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        yield
    finally:
        optuna.logging.set_verbosity(before)


@contextmanager
def _one_thread(sampler: str) -> Iterator[None]:
    """Let torch use one thread: on the small matrices of Gaussian processes, several are ten times slower."""
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
    import cmaes  # noqa: F401 - Optuna imports it only at the second trial

    return samplers.CmaEsSampler(seed=seed, n_startup_trials=16, warn_independent_sampling=False)


SAMPLERS: Mapping[str, Callable[[Any, int], Any]] = {
    "random": lambda samplers, seed: samplers.RandomSampler(seed=seed),
    "tpe": lambda samplers, seed: samplers.TPESampler(seed=seed, n_startup_trials=24),
    "gp": lambda samplers, seed: samplers.GPSampler(
        seed=seed, n_startup_trials=16, warn_independent_sampling=False
    ),
    "cmaes": _cmaes,
    "nsgaii": lambda samplers, seed: samplers.NSGAIISampler(seed=seed, population_size=32),
}
