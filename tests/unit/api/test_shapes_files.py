"""From misses to a file of shapes, and from the file to tuned records."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest

import tilesight
from tests.support.fakes import AxpyTemplate
from tests.unit.conftest import FakeLine
from tilesight.cli.main import main
from tilesight.database import open_store
from tilesight.errors import InputError
from tilesight.problem.space import Config
from tilesight.records.winners import Miss
from tilesight.settings import load_settings

NOW = datetime(2026, 1, 2, tzinfo=UTC)


@pytest.fixture
def recorded(fake_line: FakeLine) -> FakeLine:
    """Three misses, the most costly of n=512."""
    operator, config = AxpyTemplate().operator, Config({"block": 20, "stages": 1, "swizzle": False})
    with open_store(load_settings().database_url) as store:
        store.record_misses(
            Miss(operator.workload(f"n={n}"), "cpu", "", "axpy", calls, config, "default", 10.0, NOW, NOW)
            for n, calls in ((256, 5), (512, 9), (128, 1))
        )
    return fake_line


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    assert isinstance(ended.value.code, int)
    return ended.value.code, *capsys.readouterr()


@pytest.mark.usefixtures("recorded")
def test_misses_are_exported_edited_and_tuned(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shapes.txt"
    code, out, _ = run(capsys, "db", "misses", "axpy", "--target", "cpu", "--limit", "2", "--out", str(path))
    assert code == 0
    assert out.splitlines()[-1] == f"shapes: {path}"
    text = path.read_text()
    assert [line.split()[1] for line in text.splitlines()[2:]] == ["n=512", "n=256"]
    path.write_text(text.replace("n=256", "n=2048"))
    code, out, _ = run(capsys, "tune", "--shapes", str(path), "--target", "cpu", "--json", "--quiet")
    assert code == 0
    found = json.loads(out)
    assert [session["workload"] for session in found["sessions"]] == [
        "axpy(n=512;dtype=float32)",
        "axpy(n=2048;dtype=float32)",
    ]
    code, out, _ = run(capsys, "db", "misses", "--json")
    assert [miss["workload"] for miss in json.loads(out)["misses"]] == [
        "axpy(n=256;dtype=float32)",
        "axpy(n=128;dtype=float32)",
    ], "what was tuned is no miss any more"


def test_a_file_is_tuned_in_its_order(fake_line: FakeLine, tmp_path: Path) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text("axpy X1\naxpy n=64 float32 3\naxpy X0\n")
    found = tilesight.tune_file(path, "cpu", limit=2)
    assert [result.context.workload.dims["n"] for result in found] == [4096, 64]
    assert all(result.is_measured for result in found)
    assert fake_line.executors_made == 1


@pytest.mark.parametrize(
    ("text", "error", "message"),
    [
        ("axpy X0\naxpi X0\n", InputError, r"shapes\.txt, line 2: .*axpi"),
        ("axpy X0\naxpy m=3\n", InputError, r"shapes\.txt, line 2: .*unknown axpy dimension 'm'"),
        ("axpy X0 float16\n", InputError, r"shapes\.txt, line 1: "),
    ],
)
def test_all_lines_are_checked_first(
    fake_line: FakeLine, tmp_path: Path, text: str, error: type[Exception], message: str
) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text(text)
    with pytest.raises(error, match=message):
        tilesight.tune_file(path, "cpu")
    assert fake_line.executors_made == 0


@pytest.mark.usefixtures("recorded")
def test_wrong_options(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "shapes.txt"
    path.write_text("axpy X0\n")
    for given, message in (
        (
            ("tune", "--shapes", str(path), "--misses"),
            "--shapes takes its shapes from the file: leave out --misses",
        ),
        (("tune", "axpy", "--shapes", str(path), "--shape", "X0"), "leave out --shape"),
        (("tune", "axpy", "--limit", "3"), "--limit needs --misses, --shapes or --workloads"),
        (("db", "misses", "--out", "shapes.json"), "must end in .txt"),
    ):
        code, _, err = run(capsys, *given)
        assert (code, message in err) == (2, True), err


@pytest.mark.usefixtures("recorded")
def test_a_file_is_for_one_target(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    workload, config = AxpyTemplate().operator.workload("X0"), Config({"block": 1})
    with open_store(load_settings().database_url) as store:
        store.record_misses([Miss(workload, "h200", "", "axpy", 1, config, "default", 1.0, NOW, NOW)])
    path = tmp_path / "shapes.txt"
    code, _, err = run(capsys, "db", "misses", "--out", str(path))
    assert code == 2
    assert "these are of cpu, h200: name one with --target" in err
    assert not path.exists()
    # a program that goes on with the file would not find it
    code, _, err = run(capsys, "db", "misses", "--target", "a100", "--out", str(path))
    assert (code, "no misses are recorded that match" in err, path.exists()) == (2, True, False)
