"""A session beside other work: it answers no later call, and the next one measures again."""

from __future__ import annotations

import pytest

import tilesight
from tests.support.fakes import DisturbedExecutor, FakeExecutor
from tests.unit.conftest import FakeLine
from tilesight.database import open_store
from tilesight.records.session import SessionResult, SessionState
from tilesight.records.trial import Status
from tilesight.settings import load_settings


@pytest.fixture(autouse=True)
def usual_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TILESIGHT_MAX_NOISE", raising=False)


def tune(**changes: object) -> SessionResult:
    return tilesight.tune("axpy", **{"target": "cpu", "shape": "X0", **changes})[0]  # type: ignore[arg-type]


def test_noise_everywhere_gives_no_record(fake_line: FakeLine) -> None:
    fake_line.executor = DisturbedExecutor("measure", "compare")
    first = tune()
    assert first.state is SessionState.INTERRUPTED
    assert not first.is_measured
    assert first.best is not None
    assert first.best.status is Status.NOISY
    assert any("too noisy to tell which finalist is the fastest" in text for text in first.messages)
    measured_then = len(fake_line.executor.done["measure"])
    fake_line.executor = FakeExecutor()
    second = tune()
    assert not second.from_database
    assert second.state is SessionState.COMPLETE
    assert len(fake_line.executor.done["lower"]) == 0, "what was predicted holds"
    assert len(fake_line.executor.done["measure"]) >= min(measured_then, 16)
    assert second.best is not None
    assert second.best.status is Status.VERIFIED
    assert tune().from_database


def test_a_noisy_comparison_is_made_again(fake_line: FakeLine) -> None:
    fake_line.executor = DisturbedExecutor("compare")
    first = tune()
    assert first.state is SessionState.INTERRUPTED
    assert first.decision is None
    assert first.best is not None
    assert first.best.status is Status.VERIFIED, "a clean time of its own stays"
    fake_line.executor = FakeExecutor()
    assert tune().state is SessionState.COMPLETE
    assert fake_line.executor.done["measure"] == []
    assert fake_line.executor.done["compare"]


def test_a_noisy_vendor_time_is_taken_again(fake_line: FakeLine) -> None:
    fake_line.executor = DisturbedExecutor("vendor")
    first = tune()
    assert first.is_noisy
    assert any("a vendor's time is noisy" in text for text in first.messages)
    fake_line.executor = FakeExecutor()
    assert not tune().is_noisy
    assert tune().from_database


def test_noise_never_replaces_a_clean_winner(fake_line: FakeLine) -> None:
    clean = tune()
    fake_line.executor = DisturbedExecutor("measure", "compare", "vendor")
    tune(remeasure=True)
    fake_line.executor = FakeExecutor()
    with open_store(load_settings().database_url) as store:
        [winner] = store.winners(clean.context, {})
    assert clean.best is not None
    assert winner.config == clean.best.config
    assert winner.latency_us == clean.best.measured_us


def test_remeasure_takes_all_times_again(fake_line: FakeLine) -> None:
    first = tune()
    fake_line.executor = FakeExecutor()
    again = tune(remeasure=True)
    assert not again.from_database
    assert fake_line.executor.done["lower"] == []
    assert {t.config for t in first.trials if t.measured_us} <= set(fake_line.executor.done["measure"])
    assert tune().from_database
