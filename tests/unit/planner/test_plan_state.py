"""The state of a plan: recorded trials and builds."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tilesight.errors import Failure, FailureKind
from tilesight.executor.tasks import Profiled
from tilesight.planner.plan_state import PlanState
from tilesight.problem.space import Config
from tilesight.records.trial import BuildResult, Measurement, Prediction, Status, TrialRecord

A, B = Config({"tile": 1}), Config({"tile": 2})
SIZES = [1, 4096]


def state(*configs: Config) -> PlanState:
    """A board of dynamic kernels, each with device code of its own."""

    def prediction_at(config: Config, _size: int) -> Any:
        prediction = Prediction(
            latency_us=10.0, utilization={}, limiting="dram", terms_us={}, uncertainty=0.1, model="test"
        )
        return SimpleNamespace(lowered=Profiled((), config.key, 0.0), prediction=prediction)

    problem: Any = SimpleNamespace(dynamic=("m",))
    predictions: Any = SimpleNamespace(prediction_at=prediction_at)
    return PlanState(problem, predictions, configs, SIZES)


def build(binary: str) -> BuildResult:
    return BuildResult(f"/{binary}.so", None, "call", {}, "nvcc", 1.0, binary)


def test_a_duplicate_of_an_earlier_session_is_none_without_the_other_config() -> None:
    earlier = TrialRecord(
        A, Status.FAILED, failure=Failure(FailureKind.DUPLICATE, "generates the same device code as tile=2")
    )
    found = state(A)
    found.begin({4096: {A.key: earlier}})
    assert not found.is_excluded(A)
    assert found.trials[4096].records[A].status is Status.PREDICTED


def test_a_config_that_failed_in_an_earlier_session_is_excluded_at_all_sizes() -> None:
    earlier = TrialRecord(A, Status.FAILED, failure=Failure(FailureKind.WRONG_RESULT, "differs"))
    found = state(A, B)
    found.begin({4096: {A.key: earlier}})
    assert found.is_excluded(A)
    assert not found.is_excluded(B)


@pytest.mark.parametrize("order", [(A, B), (B, A)])
def test_of_two_configs_with_the_same_machine_code_one_stays(order: tuple[Config, Config]) -> None:
    """Also where one of them was measured at a size in an earlier session."""
    measured = TrialRecord(
        A, Status.VERIFIED, build=build("same"), measurement=Measurement((9.0,), relative_error=0.0)
    )
    found = state(A, B)
    found.begin({4096: {A.key: measured}})
    for config in order:
        found.built(config, 0, build("same"))
    assert [found.is_excluded(config) for config in order] == [False, True]


def test_a_config_that_was_built_twice_is_no_duplicate_of_itself() -> None:
    found = state(A)
    found.begin({})
    found.built(A, 0, build("same"))
    found.built(A, 0, build("same"))
    assert not found.is_excluded(A)
