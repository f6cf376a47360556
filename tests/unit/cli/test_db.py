"""`tilesight db`, run as a user runs it."""

from __future__ import annotations

import json
import os
import re
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from tests.unit.conftest import Terminal
from tests.unit.database import samples
from tests.unit.database.stocked import add_session
from tilesight.cli.db import db
from tilesight.cli.db.why import today
from tilesight.cli.main import main
from tilesight.database import open_store
from tilesight.database.schema.tables import HEAD
from tilesight.errors import DatabaseError, FailureKind, InputError, TileSightError
from tilesight.problem.space import Census
from tilesight.problem.workload import Workload
from tilesight.records.session import Baseline, Effort, SessionState
from tilesight.records.trial import TrialRecord

Run = Callable[..., Result]
PAGE = (Path(__file__).resolve().parents[3] / "docs" / "database.md").read_text(encoding="utf-8")


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path, context = tmp_path / "x.db", samples.context()
    with open_store(samples.empty_database(path)) as store:
        session_id = store.begin(
            context, Effort.QUICK, 0, {}, Census(9, 9, {}), flops=2_000_000_000, min_bytes=30_000_000
        )
        store.record_many(
            session_id,
            context,
            [samples.verified(1, 12.5), samples.predicted(2), samples.failed(3, FailureKind.RUN_ERROR)],
        )
        store.record_baselines(session_id, [Baseline("cuBLAS", (11.0,))])
        store.finish(session_id, SessionState.COMPLETE)
        elsewhere = samples.context(target="h100", target_fingerprint="h", device="")
        store.record(
            store.begin(elsewhere, Effort.PREDICT, 0, {}, Census(9, 9, {})),
            elsewhere,
            samples.predicted(1, 7.5),
        )
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
    assert (found["database"], found["exists"], found["revision"]) == (str(file), True, HEAD)
    assert found["trials"] == {"failed": 1, "predicted": 2, "verified": 1}
    assert found["sessions"] == {"complete": 1, "running": 1}
    assert found["tables"]["trials"] == 4


def test_status_of_a_database_that_is_not_there(run: Run, tmp_path: Path) -> None:
    result = run("status", "--db", tmp_path / "none.db")
    assert (result.exit_code, result.output) == (
        0,
        f"no database at {tmp_path}/none.db yet; `tilesight tune` makes it\n",
    )
    assert json.loads(run("status", "--json", "--db", tmp_path / "none.db").output)["exists"] is False
    assert not (tmp_path / "none.db").exists()


@pytest.mark.parametrize(
    "command",
    [
        ["best"],
        ["query", "SELECT 1"],
        ["export", "out.csv"],
        ["export", "out.jsonl", "--everything"],
        ["export", "out.json"],
        ["backup", "out.db"],
        ["check"],
        ["gc"],
        ["why", "axpy", "--target", "cpu"],
    ],
    ids=" ".join,
)
@pytest.mark.usefixtures("fake_line")
def test_reading_makes_no_database(run: Run, tmp_path: Path, command: list[str]) -> None:
    result = run(*command, "--db", tmp_path / "none.db")
    assert isinstance(result.exception, DatabaseError)
    assert not (tmp_path / "none.db").exists()


def test_best_as_a_table(run: Run, terminal: Terminal) -> None:
    terminal(100)
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


def test_best_by_size_and_with_what_is_open(run: Run, tmp_path: Path, terminal: Terminal) -> None:
    terminal(100)
    assert "dynamic" not in run("best").output
    with open_store(samples.empty_database(tmp_path / "sizes.db")) as store:
        for m in (10, 1, 2):
            workload = Workload("matmul", {"m": m, "n": 8, "k": 8}, "bfloat16")
            add_session(
                store,
                samples.context(workload=workload, dynamic=("k", "m") if m == 2 else ()),
                samples.verified(1, 10.0 + m),
            )
    text = run("best", "--db", tmp_path / "sizes.db").output
    assert max(map(len, text.splitlines())) <= 100
    assert text.split()[:4] == ["workload", "target", "dynamic", "status"]
    assert [line.split()[2] for line in text.splitlines() if "verified" in line] == [
        "verified",
        "k,m",
        "verified",
    ]
    assert re.findall(r"^matmul\(m=(\d+),", text, re.MULTILINE) == ["1", "2", "10"]
    assert "dynamic: dimensions that the kernel takes at run time" in text
    found = json.loads(run("best", "--db", tmp_path / "sizes.db", "--json").output)["best"]
    assert [row["latency_us"] for row in found] == [11.0, 12.0, 20.0]


