"""Fixtures of the planning tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.database.samples import empty_database
from tests.unit.planner.rows_line import RowsExecutor, RowsModel, RowsTemplate


class RowsLine:
    """Holds the executor of the next call."""

    def __init__(self) -> None:
        self.executor = RowsExecutor()

    def make_executor(self, *_: object, **__: object) -> RowsExecutor:
        return self.executor


@pytest.fixture
def rows_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RowsLine:
    """The kernel `rows`, whose times follow a formula, and a database of its own."""
    line, template = RowsLine(), RowsTemplate()
    monkeypatch.setattr(
        "tilesight.kernels._registry", lambda: ({"rows": template.operator}, {"rows": template})
    )
    monkeypatch.setattr("tilesight.executor.local.LocalExecutor", line.make_executor)
    monkeypatch.setattr(
        "tilesight.executor.caching_executor.CachingExecutor", lambda inner, _store: inner
    )  # it keeps profiles itself
    monkeypatch.setattr("tilesight.costmodel.default_model", RowsModel)
    monkeypatch.setattr("tilesight.machine.placement.missing_compiler", lambda _target: None)
    monkeypatch.setattr("tilesight.machine.placement.find_devices", list)
    monkeypatch.setattr("tilesight.api.sessions.find_devices", list)
    monkeypatch.setenv("TILESIGHT_DB", empty_database(tmp_path / "performance.db"))
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return line
