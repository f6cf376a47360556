"""What every search over a finite space must do, whichever sampler it has."""

from __future__ import annotations

import math
import random
from importlib.util import find_spec

import pytest

from tilesight.errors import ToolchainError, UnknownNameError
from tilesight.problem.space import Config, Constraint, Parameter, SearchSpace
from tilesight.search.optuna_search import SAMPLERS, Searcher

SPACE = SearchSpace(
    [
        Parameter("tile", (16, 32, 64, 128, 256)),
        Parameter("stages", (1, 2, 3, 4)),
        Parameter("policy", ("square", "row", "column")),
        Parameter("swizzle", (False, True)),
        Parameter("fixed", (7,)),
    ],
    [Constraint("deep", lambda c: "too deep" if c.int("tile") * c.int("stages") > 512 else None)],
)
SMALL = SearchSpace(SPACE.parameters[:2], SPACE.constraints)
FIRST = Config({"tile": 64, "stages": 2, "policy": "row", "swizzle": True, "fixed": 7})


def time_us(config: Config) -> float:
    """Least, 1.0, at tile=128, stages=3, policy=row, swizzle=true."""
    steps = abs(math.log2(config.int("tile") / 128)) + abs(config.int("stages") - 3)
    return 1.0 + steps + (config.get("policy") != "row") + 0.5 * (config.get("swizzle") is False)


# Optuna leaves CMA-ES to a package of its own, which is none of our dependencies
TRIED = [name for name in sorted(SAMPLERS) if name != "cmaes" or find_spec("cmaes")]


