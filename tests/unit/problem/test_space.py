from __future__ import annotations

import itertools
import pickle
from collections import Counter

import pytest

from tilesight.errors import ConfigError, InputError, UnknownNameError
from tilesight.problem.space import Config, Constraint, Parameter, SearchSpace


def within(config: Config) -> str | None:
    work = config.int("tile") * config.int("stages")
    return None if work <= 128 else f"tile * stages = {work} exceeds 128: lower stages"


def even(config: Config) -> str | None:
    return (
        "split needs stages >= 2: take stages=2"
        if config["split"] is True and config.int("stages") < 2
        else None
    )


@pytest.fixture
def space() -> SearchSpace:
    return SearchSpace(
        [
            Parameter("tile", (16, 32, 64), "rows"),
            Parameter("stages", (1, 2, 4)),
            Parameter("order", ("row", "column")),
            Parameter("split", (False, True)),
        ],
        [Constraint("memory", within), Constraint("split", even)],
    )


GOOD = Config({"tile": 32, "stages": 2, "order": "row", "split": True})


def test_config_is_a_value() -> None:
    same = Config({"split": True, "order": "row", "stages": 2, "tile": 32})
    assert same == GOOD
    assert hash(same) == hash(GOOD)
    assert same.key == GOOD.key == '{"order":"row","split":true,"stages":2,"tile":32}'
    assert str(GOOD) == "order=row,split=true,stages=2,tile=32"
    assert pickle.loads(pickle.dumps(GOOD)) == GOOD
    assert Config({**GOOD, "tile": 64}) != GOOD
    assert (GOOD.int("tile"), GOOD.str("order")) == (32, "row")
    with pytest.raises(AssertionError, match="not a whole number"):
        GOOD.int("order")


def test_enumeration_is_complete_and_in_natural_order(space: SearchSpace) -> None:
    configs = space.configs()
    assert space.size == 36
    assert len(configs) == len(set(configs)) == 26
    assert all(config in space for config in configs)
    assert [c["tile"] for c in configs] == sorted(c["tile"] for c in configs)  # type: ignore[type-var]


def test_fingerprint_ignores_wording() -> None:
    def made(
        tiles: tuple[int, ...] = (16, 32),
        most: int = 64,
        meaning: str = "",
        split: tuple[int | bool, ...] = (0, 1),
    ) -> str:
        rule = Constraint(
            "memory", lambda config: f"too much {meaning}" if config.int("tile") > most else None
        )
        return SearchSpace([Parameter("tile", tiles, meaning), Parameter("split", split)], [rule]).fingerprint

    assert made() == made(meaning="rows") == made(most=32)
    others = [made((16, 32, 64)), made((32, 16)), made(most=16), made(split=(False, True))]
    assert len({made(), *others}) == 1 + len(others)


def test_census_counts_rejected_points_by_constraint(space: SearchSpace) -> None:
    census = space.census()
    assert (census.size, census.legal) == (36, 26)
    assert dict(census.rejected) == {"memory": 4, "split": 6}
    assert space.census() == census


