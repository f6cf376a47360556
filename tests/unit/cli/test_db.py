"""`tilesight db`, run as a user runs it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from tests.unit.database import samples
from tilesight.cli.db import db
from tilesight.database import open_store
from tilesight.errors import DatabaseError, FailureKind, InputError
from tilesight.session import Baseline, Effort, State
from tilesight.space import Census

Run = Callable[..., Result]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path, context = tmp_path / "x.db", samples.context()
    with open_store(samples.empty_database(path)) as store:
        session_id = store.begin(context, Effort.QUICK, 0, {}, Census(9, 9, {}), flops=2_000_000_000, min_bytes=30_000_000)
        store.record_many(session_id, context, [samples.verified(1, 12.5), samples.predicted(2), samples.failed(3, FailureKind.RUN_ERROR)])
        store.record_baselines(session_id, [Baseline("cuBLAS", (11.0,))])
        store.finish(session_id, State.COMPLETE)
        elsewhere = samples.context(target="h100", target_fingerprint="h", device="")
        store.record(store.begin(elsewhere, Effort.PREDICT, 0, {}, Census(9, 9, {})), elsewhere, samples.predicted(1, 7.5))
    return path


@pytest.fixture
def run(file: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Runs `tilesight db ...` on the database of `file`."""
    monkeypatch.setenv("TILESIGHT_DB", f"sqlite:///{file}")
    return lambda *arguments: CliRunner().invoke(db, [str(argument) for argument in arguments])


def test_path_is_the_file_alone(run: Run, file: Path) -> None:
    assert run("path").output == f"{file}\n"
    assert run("path", "--db", "sqlite:///rel.db").output == f"{Path.cwd() / 'rel.db'}\n"
    assert run("path", "--db", "postgresql://me:secret@host/x").output == "postgresql://me:***@host/x\n"


def test_status_counts(run: Run, file: Path) -> None:
    output = run("status").output
    assert f"database  {file}" in output
    assert "1 failed, 2 predicted, 1 verified" in output
    found = json.loads(run("status", "--json").output)
    assert (found["database"], found["exists"], found["revision"]) == (str(file), True, "0003")
    assert found["trials"] == {"failed": 1, "predicted": 2, "verified": 1}
    assert found["sessions"] == {"complete": 1, "running": 1}
    assert found["tables"]["trials"] == 4


def test_status_of_a_database_that_is_not_there(run: Run, tmp_path: Path) -> None:
    result = run("status", "--db", tmp_path / "none.db")
    assert (result.exit_code, result.output) == (0, f"no database at {tmp_path}/none.db yet; `tilesight tune` makes it\n")
    assert json.loads(run("status", "--json", "--db", tmp_path / "none.db").output)["exists"] is False
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize("command", [["best"], ["query", "SELECT 1"], ["export", "out.csv"]])
def test_reading_makes_no_database(run: Run, tmp_path: Path, command: list[str]) -> None:
    result = run(*command, "--db", tmp_path / "none.db")
    assert isinstance(result.exception, DatabaseError)
    assert not (tmp_path / "none.db").exists()


def test_best_as_a_table(run: Run) -> None:
    result = run("best")
    text = result.output
    assert max(map(len, text.splitlines())) <= 100
    h100, h200 = (next(line for line in text.splitlines() if target in line) for target in ("h100", "h200"))
    assert h100.index("predicted") < h100.index("7.500")
    assert [word for word in h200.split() if word in ("verified", "12.50", "160.0", "2400", "11.00")] == [
        "verified",
        "12.50",
        "160.0",
        "2400",
        "11.00",
    ]
    assert "block_m=1," in h200


def test_best_as_json(run: Run) -> None:
    result = json.loads(run("best", "matmul", "--target", "h200", "--json").output)
    assert result["kind"] == "db_best"
    (found,) = result["best"]
    assert (found["status"], found["latency_us"], found["vendor_us"]) == ("verified", 12.5, 11.0)
    assert found["config"] == dict(samples.config(1))
    assert isinstance(run("best", "matmuL2").exception, InputError)


def test_best_of_a_database_without_records(run: Run, tmp_path: Path) -> None:
    open_store(str(tmp_path / "new.db")).close()
    assert run("best", "--db", tmp_path / "new.db").output == "nothing is recorded yet; `tilesight tune KERNEL` records\n"
    assert json.loads(run("best", "--json", "--db", tmp_path / "new.db").output)["best"] == []


def test_query(run: Run) -> None:
    assert run("query", "SELECT 1 AS one, NULL AS empty, 'x' AS text").output.split() == ["one", "empty", "text", "1", "x"]
    sql = "SELECT 1.5 AS a, NULL AS b, 9e999 AS c, x'00ff' AS d, 'e' AS e"
    found = json.loads(run("query", sql, "--json").output)
    assert (found["kind"], found["columns"]) == ("db_query", ["a", "b", "c", "d", "e"])
    assert found["rows"] == [{"a": 1.5, "b": None, "c": None, "d": "00ff", "e": "e"}]
    assert isinstance(run("query", "DROP TABLE trials").exception, InputError)


def test_values_cannot_play_with_the_terminal(run: Run) -> None:
    output = run("query", r"SELECT '[bold]kept[/bold]' AS a, 'x' || char(27) || '[2J' AS b").output
    assert "[bold]kept[/bold]" in output
    assert "\x1b" not in output


def test_export(run: Run, tmp_path: Path) -> None:
    result = run("export", tmp_path / "out.jsonl")
    assert result.output == f"4 rows of records written to {tmp_path}/out.jsonl\n"
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 4
    assert run("export", tmp_path / "failures.csv", "--view", "failures").output.startswith("1 rows of failures")
    assert isinstance(run("export", tmp_path / "out.xlsx").exception, InputError)
