"""Pure parts of experiments/outside."""

from __future__ import annotations

import importlib
import math
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

from tests.unit.costmodel.sample_kernels import any_rows
from tilesight.api.foreign_kernel import ForeignKernel, call_of, read_lowered
from tilesight.api.run_time_facts import RunTimeFacts
from tilesight.profile.values import KernelProfile
from tilesight.target.spec import load_target

FOLDER = Path(__file__).resolve().parents[3] / "experiments" / "outside"


@pytest.fixture
def outside(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(FOLDER))
    names = ("corpus", "variants", "evaluate", "predict")
    found = ModuleType("outside")
    for name in names:
        setattr(found, name, importlib.import_module(name))
    yield found
    for name in names:
        sys.modules.pop(name, None)


def test_each_kernel_has_one_half_and_both_halves_are_used(outside: Any) -> None:
    names = [f"repository/file{number}.py:kernel" for number in range(200)]
    halves = [outside.corpus.half_of(name) for name in names]
    assert halves == [outside.corpus.half_of(name) for name in names]
    assert 70 < halves.count("looked") < 130


def test_configs_change_tiles_stages_and_threads_and_no_sizes(outside: Any) -> None:
    given = {"M": 4096, "block_M": 128, "num_stages": 1, "threads": 128, "dtype": "float16", "page_block": 64}
    changes = list(outside.variants.other_configs(given))
    assert {"block_M": 64} in changes
    assert {"num_stages": 0} in changes
    assert {"threads": 256} in changes
    assert {name for change in changes for name in change} <= {"block_M", "num_stages", "threads"}


def test_with_data_of_a_call_tiles_stay(outside: Any) -> None:
    changes = list(outside.variants.other_configs({"block_M": 128, "num_stages": 2}, only_schedule=True))
    assert changes == [{"num_stages": 3}, {"num_stages": 1}]


def test_sizes_are_doubled_and_halved_one_at_a_time(outside: Any) -> None:
    changes = list(outside.variants.other_sizes({"batch": 4, "seq_len": 1024, "dim": 128, "block_M": 64}))
    assert changes == [{"seq_len": 2048}, {"seq_len": 512}, {"batch": 8}]


def test_the_order_takes_one_group_of_each_kernel_first(outside: Any) -> None:
    made = [
        outside.corpus.Candidate(f"r/f:k{kernel}", f"r/f:k{kernel}#{group}", {"x": config}, "", (), {})
        for kernel in range(5)
        for group in range(2)
        for config in range(3)
    ]
    ordered = outside.corpus.in_order(made)
    assert len(ordered) == len(made)
    assert {one.name for one in ordered[:15]} == {f"r/f:k{kernel}" for kernel in range(5)}
    assert len({one.group for one in ordered[:15]}) == 5
    assert [one.name for one in outside.corpus.subset(ordered, 5)] == [one.name for one in ordered[:15:3]]


def test_figures_of_known_errors(outside: Any) -> None:
    def case(group: str, measured: float, predicted: float) -> Any:
        return outside.evaluate.Case("k", group, "", measured, predicted, 0.2, False, "")

    cases = [case("a", 10, 10), case("a", 20, 9), case("a", 30, 60), case("b", 10, 11)]
    found = outside.evaluate.figures(cases)
    assert found["mean_abs_log_error"] == pytest.approx((math.log(20 / 9) + math.log(2) + math.log(1.1)) / 4)
    assert found["within_1.25x"] == 0.5
    assert found["within_one_sigma"] == 0.5
    assert outside.evaluate.top_one(cases) == {
        "groups": 1,
        "top1_geo": pytest.approx(0.5),
        "top1_worst": pytest.approx(0.5),
    }


def test_the_other_half_is_not_shown_by_mistake(outside: Any, tmp_path: Path) -> None:
    given = outside.evaluate.argparse.Namespace(
        rows=tmp_path / "none.csv",
        predictions=tmp_path / "none.csv",
        half="unopened",
        largest=3,
        open_the_other_half=False,
    )
    with pytest.raises(SystemExit, match="--open-the-other-half"):
        outside.evaluate.main(given)


def test_what_a_candidate_was_lowered_to_is_kept_and_read_again(outside: Any, tmp_path: Path) -> None:
    """Also its run-time sizes: the function and its host part have the same variables."""
    candidate = outside.corpus.Candidate("r/f:k", "r/f:k#1", {}, "", (), {"rows": 640})
    target, made = load_target("h200"), [any_rows()]

    def profiles() -> tuple[KernelProfile, ...]:
        corpus = SimpleNamespace(function=lambda _: made.pop())
        lowered = outside.predict.lowered_of(candidate, target, corpus, tmp_path)
        kernel = ForeignKernel("k", lowered.traced)
        call = call_of(kernel, lowered, RunTimeFacts(dict(candidate.sizes)))
        return tuple(profile for profile, _ in read_lowered(kernel, lowered, target, call))

    assert profiles() == profiles()
    assert not made
