"""What every strategy must do, and what each is made of."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from tests.unit.datasets.replay.made import CONFIGS, case, guesses, time_us
from tilesight.datasets.replay import neighbours, strategies
from tilesight.datasets.replay.cases import RecordedSpace, ReplayPrediction
from tilesight.datasets.replay.replay_runner import replay_case
from tilesight.datasets.replay.strategies import (
    FIRST_PICKS,
    STRATEGIES,
    ModelRounds,
    ReplayProblem,
    SparseSearcher,
    make,
)
from tilesight.errors import UnknownNameError
from tilesight.problem.space import Config
from tilesight.search import select as selection
from tilesight.search.optuna_search import Searcher

# Optuna leaves CMA-ES to a package of its own; its Gaussian processes take seconds
TRIED = [name for name in STRATEGIES if name != "cmaes" or find_spec("cmaes")]
QUICK = [name for name in TRIED if name not in ("gp", "model+gp")]
BEST = min(CONFIGS, key=time_us)


def run(name: str, limit: int = 100, seed: int = 0, broken: bool = False) -> list[Config]:
    """What it asks for, in order."""
    strategy, asked = make(name, ReplayProblem(case().space, guesses(), seed)), list[Config]()
    while len(asked) < limit and (config := strategy.ask()) is not None:
        strategy.tell(config, None if broken else time_us(config))
        asked.append(config)
    return asked


@pytest.mark.parametrize("name", TRIED)
def test_asks_for_each_config_once(name: str) -> None:
    limit = 100 if name in QUICK else 17 if name == "gp" else 9
    asked = run(name, limit)
    assert len(asked) == len(set(asked)) == min(limit, len(CONFIGS))
    assert set(asked) <= set(CONFIGS)


@pytest.mark.parametrize("name", QUICK)
def test_strategies_depend_on_the_seed_only_if_they_declare_it(name: str) -> None:
    assert run(name) == run(name)
    if not STRATEGIES[name].differs:
        assert run(name, seed=1) == run(name)
    elif not STRATEGIES[name].guided:
        assert run(name, seed=1) != run(name)


@pytest.mark.parametrize("name", QUICK)
def test_survives_failures_of_all_configs(name: str) -> None:
    assert set(run(name, broken=True)) == set(CONFIGS)


@pytest.mark.parametrize("name", [name for name in QUICK if not STRATEGIES[name].guided])
def test_unguided_strategies_ignore_predictions(name: str) -> None:
    strategy = make(name, ReplayProblem(case().space, {}, 0))
    asked = []
    while (config := strategy.ask()) is not None:
        strategy.tell(config, time_us(config))
        asked.append(config)
    assert asked == run(name)


@pytest.mark.parametrize(
    "name", [name for name in QUICK if STRATEGIES[name].guided and not STRATEGIES[name].differs]
)
def test_guided_strategies_skip_configs_without_a_prediction(name: str) -> None:
    some = {config: guess for config, guess in guesses().items() if config["order"] == "a"}
    shares = replay_case(case(), make(name, ReplayProblem(case().space, some)), 100)
    assert len(shares) == len(CONFIGS) // 2


@pytest.mark.parametrize("name", QUICK)
def test_results_reach_a_strategy_by_tell_alone(name: str) -> None:
    """Two worlds that differ in what was not asked yet are asked the same."""

    def asked(strategy: strategies.Strategy, hidden: dict[Config, float], count: int) -> list[Config]:
        found = []
        while len(found) < count and (config := strategy.ask()) is not None:
            strategy.tell(config, hidden[config])
            found.append(config)
        return found

    times = {config: time_us(config) for config in CONFIGS}
    first = asked(make(name, ReplayProblem(case().space, guesses())), times, 12)
    other = {config: us if config in first[:-1] else 1000 - us for config, us in times.items()}
    assert asked(make(name, ReplayProblem(case().space, guesses())), other, 12) == first


def test_the_model_s_order_and_the_space_s() -> None:
    by_model = run("model")
    assert [guesses()[config].ranking_us for config in by_model] == sorted(
        g.ranking_us for g in guesses().values()
    )
    assert run("exhaustive") == list(case().space.configs())


def test_order_may_differ_from_times() -> None:
    told = {config: ReplayPrediction(10.0, -time_us(config) + 1000) for config in CONFIGS}
    assert make("model", ReplayProblem(case().space, told)).ask() == max(CONFIGS, key=time_us)


@pytest.mark.parametrize("name", ["neighbours", "residuals", "trees"])
def test_corrections_avoid_configs_like_slow_ones(name: str) -> None:
    """The model prefers one mode by 1 to 2 % and is wrong there by 40 %; it is right for the other one."""
    configs = [
        Config({"mode": mode, "tile": tile})
        for mode in ("liked", "other")
        for tile in (16, 32, 64, 128, 256, 512)
    ]
    told = {
        c: ReplayPrediction(us := 10.0 + 0.01 * place + (c["mode"] == "other") * 0.1, us)
        for place, c in enumerate(configs)
    }
    told[configs[6]] = ReplayPrediction(9.0, 9.0)  # one of the other mode is tried first
    times = {c: told[c].predicted_us * (1.4 if c["mode"] == "liked" else 1.0) for c in configs}

    def liked_ones(strategy: strategies.Strategy) -> int:
        asked = []
        for _ in range(7):
            config = strategy.ask()
            assert config is not None
            strategy.tell(config, times[config])
            asked.append(config)
        return sum(config["mode"] == "liked" for config in asked)

    known = ReplayProblem(RecordedSpace(configs), told)
    assert liked_ones(make(name, known)) < liked_ones(make("model", known))


def test_rounds_use_the_selection_of_sessions() -> None:
    order = {config: guess.ranking_us for config, guess in guesses().items()}
    first = selection.choose(order, 16)
    assert run("rounds", 16) == first
    pairs = [(c, guesses()[c].predicted_us, time_us(c)) for c in first]
    left = {config: us for config, us in order.items() if config not in first}
    assert run("rounds")[16:] == selection.choose(neighbours.corrected(left, pairs), 16)


def test_seeded_samplers_begin_with_the_model_s_picks() -> None:
    picks = run("model+tpe")
    rounds = ModelRounds(ReplayProblem(case().space, guesses()), neighbours.corrected, FIRST_PICKS)
    assert picks[:FIRST_PICKS] == [rounds.ask() for _ in range(FIRST_PICKS)]
    assert len(set(picks)) == len(CONFIGS)


def test_hints_may_still_be_asked() -> None:
    search = SparseSearcher(case().space, seed=1)
    for config in CONFIGS:
        search.hint(config, time_us(config))
    assert search.remaining == len(CONFIGS)
    search.tell(BEST, 10.0, measured=True)
    assert BEST not in search.ask(100)


@pytest.mark.parametrize(("kind", "illegal"), [(SparseSearcher, 0), (Searcher, 1)])
def test_unrecorded_configs_are_not_illegal_to_the_sampler(kind: type[Searcher], illegal: int) -> None:
    search = kind(RecordedSpace([CONFIGS[0], CONFIGS[9], CONFIGS[-1], CONFIGS[4]]), seed=1)
    for _ in range(3):
        (config,) = search.ask(1)
        search.tell(config, 1.0, measured=True)
    told = [trial for trial in search._study.trials if trial.state.name == "COMPLETE"]
    assert (len(told) > 3) == bool(illegal)


def test_unknown_names_are_refused() -> None:
    with pytest.raises(UnknownNameError, match="unknown strategy 'tep'; did you mean tpe"):
        make("tep", ReplayProblem(case().space, guesses()))
