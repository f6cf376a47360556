"""`tilesight db datasette`: the metadata describe every table and column, Datasette takes them, and every
query runs.
"""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from tests.support.page_sessions import HOSTILE, record, recorded_session
from tests.unit.cli.test_commands import Shell
from tilesight.database import open_store, query
from tilesight.database.exchange.datasette_metadata import columns_of_all, metadata
from tilesight.database.schema import tables as schema
from tilesight.database.schema.descriptions import COLUMNS, DESCRIPTIONS, QUERIES
from tilesight.database.schema.views import VIEWS

PARAMETER = re.compile(r":(\w+)")


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """A database with three sessions, and the id of one."""
    file = tmp_path_factory.mktemp("datasette") / "performance.db"
    url = f"sqlite:///{file}"
    record(recorded_session(20, 4, HOSTILE), url)
    record(recorded_session(20, 0), url)
    return file, record(recorded_session(40, 12), url)


def test_every_table_view_and_column_is_described() -> None:
    columns = columns_of_all()
    assert set(columns) == {*VIEWS, *schema.metadata.tables} == set(DESCRIPTIONS)
    used = {column for view in VIEWS for column in columns[view]}
    assert set(COLUMNS) - used == set()
    shown = metadata("x")["databases"]["x"]["tables"]
    for table, names in columns.items():
        assert list(shown[table]["columns"]) == names
        assert all(shown[table]["columns"].values())
        assert set(DESCRIPTIONS[table].columns) <= set(names), table


def test_the_columns_are_those_of_a_database(filled: tuple[Path, int]) -> None:
    columns = columns_of_all()
    with open_store(str(filled[0]), read_only=True) as store:
        for name in DESCRIPTIONS:
            assert sorted(query(store, f"SELECT * FROM {name} LIMIT 0")[0]) == sorted(columns[name])


def given(sql: str, session_id: int) -> dict[str, str]:
    values = {"shape": "M4", "session": str(session_id)}
    return {name: values[name] for name in PARAMETER.findall(sql)}


@pytest.mark.parametrize("name", QUERIES)
def test_every_query_runs_and_finds_something(filled: tuple[Path, int], name: str) -> None:
    sql = QUERIES[name].sql
    for parameter, value in given(sql, filled[1]).items():
        sql = sql.replace(f":{parameter}", f"'{value}'")
    with open_store(str(filled[0]), read_only=True) as store:
        columns, rows = query(store, sql)
    assert len(set(columns)) == len(columns)
    assert rows or name == "costly_misses"


def test_datasette_shows_the_database_with_it(filled: tuple[Path, int]) -> None:
    from datasette.app import Datasette

    file, session_id = filled

    async def visit() -> dict[str, Any]:
        shown = Datasette(files=[str(file)], metadata=metadata("performance"))
        await shown.invoke_startup()
        paths = [
            "/",
            "/performance",
            *(f"/performance/{name}?_size=5" for name in [*VIEWS, "sessions", "builds"]),
        ]
        paths += [
            f"/performance/{name}.json?{urlencode(given(found.sql, session_id))}"
            for name, found in QUERIES.items()
        ]
        return {path: await shown.client.get(path) for path in paths}

    answers = asyncio.run(visit())
    assert {path: a.status_code for path, a in answers.items() if a.status_code != 200} == {}
    assert "TileSight performance database" in answers["/"].text
    listed = answers["/performance"].text
    assert all(found.title.replace("'", "&#39;") in listed for found in QUERIES.values())
    records = answers["/performance/records?_size=5"].text
    assert DESCRIPTIONS["records"].text in records
    assert COLUMNS["limiting"] in records
    assert "<img src=x" not in records
    fastest = next(answer for path, answer in answers.items() if "fastest_of_a_workload" in path).json()
    assert fastest["columns"][:2] == ["place", "target"]
    assert fastest["rows"][0][0] == 1


def test_the_command_writes_the_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    shell = Shell(capsys)
    code, out, _ = shell("db", "datasette", "--db", "runs.db")
    assert (code, out) == (0, "metadata of database 'runs' written to metadata.json\n")
    assert list(json.loads(Path("metadata.json").read_text(encoding="utf-8"))["databases"]) == ["runs"]
    answer = json.loads(shell("db", "datasette", "--db", "runs.db", "-o", "metadata.json", "--json")[1])
    assert (answer["kind"], answer["out"], answer["database"]) == ("db_datasette", "metadata.json", "runs")
    assert not Path("runs.db").exists()


def test_what_cannot_be_written_is_one_line(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    shell = Shell(capsys)
    Path("mine.json").write_text('{"title": "mine"}', encoding="utf-8")
    for arguments, words in (
        (("--db", "postgresql://me:secret@host/x"), "is no SQLite file, and Datasette shows no others"),
        (("--db", "runs.db", "--out", "mine.json"), "is there and no metadata of TileSight"),
        (("--db", "runs.db", "--out", "x.yaml"), "must end in .json"),
        (("--db", "runs.db", "--out", "none/x.json"), "there is no folder 'none'"),
    ):
        code, out, err = shell("db", "datasette", *arguments)
        assert (code, out) == (2, "")
        assert words in err
        assert "secret" not in err
    assert [path.name for path in tmp_path.iterdir()] == ["mine.json"]
