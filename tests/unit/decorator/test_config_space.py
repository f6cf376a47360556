"""Configs and spaces of users as search spaces."""

from __future__ import annotations

import enum
import inspect
from typing import Any

import numpy
import pytest

from tilesight.decorator.config_space import Choices, read_choices
from tilesight.errors import InputError
from tilesight.problem.space import Config, Constraint, Parameter, SearchSpace


class Policy(enum.IntEnum):
    SQUARE = 0
    ROWS = 1


def kernel(n: int, block: int = 64, stages: int = 2, policy: Any = None, fast: bool = False) -> None: ...


SIGNATURE = inspect.signature(kernel)


def read(configs: Any = None, space: Any = None, constraints: Any = ()) -> Choices:
    return read_choices(configs, space, constraints, SIGNATURE, "kernel")


def test_a_list_is_just_its_configs() -> None:
    choices = read([{"block": 32, "stages": 1}, {"block": 64, "stages": 2}, {"block": 32, "stages": 1}])
    assert [dict(c) for c in choices.space.configs()] == [
        {"block": 32, "stages": 1},
        {"block": 64, "stages": 2},
    ]
    assert choices.space.size == choices.space.census().legal == 2
    assert Config({"block": 32, "stages": 2}) not in choices.space
    assert choices.first == Config({"block": 64, "stages": 2}), "the defaults of the function"


def test_the_first_config_if_the_defaults_are_no_config() -> None:
    assert read([{"block": 32}, {"block": 16}]).first == Config({"block": 32})


def test_objects_come_back() -> None:
    options = {"tl.disable_tma_lower": True}
    listed: list[dict[str, Any]] = [
        {"policy": Policy.ROWS, "pass_configs": options},
        {"policy": None},
        {"policy": Policy.SQUARE},
    ]
    choices = read(listed)
    found = [choices.values(config) for config in choices.space.configs()]
    assert found == listed
    assert found[0]["policy"] is Policy.ROWS
    assert found[1]["policy"] is None
    assert [str(config["policy"]) for config in choices.space.configs()] == ["ROWS", "None", "SQUARE"]


def test_numbers_and_truth_values_are_told_apart() -> None:
    choices = read([{"policy": 1}, {"policy": True}, {"policy": 1.0}, {"policy": "1.0"}])
    found = [choices.values(config)["policy"] for config in choices.space.configs()]
    assert [type(value) for value in found] == [int, bool, float, str]


def test_labels_are_the_same_in_every_process() -> None:
    first, second = (read([{"policy": lambda x: x + 1}, {"policy": 2}]) for _ in range(2))
    assert first.space.fingerprint == second.space.fingerprint


def test_a_product_with_constraints() -> None:
    def small(config: Any) -> bool:
        return bool(config["block"] * config["stages"] <= 64)

    def not_rows(config: Any) -> str | None:
        return "rows need two stages" if config["policy"] is Policy.ROWS and config["stages"] == 1 else None

    space = {"block": [16, 32, 64], "stages": range(1, 3), "policy": list(Policy)}
    choices = read(space=space, constraints=[small, not_rows])
    values = [choices.values(c) for c in choices.space.configs()]
    assert len(values) == 7
    assert {"block": 16, "stages": 1, "policy": Policy.ROWS} not in values
    assert choices.space.census().rejected == {"small": 2, "not_rows": 3}


def test_constraints_hold_for_lists_too() -> None:
    choices = read([{"block": 32}, {"block": 64}], constraints=[lambda c: c["block"] < 64])
    assert [dict(c) for c in choices.space.configs()] == [{"block": 32}]
    with pytest.raises(InputError, match="none of 1 configs keeps the constraints"):
        read([{"block": 64}], constraints=[lambda c: c["block"] < 64])


def test_a_search_space_is_taken_as_it_is() -> None:
    space = SearchSpace(
        [Parameter("block", (16, 32))], [Constraint("not 16", lambda c: "16" if c["block"] == 16 else None)]
    )
    choices = read(space=space)
    assert choices.space is space
    assert choices.values(Config({"block": 32})) == {"block": 32}
    assert len(read(space=space, constraints=[lambda c: c["block"] != 32]).space.configs()) == 0


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ([], "no configs to choose from"),
        ({}, "the space is empty"),
        ("block", "configs must be a list"),
        (7, "configs must be a list"),
        ([7], "a config must be a dictionary"),
        ({"block": 32}, r"the values of block must be a list, e.g. \[32\]"),
        ({"block": "32"}, "must be a list"),
        ({"block": []}, "block has no values"),
        ([{"blok": 32}], "unknown argument of kernel 'blok'; did you mean block"),
        ({"blok": [32]}, "did you mean block"),
        ([{"n": 1}, {"block": 2}], "some configs lack n, which has no default"),
    ],
)
def test_bad_input(given: Any, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(given)


def test_a_constraint_must_be_a_function() -> None:
    with pytest.raises(InputError, match="a constraint must be a function"):
        read([{"block": 1}], constraints=["block < 2"])


def test_a_config_that_lacks_an_argument_leaves_it_to_the_function() -> None:
    choices = read([{"block": 32}, {"block": 64, "stages": 3}])
    assert [choices.values(c) for c in choices.space.configs()] == [{"block": 32}, {"block": 64, "stages": 3}]


@pytest.mark.parametrize("yes", [True, 1, numpy.bool_(True), None, ""])
@pytest.mark.parametrize("no", [False, 0, numpy.bool_(False), "too large"])
def test_all_kinds_of_truth_values(yes: Any, no: Any) -> None:
    choices = read(space={"block": [32, 64]}, constraints=[lambda c: yes if c["block"] == 32 else no])
    assert [dict(c) for c in choices.space.configs()] == [{"block": 32}]
    reason = choices.space.constraints[0].violation(Config({"block": 64}))
    assert reason == (no if isinstance(no, str) else "constraint 1 does not hold")


def test_a_constraint_that_reads_an_argument_of_no_config() -> None:
    with pytest.raises(InputError, match=r"the constraint constraint 1 raised for .*KeyError\('blok'\)"):
        read([{"block": 1}], constraints=[lambda c: c["blok"] < 2])
