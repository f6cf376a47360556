"""From dataset rows to cases."""

from __future__ import annotations

import json

import pandas as pd
import pytest

from tests.unit.datasets.replay.made import failing, small
from tilesight.datasets.replay.cases import RecordedSpace, recorded_cases, replayable_rows
from tilesight.errors import ConfigError, InputError
from tilesight.problem.space import Config, Parameter, SearchSpace
from tilesight.records.dataset import Dataset


def test_a_recorded_space_has_the_recorded_configs_and_nothing_else() -> None:
    configs = [Config({"b": 4, "a": "y"}), Config({"b": 2, "a": "x"}), Config({"b": 16, "a": "y"})]
    space = RecordedSpace(configs)
    assert set(space.configs()) == set(configs)
    assert {p.name: p.values for p in space.parameters} == {"a": ("x", "y"), "b": (2, 4, 16)}
    assert all(config in space for config in configs)
    assert space.census().legal == 3
    assert space.census().rejected == {"recorded": 3}
    with pytest.raises(ConfigError, match=r"'a=x,b=4' was not recorded\. Nearest legal"):
        space.check(Config({"b": 4, "a": "x"}))


def test_its_order_is_that_of_the_whole_space_if_known() -> None:
    whole = SearchSpace([Parameter("mode", ("slow", "fast", "other")), Parameter("block", (64, 32, 16))])
    configs = [Config({"block": block, "mode": mode}) for block in (16, 64, 128) for mode in ("fast", "slow")]
    found = RecordedSpace(configs, whole).configs()
    assert [(c["mode"], c["block"]) for c in found] == [
        (m, b) for m in ("slow", "fast") for b in (64, 16, 128)
    ]


def test_flags_are_no_numbers() -> None:
    configs = [Config({"a": True}), Config({"a": False})]
    assert RecordedSpace(configs).configs() == (Config({"a": False}), Config({"a": True}))


def test_failures_from_the_build_on_are_candidates_and_earlier_ones_are_not() -> None:
    whole = failing(failing(small(), [0, 1], "build_error"), [2], "wrong_result")
    whole = failing(
        failing(failing(whole, [3], "duplicate"), [4], "lower_error"), [5], "build_error", keep_profile=False
    )
    cases, places = recorded_cases(replayable_rows(whole))
    assert len(cases) == 4
    (touched,) = [case for case in cases if None in case.times_us.values()]
    assert len(touched.times_us) == 24 - 3
    assert sum(us is None for us in touched.times_us.values()) == 3
    assert touched.best_us == min(us for us in touched.times_us.values() if us is not None)
    assert sorted(place for own in places for place in own) == list(range(4 * 24 - 3))


def test_positions_are_those_of_the_rows() -> None:
    rows = replayable_rows(small())
    cases, places = recorded_cases(rows)
    for case, own in zip(cases, places, strict=True):
        for config, place in zip(case.times_us, own, strict=True):
            assert Config(json.loads(rows["config"][place])) == config
            assert rows["measured_us"][place] == case.times_us[config]
            assert rows["workload"][place] == case.workload


def test_rows_of_all_versions_of_a_template_are_one_case_with_the_last_row_of_a_config() -> None:
    whole = small()
    again = whole.frame.iloc[[0, 5]].assign(template_version="later", measured_us=1e6)
    rows = replayable_rows(Dataset(pd.concat([whole.frame, again], ignore_index=True), whole.metadata))
    cases, places = recorded_cases(rows)
    assert [len(case.times_us) for case in cases] == [24] * 4
    assert {0, 5}.isdisjoint(place for own in places for place in own)
    assert sum(us == 1e6 for case in cases for us in case.times_us.values()) == 2


def test_cases_of_few_verified_rows_are_left_out() -> None:
    whole = small()
    cases, _ = recorded_cases(replayable_rows(failing(whole, list(range(13)), "build_error")))
    assert len(cases) == 3
    with pytest.raises(InputError, match="no case of the datasets has 12 verified rows"):
        recorded_cases(replayable_rows(whole.where(whole.frame.groupby("workload").cumcount() < 11)))


def test_no_verified_row_is_an_error() -> None:
    whole = small()
    with pytest.raises(InputError, match="no verified row of a GPU target with a profile"):
        replayable_rows(failing(whole, list(range(len(whole))), "build_error"))
    with pytest.raises(InputError, match="no verified row"):
        replayable_rows(Dataset(whole.frame.assign(target="cpu"), whole.metadata))


def test_our_own_operators_have_their_whole_space() -> None:
    frame = small(1, 1).frame.assign(
        operator="gemv", dims=json.dumps({"n": 4096, "k": 4096}), attrs="{}", dtype="bfloat16"
    )
    (case,), _ = recorded_cases(replayable_rows(Dataset(frame, {})))
    assert case.legal is not None
    assert case.legal > 100


@pytest.mark.parametrize("changed", [{"operator": "made"}, {"dims": '{"n": 4096}'}, {"dtype": "float99"}])
def test_unknown_operators_have_no_whole_space(changed: dict[str, str]) -> None:
    ours = {
        "operator": "gemv",
        "dims": json.dumps({"n": 4096, "k": 4096}),
        "attrs": "{}",
        "dtype": "bfloat16",
    }
    (case,), _ = recorded_cases(replayable_rows(Dataset(small(1, 1).frame.assign(**{**ours, **changed}), {})))
    assert case.legal is None
