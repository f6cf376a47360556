"""Fixtures of the unit tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.fakes import AxpyTemplate, FakeExecutor, FakeModel


class FakeLine:
    """What `fake_line` put in place: the executor that the next call gets, and how often one was asked for."""

    def __init__(self) -> None:
        self.executor = FakeExecutor()
        self.model = FakeModel()
        self.executors_made = 0

    def make_executor(self, *_: object, **__: object) -> FakeExecutor:
        self.executors_made += 1
        return self.executor


@pytest.fixture
def fake_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> FakeLine:
    """The kernel `axpy` with executor and model that answer from a formula, and a database of its own."""
    line, template = FakeLine(), AxpyTemplate()
    monkeypatch.setattr("tilesight.kernels._registry", lambda: ({"axpy": template.operator}, {"axpy": template}))
    monkeypatch.setattr("tilesight.executor.LocalExecutor", line.make_executor)
    monkeypatch.setattr("tilesight.costmodel.default_model", lambda: line.model)
    monkeypatch.setattr("tilesight.where.missing_compiler", lambda _target: None)
    monkeypatch.setattr("tilesight.where.find_devices", list)
    monkeypatch.setattr("tilesight.run.find_devices", list)
    monkeypatch.setenv("TILESIGHT_DB", f"sqlite:///{tmp_path}/performance.db")
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return line
