"""A call that what ships with TileSight answers: it says so, and everything else of it is as usual."""

from __future__ import annotations

from pathlib import Path

import pytest

import tilesight
from tests.support.fakes import FakeModel
from tests.unit.conftest import FakeLine
from tilesight.database import layers
from tilesight.records.session import SessionResult


def tune(**changes: object) -> SessionResult:
    return tilesight.tune("axpy", **{"target": "cpu", "shape": "X0", **changes})[0]  # type: ignore[arg-type]


@pytest.fixture
def shipped(fake_line: FakeLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> SessionResult:
    """A session of another machine, which ships. This one has another model and an empty database."""
    first = tune(database=str(tmp_path / "shipped.db"))
    monkeypatch.setattr(
        layers, "shipped_file", lambda name: tmp_path / name if (tmp_path / name).exists() else None
    )
    monkeypatch.setenv("TILESIGHT_SHIPPED", "1")
    fake_line.model = FakeModel()
    fake_line.model.version = "newer"
    return first


def test_it_answers_and_says_where_it_comes_from(fake_line: FakeLine, shipped: SessionResult) -> None:
    made = fake_line.executors_made
    found = tune()
    assert found.from_database
    assert fake_line.executors_made == made, "nothing is lowered, built or measured"
    assert found.best is not None
    assert shipped.best is not None
    assert (found.best.config, found.best.measured_us) == (shipped.best.config, shipped.best.measured_us)
    [message] = (text for text in found.messages if "ships with TileSight" in text)
    assert message.startswith("this answer ships with TileSight: measured on 20")
    assert ", 0 days ago, on " in message
    assert message.endswith("with the same software; --remeasure (in Python: remeasure=True) measures here")
    # what was measured elsewhere is not recorded as measured here
    assert (found.context.model, found.context.software) == ("fake-1", shipped.context.software)
    assert "ships with TileSight" in str(found)


@pytest.mark.usefixtures("shipped")
def test_a_greater_effort_and_a_wish_to_measure_are_not_answered(fake_line: FakeLine) -> None:
    made = fake_line.executors_made
    again = tune(remeasure=True)
    assert not again.from_database
    assert fake_line.executors_made == made + 1
    assert not any("ships with TileSight" in text for text in again.messages)
    assert not tune(effort="full").from_database
    # the own record comes first
    assert tune().context.model == "newer"