def test_constraints_are_evaluated_once_per_values_they_read() -> None:
    """Constraints that read some values, all values or none give the result of checking every point."""
    asked: list[str] = []

    def by_value(config: Config) -> str | None:
        asked.append("by value")
        if config.str("mode") == "fast":
            return None
        return "slow takes depth=1" if config.int("depth") > (1 if config["flag"] else 2) else None

    def whole(config: Config) -> str | None:
        return (
            "no such three" if {**config} == {"mode": "fast", "depth": 3, "flag": True, "size": 9} else None
        )

    def by_hash(config: Config) -> str | None:
        return (
            "this one" if config in {Config({"mode": "slow", "depth": 1, "flag": False, "size": 4})} else None
        )

    def by_get(config: Config) -> str | None:
        return (
            "large"
            if config.get("size") == 9 and "none" not in config and config.get("mode") == "slow"
            else None
        )

    rules = [Constraint(f.__name__, f) for f in (by_value, whole, by_hash, by_get, lambda _: None)]
    names = {"mode": ("fast", "slow"), "depth": (1, 2, 3), "flag": (False, True), "size": (1, 4, 9)}
    divided = SearchSpace([Parameter(name, values) for name, values in names.items()], rules)
    points = [Config(dict(zip(names, values, strict=True))) for values in itertools.product(*names.values())]
    first = {point: next((rule.name for rule in rules if rule.violation(point)), None) for point in points}
    asked.clear()
    assert divided.configs() == tuple(point for point in points if first[point] is None)
    assert divided.census().rejected == Counter(name for name in first.values() if name)
    examples = {name: divided.rejected().examples[name] for name in divided.census().rejected}
    assert examples["by_value"] == "slow takes depth=1"
    assert (examples["whole"], examples["by_hash"], examples["by_get"]) == (
        "no such three",
        "this one",
        "large",
    )
    assert set(divided.census().rejected) == {"by_value", "whole", "by_hash", "by_get"}
    assert len(asked) == 1 + 3 * 2, "fast is one question, slow one for each depth and flag"


def test_an_unsatisfiable_constraint_and_a_space_without_parameters() -> None:
    nothing = SearchSpace([Parameter("a", (1, 2))], [Constraint("never", lambda _: "no: take none")])
    assert (nothing.configs(), dict(nothing.census().rejected)) == ((), {"never": 2})
    assert SearchSpace([]).configs() == (Config({}),)
    assert SearchSpace([Parameter("a", ())]).configs() == ()


def test_sample_is_distinct_legal_and_repeatable(space: SearchSpace) -> None:
    sample = space.sample(10, seed=3)
    assert len(set(sample)) == 10
    assert all(config in space for config in sample)
    assert space.sample(10, seed=3) == sample != space.sample(10, seed=4)
    assert set(space.sample(1000)) == set(space.configs())


def test_violations_name_every_broken_rule(space: SearchSpace) -> None:
    assert space.violations(GOOD) == []
    broken = space.violations(Config({**GOOD, "tile": 64, "stages": 4}))
    assert [(v.constraint, v.reason) for v in broken] == [
        ("memory", "tile * stages = 256 exceeds 128: lower stages")
    ]
    outside = space.violations(Config({**GOOD, "tile": 48, "order": "diagonal"}))
    assert [v.reason for v in outside] == [
        "tile=48 is not one of 16, 32, 64",
        "order=diagonal is not one of row, column",
    ]


@pytest.mark.parametrize("value", [1, 0])
def test_numbers_are_no_flags(space: SearchSpace, value: int) -> None:
    assert Config({**GOOD, "split": value}) not in space


def test_flags_are_no_numbers(space: SearchSpace) -> None:
    assert Config({**GOOD, "stages": True, "split": False}) not in space


def test_unknown_and_missing_parameters(space: SearchSpace) -> None:
    with pytest.raises(UnknownNameError, match="unknown parameter 'tiles'; did you mean tile"):
        space.violations(Config({**GOOD, "tiles": 3}))
    with pytest.raises(
        ConfigError, match="lacks order, split; a config names all of: tile, stages, order, split"
    ):
        space.violations(Config({"tile": 16, "stages": 1}))
    for other in ({**GOOD, "tiles": 3}, {"tile": 16, "stages": 1}, {}):
        assert Config(other) not in space


def test_check_offers_nearest_configs(space: SearchSpace) -> None:
    with pytest.raises(ConfigError) as caught:
        space.check(Config({**GOOD, "tile": 64, "stages": 4}))
    message = str(caught.value)
    assert "tile * stages = 256 exceeds 128" in message
    assert (
        "Nearest legal: order=row,split=true,stages=4,tile=32 or order=row,split=true,stages=2,tile=64"
        in message
    )
    assert caught.value.exit_code == 2