# a question to Optuna's Gaussian process takes a tenth of a second
@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.full] * (name == "gp")) for name in TRIED])
def sampler(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def run(searcher: Searcher, count: int, batch: int = 8) -> list[Config]:
    seen: list[Config] = []
    while len(seen) < count and (asked := searcher.ask(min(batch, count - len(seen)))):
        for config in asked:
            searcher.tell(config, time_us(config))
        seen += asked
    return seen


def test_asks_legal_configs_once(sampler: str) -> None:
    seen = run(Searcher(SPACE, sampler=sampler, seed=1), 20)
    assert len(seen) == len(set(seen)) == 20
    assert all(config in SPACE for config in seen)


def test_exhausts_the_space_and_ends(sampler: str) -> None:
    searcher = Searcher(SMALL, sampler=sampler, seed=1)
    # never as much as is left at once: the sampler is asked to the end
    seen = run(searcher, 10_000, batch=1)
    assert set(seen) == set(SMALL.configs())
    assert len(seen) == len(SMALL.configs())
    assert searcher.remaining == 0
    assert searcher.ask(5) == []


def test_asks_the_whole_space_at_once(sampler: str) -> None:
    searcher = Searcher(SPACE, sampler=sampler, first=FIRST)
    seen = searcher.ask(10_000)
    assert seen[0] == FIRST
    assert set(seen) == set(SPACE.configs())


def test_first_guess_is_asked_first(sampler: str) -> None:
    assert Searcher(SPACE, sampler=sampler, seed=3, first=FIRST).ask(4)[0] == FIRST


def test_illegal_first_guess_is_left_out(sampler: str) -> None:
    illegal = Config({**FIRST, "tile": 256, "stages": 4})
    assert illegal not in Searcher(SPACE, sampler=sampler, first=illegal).ask(10)


def test_same_seed_asks_the_same_configs(sampler: str) -> None:
    first, second = (run(Searcher(SPACE, sampler=sampler, seed=11), 16) for _ in range(2))
    assert first == second


def test_told_configs_are_not_asked(sampler: str) -> None:
    known = SPACE.sample(30, seed=2)
    searcher = Searcher(SPACE, sampler=sampler, first=known[0])
    for config in known:
        searcher.tell(config, time_us(config))
    assert searcher.remaining == len(SPACE.configs()) - 30
    assert set(run(searcher, 6)).isdisjoint(known)


def test_survives_failures_in_any_order(sampler: str) -> None:
    searcher = Searcher(SPACE, sampler=sampler, seed=4)
    draw = random.Random(0)
    seen: set[Config] = set()
    for _ in range(4):
        asked = searcher.ask(6)
        assert seen.isdisjoint(asked)
        seen.update(asked)
        draw.shuffle(asked)
        for config in asked:
            searcher.tell(config, None if draw.random() < 0.5 else time_us(config))


def test_all_failing_does_not_stop_it(sampler: str) -> None:
    searcher = Searcher(SMALL, sampler=sampler, seed=4)
    count = 0
    while asked := searcher.ask(4):
        count += len(asked)
        for config in asked:
            searcher.tell(config, None)
    assert count == len(SMALL.configs())


def test_continues_without_results(sampler: str) -> None:
    searcher = Searcher(SPACE, sampler=sampler, seed=5)
    unanswered = searcher.ask(10)
    assert set(run(searcher, 20)).isdisjoint(unanswered)


def test_measured_value_may_follow_a_predicted_one(sampler: str) -> None:
    searcher = Searcher(SPACE, sampler=sampler, seed=6)
    for config in searcher.ask(12):
        searcher.tell(config, time_us(config))
        searcher.tell(config, 1.5 * time_us(config), measured=True)
    assert len(run(searcher, 4)) == 4


@pytest.mark.parametrize("value", [0.0, -1.0, math.nan, math.inf])
def test_an_invalid_time_is_refused(sampler: str, value: float) -> None:
    searcher = Searcher(SPACE, sampler=sampler)
    with pytest.raises(ValueError, match="must be a positive, finite time"):
        searcher.tell(searcher.ask(1)[0], value)


def test_illegal_config_is_refused(sampler: str) -> None:
    with pytest.raises(ValueError, match="not a legal config"):
        Searcher(SPACE, sampler=sampler).tell(Config({**FIRST, "tile": 256, "stages": 4}), 1.0)


def test_an_empty_space_asks_nothing(sampler: str) -> None:
    nothing = SearchSpace([Parameter("tile", (1, 2))], [Constraint("never", lambda _config: "no")])
    assert Searcher(nothing, sampler=sampler).ask(5) == []


def test_space_of_one_parameter_value(sampler: str) -> None:
    single = SearchSpace([Parameter("tile", (1,))])
    assert Searcher(single, sampler=sampler).ask(1) == [Config({"tile": 1})]


def test_promising_configs_are_new_and_likely(sampler: str) -> None:
    searcher = Searcher(SPACE, sampler=sampler, seed=2)
    assert searcher.promising(4) == []  # nothing was told yet
    # all but the configs with the right policy and swizzle: what is left to find lies between those seen
    hidden = [c for c in SPACE.configs() if c["policy"] == "row" and c["swizzle"] is True]
    for config in SPACE.configs():
        if config not in hidden:
            searcher.tell(config, time_us(config))
    assert len(SPACE.configs()) - len(hidden) >= 48
    found = searcher.promising(4)
    assert len(set(found)) == 4
    assert set(found) <= set(hidden)
    assert min(time_us(c) for c in found) == min(time_us(c) for c in hidden)
    assert not set(found) & set(searcher.ask(100))


def test_promising_ends_with_the_space(sampler: str) -> None:
    searcher = Searcher(SPACE, sampler=sampler, seed=2)
    for config in SPACE.configs():
        searcher.tell(config, time_us(config))
    assert searcher.promising(4) == []


def test_unknown_sampler() -> None:
    with pytest.raises(UnknownNameError, match="did you mean tpe"):
        Searcher(SPACE, sampler="tep")


def test_sampler_without_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "cmaes", None)
    with pytest.raises(ToolchainError, match="pip install cmaes"):
        Searcher(SPACE, sampler="cmaes")
