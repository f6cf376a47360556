"""Fixtures of the unit tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.additive_search import AdditiveSearch
from tests.support.fakes import AxpyTemplate, FakeExecutor, FakeModel
from tests.unit.database.samples import empty_database
from tilesight.executor.local import LocalExecutor

Terminal = Callable[[int], None]


@pytest.fixture(autouse=True, scope="module")
def additive_search() -> Iterator[None]:
    """Sessions and plans search without Optuna; `tests/contract/` has the tests of searches and of what they
    find.
    """
    with pytest.MonkeyPatch.context() as patch:
        for module in ("tuner.group_search", "planner.size_predictions"):
            patch.setattr(f"tilesight.{module}.Searcher", AdditiveSearch)
        yield


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """Makes standard output a terminal of so many columns."""

    def set_to(columns: int) -> None:
        monkeypatch.setattr("tilesight.cli.output._terminal_columns", lambda: columns)

    return set_to


@pytest.fixture(scope="session")
def session_executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalExecutor]:
    """One for all tests: its processes import TileLang and torch once, which takes seconds."""
    with LocalExecutor(1, tmp_path_factory.mktemp("cache")) as made:
        yield made


class SharedExecutor:
    """An executor that stays open when it is closed."""

    def __init__(self, executor: LocalExecutor) -> None:
        self._executor = executor

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def close(self) -> None: ...


@pytest.fixture
def shared_executor(monkeypatch: pytest.MonkeyPatch, session_executor: LocalExecutor) -> None:
    """Whatever makes a local executor gets `session_executor`."""
    monkeypatch.setattr(
        "tilesight.executor.local.LocalExecutor", lambda *_, **__: SharedExecutor(session_executor)
    )


class FakeLine:
    """The executor that `fake_line` gives to the next call, and how often one was made."""

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
    monkeypatch.setattr(
        "tilesight.kernels._registry", lambda: ({"axpy": template.operator}, {"axpy": template})
    )
    monkeypatch.setattr("tilesight.executor.local.LocalExecutor", line.make_executor)
    monkeypatch.setattr("tilesight.costmodel.default_model", lambda: line.model)
    monkeypatch.setattr("tilesight.machine.placement.missing_compiler", lambda _target: None)
    monkeypatch.setattr("tilesight.machine.placement.find_devices", list)
    monkeypatch.setattr("tilesight.api.sessions.find_devices", list)
    monkeypatch.setattr("tilesight.api.engine.notice_load", lambda *_: None)  # it watches the machine
    monkeypatch.setenv("TILESIGHT_DB", empty_database(tmp_path / "performance.db"))
    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path / "cache"))
    return line
