"""`tilesight replay`, run as a user runs it."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.unit.cli.documented import check_fields
from tests.unit.costmodel.measured_samples import FAST
from tests.unit.datasets.replay.made import failing, small
from tilesight.cli.main import main
from tilesight.costmodel.analytical.constants import DEFAULT
from tilesight.datasets.replay.cases import replayable_rows
from tilesight.datasets.replay.held_out import predict_held_out, write_predictions
from tilesight.records.dataset import read_dataset, write_dataset

UNGUIDED = ("--strategy", "random", "--strategy", "exhaustive")


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.parquet"
    write_dataset(path, failing(small(), [2], "wrong_result"))
    return path


@pytest.fixture(scope="module")
def kept(file: Path) -> Path:
    rows = replayable_rows(read_dataset(file))
    found = predict_held_out(rows, "shape", constants=DEFAULT, **FAST)
    write_predictions(file.with_name("kept.json"), found)
    return file.with_name("kept.json")


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main(["replay", *(str(a) for a in arguments)])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def test_table(file: Path, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    names = ("random", "model", "residuals")
    assert (
        run(
            file,
            "--predictions",
            kept,
            *(part for name in names for part in ("--strategy", name)),
            "--operators",
            "--limit",
            9,
        )
        == 0
    )
    shown = capsys.readouterr()
    assert "96 recorded candidates of 4 cases; 1 of them failed" in shown.out
    assert "predictions: learned model, trained without the shape of each case" in shown.out
    assert shown.out.count("strategy ") == 3  # all, and two operators
    assert "random, seed 2: 4 cases" in shown.err
    for name in names:
        assert shown.out.count(f"\n{name} ") == 3
    assert max(map(len, shown.out.splitlines())) <= 100


def test_a_limit_that_is_too_short_is_said(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, *UNGUIDED, "--limit", 2, "--seeds", 1) == 0
    shown = capsys.readouterr().out
    assert "+: not reached in every case; those cases count with all their measurements (--limit 2)" in shown
    assert "predictions" not in shown


def test_json(file: Path, kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(file, "--strategy", "model", "--predictions", kept, "--model", "analytical", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "replay"
    assert (found["model"], found["split"], found["recorded"]) == ("analytical", "shape", 96)
    check_fields("replay", [found])


def test_files(file: Path, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    assert run(file, *UNGUIDED, "--limit", 4, "--out", tmp_path / "c.csv", "--plot", tmp_path / "p.png") == 0
    assert len((tmp_path / "c.csv").read_text().splitlines()) == 1 + 3 * 2 * 4
    assert (tmp_path / "p.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "no dataset was named"),
        (["nowhere.parquet"], "there is no such file"),
        (["{file}", "--strategy", "tep"], "unknown strategy 'tep'; did you mean tpe"),
        (["{file}", "--limit", "0"], "0 is not in the range x>=1"),
        (["{file}", "--seeds", "0"], "0 is not in the range x>=1"),
        (["{file}", "--split", "colour"], "'colour' is not one of"),
        (["{file}", "--model", "both"], "'both' is not one of"),
        (["{text}"], "cannot be read as Parquet"),
        (["{failed}"], "no verified row of a GPU target with a profile"),
        (["{file}", "--out", "{folder}/c.txt"], "must end in .csv"),
        (["{file}", "--plot", "{folder}/c.jpeg"], "must end in .png or .svg"),
        (["{file}", "--plot", "{folder}/none/c.png"], "there is no folder"),
        (["{file}", "--predictions", "{folder}/none/c.json"], "there is no folder"),
        (["{file}", "--predictions", "{text}"], "cannot be read"),
    ],
)
def test_wrong_input_is_one_message(
    arguments: list[str], message: str, file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.parquet").write_text("no table")
    write_dataset(tmp_path / "failed.parquet", failing(small(1, 1), list(range(24)), "build_error"))
    paths = {
        "file": file,
        "folder": tmp_path,
        "text": tmp_path / "text.parquet",
        "failed": tmp_path / "failed.parquet",
    }
    assert run(*(a.format(**paths) for a in arguments)) == 2
    assert message in " ".join(capsys.readouterr().err.split())


def test_a_missing_package_is_said_first(
    file: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    assert run(file, "--plot", tmp_path / "p.png") == 5
    assert "pip install matplotlib" in capsys.readouterr().err