def test_best_marks_times_that_were_taken_alone(run: Run, tmp_path: Path) -> None:
    file = tmp_path / "turns.db"

    def timed(number: int, us: float, *, in_turns: bool) -> TrialRecord:
        found = samples.verified(number, us)
        assert found.measurement is not None
        observed = {"in_turns": 1.0} if in_turns else {}
        return replace(found, measurement=replace(found.measurement, observed=observed))

    with open_store(samples.empty_database(file)) as store:
        for m, us, in_turns in ((1, 11.0, False), (2, 12.0, False)):
            workload = Workload("matmul", {"m": m, "n": 8, "k": 8}, "bfloat16")
            add_session(store, samples.context(workload=workload), timed(1, us, in_turns=in_turns))
        assert "*" not in run("best", "--db", file).output  # one kind of time
        workload = Workload("matmul", {"m": 3, "n": 8, "k": 8}, "bfloat16")
        trials = timed(1, 13.0, in_turns=True), timed(2, 14.0, in_turns=False)
        add_session(store, samples.context(workload=workload), *trials)
    lines = run("best", "--db", file).output.splitlines()
    shown = {m: next(line for line in lines if line.startswith(f"matmul(m={m},")) for m in (1, 2, 3)}
    assert [("11.00 *" in shown[1]), ("12.00 *" in shown[2]), ("13.00 *" in shown[3])] == [True, True, False]
    assert "* timed alone; the other times are of finalists that were timed in turns" in lines
    found = json.loads(run("best", "--db", file, "--json").output)["best"]
    assert [row["in_turns"] for row in found] == [False, False, True]


def test_best_of_a_shape_with_a_very_long_number(run: Run, file: Path) -> None:
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("UPDATE workloads SET name = ?", ("7" * 5000,))
    assert "7" * 5000 in run("best").output
    assert run("best").exit_code == 0


@pytest.mark.parametrize("width", [20, 40, 60, 100])
@pytest.mark.parametrize(
    "command", [["best"], ["status"], ["query", "SELECT * FROM records"], ["query", "SELECT * FROM best"]]
)
def test_tables_of_the_database_can_be_read_at_any_width(
    run: Run, terminal: Terminal, command: list[str], width: int
) -> None:
    rows = len(json.loads(run(*command, "--json").output).get("rows", [1, 1]))
    piped = run(*command).output.splitlines()
    assert command == ["status"] or len(piped) == 1 + rows
    terminal(width)
    lines = run(*command).output.splitlines()
    assert max(len(line) for line in lines if not line.startswith("database")) <= width
    if command != ["status"]:
        assert any("bfloat16" in line for line in lines)


def test_best_as_json(run: Run) -> None:
    result = json.loads(run("best", "matmul", "--target", "h200", "--json").output)
    assert result["kind"] == "db_best"
    (found,) = result["best"]
    assert (found["status"], found["latency_us"], found["vendor_us"]) == ("verified", 12.5, 11.0)
    assert found["config"] == dict(samples.config(1))
    assert isinstance(run("best", "matmuL2").exception, InputError)


def test_best_of_a_database_without_records(run: Run, tmp_path: Path) -> None:
    open_store(str(tmp_path / "new.db")).close()
    assert (
        run("best", "--db", tmp_path / "new.db").output
        == "nothing is recorded yet; `tilesight tune KERNEL` records trials\n"
    )
    assert json.loads(run("best", "--json", "--db", tmp_path / "new.db").output)["best"] == []


def test_query(run: Run) -> None:
    assert run("query", "SELECT 1 AS one, NULL AS empty, 'x' AS text").output.split() == [
        "one",
        "empty",
        "text",
        "1",
        "x",
    ]
    sql = "SELECT 1.5 AS a, NULL AS b, 9e999 AS c, x'00ff' AS d, 'e' AS e"
    found = json.loads(run("query", sql, "--json").output)
    assert (found["kind"], found["columns"]) == ("db_query", ["a", "b", "c", "d", "e"])
    assert found["rows"] == [{"a": 1.5, "b": None, "c": None, "d": "00ff", "e": "e"}]
    assert isinstance(run("query", "DROP TABLE trials").exception, InputError)


