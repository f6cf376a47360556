"""A database and a kernel cache of their own, and worker processes that import TileLang and torch once for all tests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tilesight.executor import LocalExecutor


@pytest.fixture(scope="session")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalExecutor]:
    """One for all tests: its processes import TileLang and torch once."""
    with LocalExecutor(1, tmp_path_factory.mktemp("cache")) as made:
        yield made


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, executor: LocalExecutor) -> Path:
    monkeypatch.setattr("tilesight.executor.LocalExecutor", lambda *_, **__: Lent(executor))
    monkeypatch.setenv("TILESIGHT_DB", f"sqlite:///{tmp_path}/performance.db")
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))
    monkeypatch.setenv("TILESIGHT_WORKERS", "1")
    return tmp_path


class Lent:
    """An executor that is not closed after a call."""

    def __init__(self, executor: LocalExecutor) -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def close(self) -> None: ...


def no_work(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("no process may be started")

    monkeypatch.setattr("tilesight.executor.LocalExecutor", refuse)
