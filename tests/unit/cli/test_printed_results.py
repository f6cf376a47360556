"""Results of the Python interface print as the command line prints them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tilesight
import tilesight.target
from tests.support.fakes import FakeModel
from tests.unit.cli.test_commands import Shell
from tests.unit.conftest import FakeLine
from tilesight.records.trial import Prediction
from tilesight.target.spec import load_target

CONFIG = "block=7,stages=1,swizzle=true"


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], fake_line: FakeLine) -> Shell:
    return Shell(capsys, fake_line)


def check_printed(value: Any, out: str) -> None:
    """`print(value)` wrote `out`, notebooks show the same, and `repr` is one short line."""
    assert str(value) == out.rstrip("\n")
    heading = out.splitlines()[0].replace("<", "&lt;")
    assert heading in value._repr_html_()
    assert "\n" not in repr(value)
    assert len(repr(value)) < 200


def test_a_tuned_result_prints_as_tune_does(shell: Shell) -> None:
    tilesight.tune("axpy", target="cpu", shape="X0")
    [result] = tilesight.tune("axpy", target="cpu", shape="X0")
    out = shell("tune", "axpy", "--target", "cpu", "--shape", "X0")[1]
    assert "from the database" in out
    check_printed(result, out)
    assert repr(result).startswith("SessionResult(axpy X0: n=1024")
    assert "best verified 10.00 us, predicted" in repr(result)


def test_a_ranking_prints_as_rank_does(shell: Shell) -> None:
    tilesight.rank("axpy", target="cpu", shape="X0")
    [result] = tilesight.rank("axpy", target="cpu", shape="X0")
    check_printed(result, shell("rank", "axpy", "--target", "cpu", "--shape", "X0")[1])
    assert repr(result.trials[0]).startswith("TrialRecord(predicted ")


@pytest.mark.usefixtures("fake_line")
def test_a_target_of_the_users_own_is_printed_by_its_own_figures(tmp_path: Path) -> None:
    cpu = load_target("cpu")
    text = Path(tilesight.target.__path__[0], "cpu.toml").read_text(encoding="utf-8")
    path = tmp_path / "mine.toml"
    path.write_text(text.replace('name = "cpu"', 'name = "mine"').replace(cpu.title, "my chip"))
    [result] = tilesight.rank("axpy", target=str(path), shape="X0")
    assert str(result).startswith("axpy X0: n=1024 float32 on my chip")


def test_all_candidates_of_a_result_are_rows_of_a_frame(shell: Shell) -> None:
    [result] = tilesight.tune("axpy", target="cpu", shape="X0")
    frame = result.to_frame()
    assert len(frame) == len(result.trials)
    assert {"measured_us", "predicted_us", "status", "failure", "block", "stages", "swizzle"} <= {*frame}
    first = json.loads(shell("tune", "axpy", "--target", "cpu", "--shape", "X0", "--json")[1])
    best = first["sessions"][0]["candidates"][0]
    row = frame.iloc[0]
    assert row["measured_us"] == best["measured_us"] == 10.0
    assert (row["block"], row["stages"]) == (best["config"]["block"], best["config"]["stages"])


def test_an_explanation_prints_as_explain_does(shell: Shell) -> None:
    asked = ("explain", "axpy", "--target", "cpu", "--shape", "X0", "--config", CONFIG)
    shell(*asked)
    found = tilesight.explain("axpy", target="cpu", shape="X0", config=CONFIG)
    check_printed(found, shell(*asked)[1])
    frame = found.to_frame()
    assert [*frame] == ["resource", "busy", "without_us", "gain"]
    assert "vector" in set(frame["resource"])


def test_a_space_prints_as_space_does(shell: Shell) -> None:
    from tilesight.kernels import operator, template_for

    workload = operator("axpy").workload("X0", "float32")
    space = template_for("axpy", load_target("cpu"), "float32").space(workload, load_target("cpu"))
    out = shell("space", "axpy", "--target", "cpu", "--shape", "X0")[1]
    # one line a row there, the width of a page here
    assert " ".join(out.split()).partition(" even_stages ")[0].endswith("example 40")
    assert out.splitlines()[1] == str(space).splitlines()[0]
    assert str(space).startswith("200 of 240 configs are legal\n\nparameter ")
    assert repr(space) == "SearchSpace(block, stages, swizzle: 240 configs)"
    assert str(space.census()) == "200 of 240 configs are legal; rules that the others break: even_stages 40"
    assert len(space.to_frame()) == 200
    assert len(list(space.points())) == 240


def test_a_prediction_prints_its_time_its_pace_and_its_terms() -> None:
    prediction = Prediction(
        12.5, {"dram": 0.25, "vector": 0.5}, "vector", {"launch": 2.5}, 0.15, ("a note",), "model-1"
    )
    text = str(prediction)
    assert "predicted time: 12.50 us, give or take 15.0 % (one sigma)" in text
    assert text.index("vector    50.0 %") < text.index("dram      25.0 %")
    assert "launch  2.500" in text
    assert "note: a note" in text
    assert repr(prediction) == "Prediction(12.50 us ± 15.0 %, limiting: vector)"
    assert "12.50 us" in prediction._repr_html_()
    assert FakeModel.version not in text
