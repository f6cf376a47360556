"""A database and a kernel cache of their own for the tests of `autotune`; worker processes are shared."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.database.samples import empty_database
from tilesight.records.protocol import MeasurementProtocol
from tilesight.target.spec import Target


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, shared_executor: None) -> Path:  # noqa: ARG001
    monkeypatch.setenv("TILESIGHT_DB", empty_database(tmp_path / "performance.db"))
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TILESIGHT_WORKERS", "1")
    monkeypatch.setattr(MeasurementProtocol, "named", staticmethod(rough_protocol))
    monkeypatch.setattr(MeasurementProtocol, "careful", lambda protocol: protocol)
    return tmp_path


def rough_protocol(name: str, target: Target, named: Any = MeasurementProtocol.named) -> MeasurementProtocol:
    """On a processor a few short samples."""
    protocol: MeasurementProtocol = named(name, target)
    return protocol if target.is_gpu else replace(protocol, warmup_ms=1.0, max_ms=30.0, max_samples=8)


def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("no process may be started")

    monkeypatch.setattr("tilesight.executor.local.LocalExecutor", refuse)
