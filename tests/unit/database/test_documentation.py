"""docs/database.md: its SQL runs, and every table, view and column of a view is in it."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.database import samples
from tilesight.database import Store, export, open_store, query
from tilesight.database.schema import tables as schema
from tilesight.database.schema.views import VIEWS
from tilesight.problem.space import Census
from tilesight.records.session import Baseline, Effort, SessionState

PAGE = (Path(__file__).resolve().parents[3] / "docs" / "database.md").read_text(encoding="utf-8")
STATEMENTS = re.findall(r"^```sql\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    context = samples.context()
    with open_store(samples.empty_database(tmp_path / "performance.db")) as opened:
        session_id = opened.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {}), flops=1, min_bytes=1)
        opened.record(session_id, context, samples.verified(1, 10.0))
        opened.record_baselines(session_id, [Baseline("cuBLAS", (11.0,))])
        opened.finish(session_id, SessionState.COMPLETE)
        yield opened


def test_there_are_examples() -> None:
    assert len(STATEMENTS) >= 5


@pytest.mark.parametrize("statement", STATEMENTS, ids=lambda sql: sql.split("\n")[0][:40])
def test_example_runs(store: Store, statement: str) -> None:
    columns, _ = query(store, statement)
    assert columns


def test_python_example_runs(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(store.name).parent)
    names: dict[str, object] = {}
    for code in re.findall(r"^```py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL):
        exec(code, names)
    assert names["best"] == store.best()


def test_every_table_and_view_is_described() -> None:
    for name in [*schema.metadata.tables, *VIEWS]:
        assert f"`{name}`" in PAGE, name


@pytest.mark.parametrize("view", VIEWS)
def test_every_column_of_a_view_is_described(store: Store, view: str) -> None:
    columns, _ = query(store, f"SELECT * FROM {view}")
    assert [name for name in columns if f"`{name}`" not in PAGE] == []


def test_json_fields_of_best_are_described(store: Store, tmp_path: Path) -> None:
    for field in store.best()[0].__slots__:
        assert f"`{field}`" in PAGE
    assert export(store, tmp_path / "x.jsonl") == 1
