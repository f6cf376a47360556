"""Beyond the contract: that the default sampler learns, and what it leaves alone."""

from __future__ import annotations

import optuna

from tests.contract.test_search import SPACE, run, time_us
from tilesight.problem.space import Config, Parameter, SearchSpace
from tilesight.search.optuna_search import Searcher

WIDE = SearchSpace([Parameter(name, tuple(2**i for i in range(8))) for name in ("a", "b", "c", "d")])


def cost(config: Config) -> float:
    return 1.0 + sum(abs(config.int(name).bit_length() - 6) for name in "abcd")


def explored(sampler: str, seed: int) -> list[float]:
    searcher = Searcher(WIDE, sampler=sampler, seed=seed)
    costs: list[float] = []
    for _ in range(10):
        for config in searcher.ask(20):
            costs.append(cost(config))
            searcher.tell(config, costs[-1])
    return costs


def test_the_default_sampler_learns_from_results() -> None:
    random_late = sum(sum(explored("random", seed)[100:]) for seed in range(3))
    learned_late = sum(sum(explored("tpe", seed)[100:]) for seed in range(3))
    assert learned_late < 0.75 * random_late


def test_begins_near_the_best_of_earlier_results() -> None:
    searcher = Searcher(WIDE, seed=0)
    for config in WIDE.sample(200, seed=1):
        searcher.tell(config, cost(config))
    costs = [cost(config) for config in searcher.ask(10)]
    assert sum(costs) / 10 < 0.75 * sum(map(cost, WIDE.configs())) / len(WIDE.configs())


def test_measured_values_are_marked() -> None:
    searcher = Searcher(SPACE, seed=0)
    config = searcher.ask(1)[0]
    searcher.tell(config, time_us(config))
    searcher.tell(config, 2 * time_us(config), measured=True)
    assert [trial.user_attrs.get("measured") for trial in searcher._study.trials] == [None, True]


def test_optuna_keeps_the_users_verbosity() -> None:
    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.DEBUG)
    try:
        Searcher(SPACE)
        assert optuna.logging.get_verbosity() == optuna.logging.DEBUG
    finally:
        optuna.logging.set_verbosity(before)


def test_prints_nothing(capfd) -> None:  # type: ignore[no-untyped-def]
    run(Searcher(SPACE, seed=0), 20)
    assert capfd.readouterr() == ("", "")
