"""`tilesight report`: its subjects, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.page_sessions import record, recorded_session
from tests.unit.cli.documented import check_fields
from tests.unit.database.samples import empty_database
from tests.unit.pages import samples
from tilesight.api.kernel_files import FileProfiles
from tilesight.cli.main import main
from tilesight.dispatch.table.table_file import write_table
from tilesight.records.dataset import write_dataset
from tilesight.target.spec import load_target

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def session_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A recorded session, in the database that commands take."""
    url = empty_database(tmp_path / "performance.db")
    monkeypatch.setenv("TILESIGHT_DB", url)
    monkeypatch.chdir(tmp_path)
    return record(recorded_session(60, 12), url)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["report", *arguments])
    code = ended.value.code
    assert isinstance(code, int)
    return code


def written() -> set[str]:
    """The files here, without those in which SQLite keeps its log."""
    return {path.name for path in Path.cwd().iterdir() if not path.name.startswith("performance.db-")}


def refused(capsys: Captured, *arguments: str, code: int = 2) -> str:
    """The message of a call that writes nothing."""
    before = written()
    assert run(*arguments) == code
    assert written() == before
    return capsys.readouterr().err


def test_a_session(session_id: int, capsys: Captured) -> None:
    assert run(str(session_id)) == 0
    text = Path("report.html").read_text(encoding="utf-8")
    assert f"Tuning session {session_id}" in text
    assert "report: report.html (" in capsys.readouterr().out
    data = json.loads(text.partition('id="data">')[2].partition("</script>")[0])
    columns = data["tables"]["candidates"]["columns"]
    assert data["tables"]["candidates"]["length"] == 60
    # recorded when they were written
    assert max(v for v in columns["measured_number"]["values"] if v is not None) == 12


def test_json(session_id: int, capsys: Captured) -> None:
    assert run(str(session_id), "--json", "-o", "one.html") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["bytes"] == Path("one.html").stat().st_size
    check_fields("report", [answer])


def test_a_kernel_shows_its_best_records(session_id: int) -> None:
    assert run("matmul") == 0
    text = Path("report.html").read_text(encoding="utf-8")
    assert "Best known times" in text
    assert str(session_id) in text


@pytest.mark.usefixtures("session_id")
def test_a_table_has_the_vendor_of_the_database_beside_it(tmp_path: Path) -> None:
    write_table(replace(samples.table(), dtype="float16"), tmp_path / "table.json")
    assert run("table.json") == 0
    text = Path("report.html").read_text(encoding="utf-8")
    assert "Which kernel serves which sizes" in text
    assert "Squares are the fastest other implementation" in text  # m=4096 is in both


@pytest.mark.usefixtures("session_id")
def test_a_dataset_and_the_model(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    write_dataset(tmp_path / "data" / "one.parquet", samples.dataset(8))
    assert run("data") == 0
    assert "Dataset data" in Path("report.html").read_text(encoding="utf-8")
    assert run("model") == 0
    assert "Learned cost model" in Path("report.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("session_id")
def test_a_kernel_in_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def profiles_in_file(*given: object) -> FileProfiles:
        asked.append(given)
        return FileProfiles("scale", (samples.profile(),), load_target("h200"))

    monkeypatch.setattr("tilesight.api.kernel_files.profiles_in_file", profiles_in_file)
    assert run("kernel.py:scale", "--target", "h200", "--arg", "m=4", "--dims", "n=8") == 0
    [(place, target, facts, arguments)] = asked
    assert (place, target, arguments) == ("kernel.py:scale", "h200", {"m": 4})
    assert "n=8" in str(facts)
    text = Path("report.html").read_text(encoding="utf-8")
    assert "What would be left" in text
    assert "Timeline of one block" in text


@pytest.mark.usefixtures("session_id")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["99"], "session 99 is not in this database"),
        (["matmull"], "did you mean matmul"),
        (["softmax"], "kernel 'softmax' has no records"),
        (["nowhere/table.json"], "cannot be read"),
        (["nothing.parquet"], "there is no such file"),
        (["."], "no Parquet files"),
        (["performance.db"], "nothing that a report can show"),
        (["model", "--target", "h200"], "report of model takes no target"),
        (["model", "-o", "report.txt"], "must end in .html"),
        (["model", "-o", "nowhere/report.html"], "there is no folder 'nowhere'"),
    ],
)
def test_what_cannot_be_shown_or_written(arguments: list[str], words: str, capsys: Captured) -> None:
    assert words in refused(capsys, *arguments)


@pytest.mark.usefixtures("session_id")
def test_only_reports_are_replaced(capsys: Captured) -> None:
    assert run("model") == 0
    assert run("model") == 0
    capsys.readouterr()
    Path("notes.html").write_text("<p>mine</p>", encoding="utf-8")
    assert "no report of TileSight" in refused(capsys, "model", "-o", "notes.html")
    assert Path("notes.html").read_text(encoding="utf-8") == "<p>mine</p>"


@pytest.mark.usefixtures("session_id")
def test_a_failed_write_leaves_no_file(capsys: Captured, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: Path, text: str, **_: object) -> int:
        with self.open("w", encoding="utf-8") as file:
            file.write(text[:100])
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_text", full)
    assert "No space left on device" in refused(capsys, "model")


@pytest.mark.usefixtures("session_id")
def test_without_a_database(capsys: Captured, tmp_path: Path) -> None:
    message = refused(capsys, "1", "--db", str(tmp_path / "none.db"), code=4)
    assert "none.db" in message
    assert "has no records" in refused(capsys, "matmul", "--db", str(tmp_path / "none.db"))