def test_nearest_prefers_few_and_small_steps(space: SearchSpace) -> None:
    nearest = space.nearest(Config({**GOOD, "tile": 48}), 3)
    assert nearest[0] == Config({**GOOD, "tile": 64})  # 48 is nearer to 64 than to 32, in proportion
    assert GOOD in nearest
    assert space.nearest(GOOD, 1) == [GOOD]


def test_an_empty_space_has_no_nearest_config() -> None:
    space = SearchSpace(
        [Parameter("tile", (16, 32))], [Constraint("never", lambda c: f"tile={c['tile']} never fits")]
    )
    assert space.configs() == ()
    assert space.census().rejected == {"never": 2}
    with pytest.raises(ConfigError, match="Nearest legal: none: the space is empty"):
        space.check(Config({"tile": 16}))


def test_parse(space: SearchSpace) -> None:
    assert space.parse("tile=32, stages=2,order=row,split=TRUE") == GOOD
    with pytest.raises(ConfigError, match="tile=big is not one of"):
        space.parse("tile=big,stages=2,order=row,split=true")
    with pytest.raises(ConfigError, match="split=yes is not one of False, True"):
        space.parse("tile=32,stages=2,order=row,split=yes")
    with pytest.raises(InputError, match="not of the form"):
        space.parse("tile:32")


def test_a_listed_space_has_its_configs_in_their_order() -> None:
    listed = [Config({"a": 2, "b": True}), Config({"a": 1, "b": False}), Config({"a": 2, "b": True})]
    parameters = [Parameter("a", (1, 2)), Parameter("b", (True, False))]
    space = SearchSpace(parameters, listed=listed)
    assert space.configs() == (listed[0], listed[1])
    assert (space.size, space.census().legal) == (2, 2)
    assert [v.reason for v in space.violations(Config({"a": 1, "b": True}))] == [
        "it is none of the given configs"
    ]
    one = SearchSpace(parameters, [Constraint("small", lambda c: "2" if c["a"] == 2 else None)], listed)
    assert one.configs() == (listed[1],)
    assert one.census().rejected == {"small": 1}


class TestLaterParameters:
    """A parameter that came when measurements had been recorded: configs leave out its default."""

    SPACE = SearchSpace(
        [Parameter("tile", (16, 32)), Parameter("split", (1, 2, 4), "parts", default=1)],
        [Constraint("split", lambda c: "no" if c.int("tile") == 16 and c.int("split", 1) == 4 else None)],
    )

    def test_configs_leave_out_the_default(self) -> None:
        assert [str(config) for config in self.SPACE.configs()] == [
            "tile=16", "split=2,tile=16", "tile=32", "split=2,tile=32", "split=4,tile=32",
        ]  # fmt: skip
        assert Config({"tile": 32}) in self.SPACE
        assert self.SPACE.read("tile=32,split=1") == Config({"tile": 32})
        assert self.SPACE.parse("tile=32,split=2") == Config({"tile": 32, "split": 2})
        assert list(self.SPACE.to_frame()["split"]) == [1, 2, 1, 2, 4]
        assert str(self.SPACE.nearest(Config({"tile": 16, "split": 4}))[0]) == "split=2,tile=16"

    def test_other_parameters_are_needed_and_values_are_checked(self) -> None:
        with pytest.raises(ConfigError, match="lacks tile"):
            self.SPACE.check(Config({"split": 2}))
        with pytest.raises(ConfigError, match="split=3 is not one of 1, 2, 4"):
            self.SPACE.check(Config({"tile": 32, "split": 3}))


def test_the_closest_config_is_the_config_itself_where_it_is_legal() -> None:
    space = SearchSpace(
        [Parameter("tile", (16, 64))], [Constraint("no 64", lambda c: "no" * (c["tile"] == 64) or None)]
    )
    assert space.closest(Config({"tile": 16})) == Config({"tile": 16})
    assert space.closest(Config({"tile": 64})) == Config({"tile": 16})
    assert SearchSpace([Parameter("tile", (64,))], space.constraints).closest(Config({"tile": 64})) is None
