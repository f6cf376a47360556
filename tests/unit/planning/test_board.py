"""What a plan takes over from earlier sessions and from builds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tilesight.errors import Failure, FailureKind
from tilesight.jobs import Profiled
from tilesight.planning.board import Board
from tilesight.space import Config
from tilesight.trial import BuildResult, Measurement, Prediction, Status, TrialRecord

A, B = Config({"tile": 1}), Config({"tile": 2})
SIZES = [1, 4096]


def board(*configs: Config) -> Board:
    """A board of open kernels, each with device code of its own."""

    def outlook(config: Config, _size: int) -> Any:
        prediction = Prediction(latency_us=10.0, utilization={}, limiting="dram", terms_us={}, uncertainty=0.1, model="test")
        return SimpleNamespace(lowered=Profiled((), config.key, 0.0), prediction=prediction)

    subject: Any = SimpleNamespace(open=("m",))
    survey: Any = SimpleNamespace(outlook=outlook)
    return Board(subject, survey, configs, SIZES)


def build(binary: str) -> BuildResult:
    return BuildResult(f"/{binary}.so", None, "call", {}, "nvcc", 1.0, binary)


def test_who_was_a_duplicate_in_an_earlier_session_is_none_without_the_other_one() -> None:
    earlier = TrialRecord(A, Status.FAILED, failure=Failure(FailureKind.DUPLICATE, "generates the same device code as tile=2"))
    found = board(A)
    found.begin({4096: {A.key: earlier}})
    assert not found.is_out(A)
    assert found.trials[4096].records[A].status is Status.PREDICTED


def test_who_failed_in_an_earlier_session_is_out_everywhere() -> None:
    earlier = TrialRecord(A, Status.FAILED, failure=Failure(FailureKind.WRONG_RESULT, "differs"))
    found = board(A, B)
    found.begin({4096: {A.key: earlier}})
    assert found.is_out(A)
    assert not found.is_out(B)


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_of_two_with_the_same_machine_code_one_stays(order: tuple[Config, Config]) -> None:
    """Also where one of them was measured at a size in an earlier session."""
    measured = TrialRecord(A, Status.VERIFIED, build=build("same"), measurement=Measurement((9.0,), relative_error=0.0))
    found = board(A, B)
    found.begin({4096: {A.key: measured}})
    for config in order:
        found.built(config, 0, build("same"))
    assert [found.is_out(config) for config in order] == [False, True]


def test_one_that_was_built_twice_is_no_duplicate_of_itself() -> None:
    found = board(A)
    found.begin({})
    found.built(A, 0, build("same"))
    found.built(A, 0, build("same"))
    assert not found.is_out(A)