def test_an_endless_query_ends(run: Run) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n"
    refused = run("query", endless, "--timeout", "0.3").exception
    assert isinstance(refused, InputError)
    assert "took longer than 0.3 s and was ended" in str(refused)
    for wrong in ("nan", "0", "inf"):
        assert "must be above 0" in str(run("query", "SELECT 1", "--timeout", wrong).exception)


def test_values_cannot_play_with_the_terminal(run: Run) -> None:
    output = run("query", r"SELECT '[bold]kept[/bold]' AS a, 'x' || char(27) || '[2J' AS b").output
    assert "[bold]kept[/bold]" in output
    assert "\x1b" not in output


def test_export(run: Run, tmp_path: Path) -> None:
    result = run("export", tmp_path / "out.jsonl")
    assert result.output == f"4 rows of records written to {tmp_path}/out.jsonl\n"
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 4
    assert run("export", tmp_path / "failures.csv", "--view", "failures").output.startswith(
        "1 rows of failures"
    )
    assert isinstance(run("export", tmp_path / "out.xlsx").exception, InputError)


# ---- files


def test_everything_out_and_in_again(run: Run, tmp_path: Path) -> None:
    rows = json.loads(run("export", tmp_path / "all.jsonl", "--everything", "--json").output)["rows"]
    assert (
        f"{rows} rows of everything written to"
        in run("export", tmp_path / "all.jsonl", "--everything").output
    )
    new = tmp_path / "new.db"
    found = json.loads(run("import", tmp_path / "all.jsonl", "--trust", "--db", new, "--json").output)
    assert (found["trusted"], found["origin"], sum(found["written"].values())) == (True, "", rows)
    again = run("import", tmp_path / "all.jsonl", "--trust", "--db", new).output
    assert " ".join(again.split()).endswith("nothing is new: all of it was here already")
    assert json.loads(run("best", "--db", new, "--json").output) == json.loads(run("best", "--json").output)


def test_an_import_is_marked_and_said_to_be(run: Run, tmp_path: Path) -> None:
    run("export", tmp_path / "all.jsonl", "--everything")
    output = run("import", tmp_path / "all.jsonl", "--origin", "lab 3").output
    assert "marked as imported from 'lab 3': views show it, and nothing here is decided by it" in output
    text = run("best").output
    assert "h200 (imported)" in text
    assert "rows of targets marked '(imported)' were imported and are not used here" in text
    assert "h200 (imported)" not in run("best", "--target", "h200").output
    removed = json.loads(run("gc", "--imported", "--dry-run", "--json", "--db", _idle(tmp_path, run)).output)
    assert removed["dry_run"] is True


def _idle(tmp_path: Path, run: Run) -> Path:
    """The same database without the session that still runs."""
    run("export", tmp_path / "idle.jsonl", "--everything")
    run("import", tmp_path / "idle.jsonl", "--trust", "--db", tmp_path / "idle.db")
    return tmp_path / "idle.db"


