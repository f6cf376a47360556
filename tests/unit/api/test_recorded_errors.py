"""On a processor, predictions are as uncertain as those on record were wrong."""

from __future__ import annotations

import math

import pytest

import tilesight
from tilesight.api.engine import Engine
from tilesight.costmodel import default_model
from tilesight.costmodel.recorded_errors import RecordedErrorsModel
from tilesight.database import open_store
from tilesight.machine.placement import locate
from tilesight.settings import load_settings
from tilesight.target.spec import load_target


@pytest.mark.usefixtures("fake_line")
def test_without_measurements_the_model_is_the_shipped_one() -> None:
    with Engine(locate("cpu", measures=False)) as engine:
        assert not isinstance(engine.model, RecordedErrorsModel)


@pytest.mark.usefixtures("fake_line")
def test_measured_times_of_this_processor_count() -> None:
    (session,) = tilesight.tune("axpy", target="cpu", shape="X0")
    device, version = session.context.device, session.context.model
    with open_store(load_settings().database_url) as store:
        errors = store.model_errors(version, load_target("cpu"), device)
        assert store.model_errors("another model", load_target("cpu"), device) == ()
        assert store.model_errors(version, load_target("h100"), device) == ()
        assert store.model_errors(version, load_target("cpu"), "another processor") == ()
    seen = [
        abs(math.log(t.measured_us / t.prediction.latency_us))
        for t in session.trials
        if t.measured_us and t.prediction
    ]
    assert sorted(errors) == pytest.approx(sorted(seen))
    assert errors


@pytest.mark.usefixtures("fake_line")
def test_an_engine_takes_them(monkeypatch: pytest.MonkeyPatch) -> None:
    (session,) = tilesight.tune("axpy", target="cpu", shape="X0")
    monkeypatch.setattr("tilesight.machine.devices.cpu_name", lambda: session.context.device)
    monkeypatch.setattr("tilesight.costmodel.default_model", lambda: _Versioned(session.context.model))
    with Engine(locate("cpu", measures=False)) as engine:
        assert isinstance(engine.model, RecordedErrorsModel)
        assert engine.model.version == session.context.model


class _Versioned:
    def __init__(self, version: str) -> None:
        self.version = version
        self.predict = default_model().predict
