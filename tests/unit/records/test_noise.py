"""Noisy times: which they are, and that they answer, train and serve nothing."""

from __future__ import annotations

import pytest

from tilesight.errors import Failure, FailureKind
from tilesight.problem.space import Config
from tilesight.records.session import Baseline, Decision, Effort, SessionResult, SessionState, ranked
from tilesight.records.trial import BuildResult, Measurement, Status, TrialRecord, without_measurement

STEADY = tuple(100.0 + i % 3 for i in range(20))
WILD = tuple(100.0 + 60 * (i % 2) for i in range(20))


@pytest.fixture(autouse=True)
def usual_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILESIGHT_MAX_NOISE", raising=False)


def measurement(samples_us: tuple[float, ...] = STEADY, **observed: float) -> Measurement:
    return Measurement(samples_us, relative_error=0.0, observed=observed)


@pytest.mark.parametrize(
    ("found", "status"),
    [
        (measurement(), Status.VERIFIED),
        (measurement(disturbed=0.25, other_load=0.4), Status.VERIFIED),
        (measurement(disturbed=0.3), Status.NOISY),
        (measurement(other_load=0.5), Status.NOISY),
        (measurement(other_gpu_load=0.05), Status.VERIFIED),
        (measurement(other_gpu_load=0.6), Status.NOISY),
        (measurement(WILD), Status.NOISY),
        (measurement(WILD[:6], stopped_early=1.0), Status.VERIFIED),
        (measurement(STEADY[:6], stopped_early=1.0, disturbed=1.0), Status.NOISY),
        (measurement((100.0, 101.0, 140.0)), Status.NOISY),
        (measurement((100.0, 101.0, 104.0)), Status.VERIFIED),
        (measurement((100.0,)), Status.VERIFIED),
        (Measurement(STEADY), Status.MEASURED),
        (Measurement(WILD), Status.NOISY),
        (Measurement(failure=Failure(FailureKind.RUN_ERROR, "no")), Status.FAILED),
    ],
)
def test_the_status_follows_from_samples_and_load(found: Measurement, status: Status) -> None:
    assert found.status is status
    assert found.is_noisy is (status is Status.NOISY)


@pytest.mark.parametrize(("limit", "is_noisy"), [("0.4", False), ("0.2", True), ("inf", False)])
def test_the_user_sets_the_limit(limit: str, is_noisy: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESIGHT_MAX_NOISE", limit)
    assert measurement(WILD).is_noisy is is_noisy
    assert measurement(other_load=1.0).is_noisy is (limit != "inf")


def record(number: int, samples_us: tuple[float, ...]) -> TrialRecord:
    found = measurement(samples_us)
    return TrialRecord(Config({"n": number}), found.status, build=BuildResult("k.so"), measurement=found)


def result(*trials: TrialRecord, vendor: tuple[float, ...] = STEADY, winner: int = 0) -> SessionResult:
    decision = Decision(Config({"n": winner})) if winner else None
    listed = ranked({trial.config.key: trial for trial in trials}, decision)
    return SessionResult(
        None,  # type: ignore[arg-type]
        Effort.QUICK,
        SessionState.COMPLETE,
        None,  # type: ignore[arg-type]
        listed,
        (Baseline("vendor", vendor),),
        decision=decision,
    )


def test_a_clean_time_precedes_noisy_ones() -> None:
    slow = tuple(2 * us for us in STEADY)
    found = result(record(1, WILD), record(2, slow), winner=1)
    assert found.best is not None
    assert found.best.config["n"] == 2
    assert not found.is_noisy
    assert [trial.measured_us for trial in found.trials] == [202.0, None]
    assert found.trials[1].noisy_us == 130.0


def test_a_result_is_noisy_if_its_best_time_or_a_vendors_is() -> None:
    assert result(record(1, WILD), winner=1).is_noisy
    assert result(record(1, STEADY), vendor=WILD).is_noisy
    assert not result(record(1, STEADY)).is_noisy


def test_without_its_measurement_a_trial_is_built() -> None:
    left = without_measurement(record(1, WILD))
    assert left is not None
    assert (left.status, left.measurement) == (Status.BUILT, None)
    bare = TrialRecord(Config({}), Status.VERIFIED, measurement=measurement())
    assert without_measurement(bare) is None