def test_t4_out_and_in_again(run: Run, tmp_path: Path) -> None:
    assert run("export", tmp_path / "x.json").output == f"2 rows of T4 written to {tmp_path}/x.json\n"
    assert "marked as imported from 'x.json'" in run("import", tmp_path / "x.json").output
    document = json.loads((tmp_path / "x.json").read_text())
    del document["tilesight"]
    (tmp_path / "theirs.json").write_text(json.dumps(document))
    assert "--kernel K --shape S" in str(run("import", tmp_path / "theirs.json").exception)
    assert "--shape, --target, --device missing" in str(
        run("import", tmp_path / "theirs.json", "--kernel", "matmul").exception
    )
    about = ["--kernel", "matmul", "--shape", "M0", "--target", "h200", "--device", "NVIDIA H200"]
    assert run("import", tmp_path / "theirs.json", *about).exit_code == 0
    (row,) = json.loads(
        run("query", "SELECT dims FROM records WHERE template = 't4' LIMIT 1", "--json").output
    )["rows"]
    assert json.loads(row["dims"])["m"] == 4096


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["export", "x.jsonl", "--everything", "--view", "best"],
            "--view and --everything exclude each other",
        ),
        (["export", "x.json", "--view", "best"], "--view and a .json file (T4) exclude each other"),
        (
            ["export", "x.csv", "--session", "7"],
            "--session is for T4; name a file that ends in .json, not '.csv'",
        ),
        (["export", "x.json", "--session", "7"], "session 7 is not in this database"),
        (["export", "x.csv", "--everything"], "written as JSON lines"),
        (["import", "x.json", "--trust"], "--trust is for files of `tilesight db export --everything`"),
        (["import", "x.jsonl", "--trust", "--origin", "me"], "--trust and --origin exclude each other"),
        (["import", "x.jsonl", "--shape", "M0"], "--shape is for T4 files"),
        (["import", "none.jsonl"], "name a file that can be read"),
        (["gc", "--predictions-older-than", "-1"], "must be a number of days"),
        (["why", "matmull"], "did you mean matmul"),
        (["why", "matmul", "--target", "h200", "--dynamic", "z"], "unknown matmul dimension 'z'"),
    ],
)
def test_wrong_input(run: Run, arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert isinstance(result.exception, InputError), result.output
    assert message in str(result.exception)


# ---- upkeep


def test_merge(run: Run, tmp_path: Path) -> None:
    other = _idle(tmp_path, run)
    found = json.loads(run("merge", other, "--json", "--db", tmp_path / "new.db").output)
    assert found["merged"][0]["database"] == str(other)
    assert found["merged"][0]["written"]["trials"] == 4
    assert "nothing is new" in run("merge", other, "--db", tmp_path / "new.db").output
    missing = run("merge", tmp_path / "none.db").exception
    assert isinstance(missing, DatabaseError)
    assert "none.db' is not there; repair it, or leave it out" in str(missing)


def test_backup(run: Run, tmp_path: Path) -> None:
    size = json.loads(run("backup", tmp_path / "safe.db", "--json").output)["size_bytes"]
    assert size == (tmp_path / "safe.db").stat().st_size
    assert run("best", "--db", tmp_path / "safe.db").output == run("best").output
    assert (
        run("backup", tmp_path / "safe.db").output == f"{size / 1e6:.1f} MB written to {tmp_path}/safe.db\n"
    )


def test_gc(run: Run, tmp_path: Path) -> None:
    assert "runs on" in str(run("gc").exception)  # a session of this very process
    idle = _idle(tmp_path, run)
    assert run("gc", "--db", idle).output == "nothing to remove\n"
    options = ["--predictions-older-than", "0", "--db", idle]
    text = run("gc", "--dry-run", *options).output
    assert "old predictions" in text
    assert text.endswith("rows would be removed; run it without --dry-run to remove them\n")
    found = json.loads(run("gc", *options, "--json").output)
    assert found["removed"]["old predictions"] == {"trials": 2, "sessions": 1}
    assert found["space_kept"] == ""
    assert run("gc", *options).output == "nothing to remove\n"


def test_gc_says_where_space_is_not_given_back(run: Run, tmp_path: Path) -> None:
    idle = _idle(tmp_path, run)
    with closing(sqlite3.connect(idle, isolation_level=None)) as other:
        other.execute("BEGIN")
        assert other.execute("SELECT COUNT(*) FROM trials").fetchone()[0]
        text = " ".join(run("gc", "--predictions-older-than", "0", "--db", idle).output.split())
    assert "rows removed" in text
    assert "space is not given back yet" in text
    assert text.endswith("The next `tilesight db gc` gives it back")


def test_check(run: Run, file: Path) -> None:
    result = run("check")
    assert (result.exit_code, result.output.splitlines()[-1]) == (0, "all is well")
    with closing(sqlite3.connect(file)) as other, other:
        other.execute("UPDATE trials SET status = 'splendid' WHERE status = 'verified'")
    result = run("check")
    assert result.exit_code == 4
    assert "'splendid'" in " ".join(result.output.split())
    assert "restore a backup" in result.output
    found = json.loads(run("check", "--json").output)
    assert (found["ok"], len(found["faults"])) == (False, 1)
    assert run("check", "--json").exit_code == 4


@pytest.mark.usefixtures("fake_line")
def test_why(run: Run, file: Path, terminal: Terminal) -> None:
    terminal(100)
    asked = ["why", "axpy", "--target", "cpu"]
    assert "nothing else is recorded for this kernel" in run(*asked).output
    context, _ = today("axpy", "cpu", None, None, "default", ())
    with open_store(str(file)) as store:
        session_id = store.begin(context, Effort.QUICK, 0, {}, Census(9, 9, {}))
        store.record(session_id, context, samples.verified(1, 12.5))
        store.finish(session_id, SessionState.COMPLETE)
    text = run(*asked).output
    assert f"answered: effort quick and below, by session {session_id}" in text
    assert "re-used: 1 predictions, 1 builds, 1 measurements, 0 failures" in " ".join(text.split())
    shape = ",".join(f"{name}={2 * size}" for name, size in context.workload.dims.items())
    other = run(*asked, "--shape", shape).output
    assert "not answered" in other
    assert f"near: session {session_id}" in other
    assert "another problem" in " ".join(other.split())
    assert max(map(len, other.splitlines())) <= 100
    refused = run(*asked, "--dynamic", next(iter(context.workload.dims)))
    assert "cannot be dynamic in" in str(refused.exception)
    found = json.loads(run(*asked, "--json").output)
    assert found["answers"][0]["session_id"] == session_id
    assert found["context"]["template_version"] == context.template_version


def test_layers_are_shown_and_asked(
    run: Run, file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TILESIGHT_LAYERS", str(file))
    own = tmp_path / "own.db"
    open_store(str(own)).close()
    assert f"layer     {file}: 1 failed, 2 predicted, 1 verified" in run("status", "--db", own).output
    found = json.loads(run("status", "--db", own, "--json").output)
    assert found["layers"] == [
        {"layer": str(file), "layer_trials": {"failed": 1, "predicted": 2, "verified": 1}}
    ]
    assert "12.50" in run("best", "--db", own).output
    monkeypatch.setenv("TILESIGHT_LAYERS", str(tmp_path / "none.db"))
    assert "take it out of TILESIGHT_LAYERS" in str(run("best", "--db", own).exception)


# ---- docs/database.md


def test_every_command_and_option_is_documented() -> None:
    for name, command in db.commands.items():
        assert f"`db {name}" in PAGE, name
        for parameter in command.params:
            for option in parameter.opts if isinstance(parameter, click.Option) else ():
                assert option in ("--debug", "--json") or option in PAGE, (name, option)


@pytest.mark.usefixtures("fake_line")
def test_json_fields_are_documented(run: Run, tmp_path: Path) -> None:
    table = dict(re.findall(r"^\| `db \w+` \| `(\w+)` \| (.*) \|$", PAGE, re.MULTILINE))
    idle, lines = _idle(tmp_path, run), tmp_path / "idle.jsonl"
    session_id = run("query", "SELECT MAX(session_id) FROM trials").output.split()[-1]
    answers = [
        run(*command, "--json").output
        for command in (
            ["path"],
            ["status"],
            ["best"],
            ["query", "SELECT 1 AS one"],
            ["why", "axpy", "--target", "cpu"],
            ["misses"],
            ["plans"],
            ["export", tmp_path / "x.csv"],
            ["import", lines],
            ["merge", idle],
            ["backup", tmp_path / "b.db"],
            ["gc", "--db", idle],
            ["check"],
            ["optuna", str(session_id), "-o", tmp_path / "study.log"],
            ["datasette", "-o", tmp_path / "metadata.json"],
        )
    ]
    found = {answer.pop("kind"): answer for answer in map(json.loads, answers)}
    assert set(found) == set(table)
    for kind, answer in found.items():
        for field in set(answer) - {"schema_version"}:
            assert f"`{field}`" in table[kind], (kind, field)
        for part in (
            member
            for value in answer.values()
            if isinstance(value, list)
            for member in value
            if isinstance(member, dict)
        ):
            for field in part if kind != "db_query" else ():
                assert f"`{field}`" in table[kind], (kind, field)


# ---- unclean ends


@pytest.mark.usefixtures("run")
def test_file_names_that_are_not_utf8(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every command that takes a file: it is done, or refused in one line."""
    odd = str(tmp_path / os.fsdecode(b"\xff\xfe"))
    other = f"{odd}.db"

    def tell(code: int, *arguments: str) -> str:
        with pytest.raises(SystemExit) as stopped:
            main(["db", *arguments])
        told = capsys.readouterr()
        assert stopped.value.code == code, told
        assert len(told.err.splitlines()) == bool(code), told
        return told.out

    tell(0, "backup", other)
    tell(0, "backup", other)
    for ending in (".csv", ".jsonl", ".json"):
        assert tell(0, "export", odd + ending)
    tell(0, "export", f"{odd}.jsonl", "--everything")
    assert json.loads(tell(0, "export", f"{odd}.jsonl", "--everything", "--json"))["file"] == f"{odd}.jsonl"
    new = str(tmp_path / os.fsdecode(b"\xfd.db"))
    tell(0, "import", f"{odd}.jsonl", "--db", new)
    tell(0, "import", f"{odd}.jsonl", "--trust", "--db", new)
    tell(0, "import", f"{odd}.json", "--db", new)
    tell(0, "merge", other, "--db", str(tmp_path / "merged.db"))
    for command in (["path"], ["status"], ["best"], ["query", "SELECT 1"], ["check"]):
        for name in (other, f"sqlite:///{other}"):
            assert tell(0, *command, "--db", name)
    monkeypatch.setenv("TILESIGHT_LAYERS", other)
    assert "layer" in tell(0, "status")
    monkeypatch.delenv("TILESIGHT_LAYERS")
    tell(2, "import", f"{odd}none.jsonl")
    tell(2, "import", f"{odd}none.json")
    tell(2, "export", f"{odd}.xlsx")
    tell(2, "export", f"{odd}/x.csv")
    tell(2, "backup", f"{odd}/x.db")
    tell(4, "merge", f"{odd}none.db")
    for command in (["best"], ["query", "SELECT 1"], ["check"], ["gc"], ["export", "x.csv"]):
        tell(4, *command, "--db", f"{odd}none.db")
    assert file.exists()


DAMAGED = {
    "a trial state that does not exist": "UPDATE trials SET status = 'splendid'",
    "a kind that does not exist": "UPDATE failure_reasons SET kind = 'splendid'",
    "bytes for a kind": "UPDATE failure_reasons SET kind = x'ff'",
    "bytes for a config": "UPDATE candidates SET config = x'ff'",
    "versions that are a list": "UPDATE software SET versions = '[]'",
    "deep versions": f"UPDATE software SET versions = '{'[' * 3000 + ']' * 3000}'",
    "deep dimensions": f"UPDATE workloads SET dims = '{'[' * 100_000}'",
    "a winner without a time": "UPDATE trials SET measured_us = NULL",
    "times that are text": "UPDATE measurements SET latency_us = 'fast'",
    "moments that are none": "UPDATE trials SET recorded_at = 'never'",
    "moments of the year 9999": "UPDATE trials SET recorded_at = '9999-12-31 23:59:59.999999'",
    "moments of the year 1": "UPDATE sessions SET started_at = '0001-01-01 00:00:00.000000'",
    "an observation that is a list": "UPDATE measurements SET observed = '[1]'",
    "a decision that is none": "UPDATE sessions SET decision = '[]'",
}


@pytest.mark.usefixtures("fake_line")
@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_database_ends_no_command_with_a_traceback(run: Run, tmp_path: Path, name: str) -> None:
    idle = _idle(tmp_path, run)
    with closing(sqlite3.connect(idle)) as other, other:
        session_id = str(other.execute("SELECT MAX(session_id) FROM trials").fetchone()[0])
        other.execute(DAMAGED[name])
    for command in (
        ["status"],
        ["best"],
        ["best", "--json"],
        ["why", "axpy", "--target", "cpu"],
        ["why", "matmul", "--target", "cpu"],
        ["export", tmp_path / "x.csv"],
        ["export", tmp_path / "x.jsonl", "--everything"],
        ["export", tmp_path / "x.json"],
        ["query", "SELECT * FROM best"],
        ["gc", "--dry-run"],
        ["datasette", "-o", tmp_path / "metadata.json"],
        ["optuna", session_id, "-o", tmp_path / "study.log"],
        ["check"],
    ):
        found = run(*command, "--db", idle)
        if command == ["check"]:
            far = "moments of the year"
            assert (found.exit_code, found.exception) == (
                (4, found.exception) if far not in name else (0, None)
            )
        elif found.exception is not None:
            assert isinstance(found.exception, TileSightError), (command, found.exception)
            assert found.exception.exit_code in (2, 4)
            assert "\n" not in str(found.exception)
