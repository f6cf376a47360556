"""`tilesight model`, run as a user runs it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from tests.unit.cli.documented import check_fields
from tests.unit.conftest import Terminal
from tests.unit.costmodel.measured_samples import OPERATORS, dataset
from tilesight.cli.main import main
from tilesight.records.dataset import write_dataset
from tilesight.settings import available_cores


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "rows.parquet"
    write_dataset(path, dataset(OPERATORS[:2], shapes=2))
    return path


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as stopped:
        main([str(a) for a in arguments])
    assert isinstance(stopped.value.code, int)
    return stopped.value.code


def test_train_then_show(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], terminal: Terminal
) -> None:
    terminal(100)
    assert run("model", "train", file, "--out", tmp_path / "m", "--no-evaluate") == 0
    assert "learned-" in capsys.readouterr().out
    assert run("model", "show", tmp_path / "m") == 0
    shown = capsys.readouterr().out
    assert "96 rows in 4 cases of copying, multiplying; h200" in shown
    assert "block barriers for each thousand cycles" in shown
    assert max(map(len, shown.splitlines())) <= 100
    assert run("model", "show", tmp_path / "m", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "model show"
    assert found["fits"] is True
    check_fields("model show", [found])
    assert run("model", "train", file, "--out", tmp_path / "m", "--no-evaluate", "--json") == 0
    check_fields("model train", [json.loads(capsys.readouterr().out)])


@pytest.fixture
def one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Folds run in this process: workers take seconds to start."""
    monkeypatch.setenv("TILESIGHT_WORKERS", "1")


@pytest.mark.usefixtures("one_process")
def test_evaluate(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run("model", "evaluate", file, "--split", "operator", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    assert found["kind"] == "model evaluate"
    check_fields("model evaluate", [found])
    assert {s["model"] for s in found["summaries"]} == {
        "analytical",
        "both",
        "learned alone",
        "config boosting",
        "random",
    }
    assert all(0 < s["top1_worst"] <= s["top1"] <= 1 for s in found["summaries"])


def test_folds_run_in_as_many_processes_as_the_option_or_the_setting_says(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    class CountedError(Exception):
        pass

    asked: list[int] = []

    def count(*_: object, workers: int, **__: object) -> None:
        asked.append(workers)
        raise CountedError

    monkeypatch.setattr("tilesight.costmodel.training.evaluation.run_tasks", count)
    monkeypatch.setattr("tilesight.costmodel.training.train_and_evaluate.run_tasks", count)
    monkeypatch.setenv("TILESIGHT_WORKERS", "5")
    monkeypatch.chdir(tmp_path)  # `train` makes its folder
    for command in ("train", "evaluate"):
        assert run("model", command, file) == 1
        assert run("model", command, file, "--workers", 3) == 1
    monkeypatch.delenv("TILESIGHT_WORKERS")
    assert run("model", "evaluate", file) == 1
    assert asked == [5, 3, 5, 3, available_cores()]
    capsys.readouterr()


@pytest.mark.usefixtures("one_process")
def test_table_stays_within_the_page(
    file: Path, capsys: pytest.CaptureFixture[str], terminal: Terminal
) -> None:
    terminal(100)
    assert (
        run(
            "model",
            "evaluate",
            file,
            "--split",
            "operator",
            "--cases",
            "--objective",
            "ranking",
            "--objective",
            "regression",
        )
        == 0
    )
    shown = capsys.readouterr().out
    assert "both, ranking" in shown
    assert "within one sigma" in shown
    assert re.search(r"^model .* pick$", shown, re.MULTILINE)
    assert re.search(r"^analytical .* %  +[+-]\d+\.\d %$", shown, re.MULTILINE)
    assert re.search(r"^random .*  -$", shown, re.MULTILINE)
    assert "not evaluated" not in shown
    assert max(map(len, shown.splitlines())) <= 100


@pytest.mark.usefixtures("one_process")
def test_cases_of_few_rows_are_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole = dataset(OPERATORS[:2], shapes=2)
    last = whole.frame["workload"].iloc[-1]
    few = whole.where((whole.frame["workload"] != last) | (whole.frame.groupby("workload").cumcount() < 11))
    write_dataset(tmp_path / "few.parquet", few)
    assert run("model", "evaluate", tmp_path / "few.parquet", "--split", "operator") == 0
    assert "1 case with fewer than 12 candidates is not evaluated" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train"], "no dataset was named"),
        (["evaluate", "nowhere.parquet"], "there is no such file"),
        (["evaluate", "{file}", "--split", "colour"], "'colour' is not one of"),
        (["show", "nowhere"], "no model is there; train it anew"),
        (["train", "{file}", "--no-evaluate", "--out", "{file}"], "cannot be written"),
        (
            ["train", "{file}", "--out", "{file}/m"],
            "/m' cannot be written: Not a directory; name another with --out",
        ),
    ],
)
def test_wrong_input_is_one_message(
    arguments: list[str], message: str, file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("model", *(a.format(file=file) for a in arguments)) == 2
    assert message in capsys.readouterr().err


def test_a_folder_that_cannot_be_written_is_said_before_anything_is_trained(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def begin(*_: object, **__: object) -> None:
        raise AssertionError("folds were begun")

    monkeypatch.setattr("tilesight.costmodel.training.train_and_evaluate.train_and_evaluate", begin)
    (tmp_path / "taken").write_text("")
    assert run("model", "train", file, "--out", tmp_path / "taken") == 2
    assert f"model folder '{tmp_path / 'taken'}' cannot be written: " in capsys.readouterr().err.replace(
        "\n", " "
    )


def test_nothing_is_made_for_datasets_that_cannot_be_read(tmp_path: Path) -> None:
    assert run("model", "train", tmp_path / "none.parquet", "--out", tmp_path / "m") == 2
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("command", "fits"),
    [("train", "train_and_evaluate.train_and_evaluate"), ("evaluate", "evaluation.evaluate")],
)
def test_an_interrupted_training_does_not_claim_to_go_on(
    command: str,
    fits: str,
    file: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(f"tilesight.costmodel.training.{fits}", interrupted)
    out = ["--out", tmp_path / "model"] if command == "train" else []
    assert run("model", command, file, *out) == 130
    assert capsys.readouterr().err == "interrupted: nothing is written; the same command begins anew\n"
    assert not (tmp_path / "model" / "card.json").exists()
