"""Fixtures of the planning tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from .rows_line import RowsExecutor, RowsModel, RowsTemplate


class RowsLine:
    """What `rows_line` put in place: the executor that the next call gets."""

    def __init__(self) -> None:
        self.executor = RowsExecutor()

    def make_executor(self, *_: object, **__: object) -> RowsExecutor:
        return self.executor


@pytest.fixture
def rows_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> RowsLine:
    """The kernel `rows`, whose times follow a formula, and a database of its own."""
    line, template = RowsLine(), RowsTemplate()
    monkeypatch.setattr("tilesight.kernels._registry", lambda: ({"rows": template.operator}, {"rows": template}))
    monkeypatch.setattr("tilesight.executor.LocalExecutor", line.make_executor)
    monkeypatch.setattr("tilesight.kept.KeptExecutor", lambda inner, _store: inner)  # it keeps profiles itself
    monkeypatch.setattr("tilesight.costmodel.default_model", RowsModel)
    monkeypatch.setattr("tilesight.where.missing_compiler", lambda _target: None)
    monkeypatch.setattr("tilesight.where.find_devices", list)
    monkeypatch.setattr("tilesight.run.find_devices", list)
    monkeypatch.setenv("TILESIGHT_DB", f"sqlite:///{tmp_path}/performance.db")
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return line
