"""`tilesight timeline`: its subjects and files, and what it refuses."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.page_sessions import record, recorded_session
from tests.unit.cli.documented import check_fields
from tests.unit.pages import samples
from tilesight.api.kernel_files import FileProfiles
from tilesight.cli.main import main
from tilesight.database import open_store
from tilesight.records.session import Effort
from tilesight.target.spec import load_target

Captured = pytest.CaptureFixture[str]


@pytest.fixture
def session_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> int:
    """A recorded session, in the database that commands take."""
    url = f"sqlite:///{tmp_path}/performance.db"
    monkeypatch.setenv("TILESIGHT_DB", url)
    monkeypatch.chdir(tmp_path)
    return record(recorded_session(40, 12), url)


def run(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["timeline", *arguments])
    code = ended.value.code
    assert isinstance(code, int)
    return code


def test_a_session(session_id: int, capsys: Captured) -> None:
    assert run("--session", str(session_id)) == 0
    text = capsys.readouterr().out
    stages = ("lowering, 1 of", "predicted", "building", "measuring on NVIDIA H200 GPU-1")
    for words in (*stages, "is not recorded"):
        assert words in " ".join(text.split())
    assert run("--session", str(session_id), "-o", "session.json") == 0
    assert json.loads(Path("session.json").read_text(encoding="utf-8"))["traceEvents"]
    assert run("--session", str(session_id), "-o", "session.html", "--json") == 0
    assert "Timeline of the session" in Path("session.html").read_text(encoding="utf-8")


@pytest.mark.usefixtures("session_id")
def test_a_built_candidate_was_lowered_before_its_last_prediction(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/performance.db"
    found = recorded_session(40, 12)
    context = found.summary.context
    trial = next(t for t in found.result.trials if t.build is not None and t.prediction is not None)
    assert trial.prediction is not None
    corrected = replace(trial, prediction=replace(trial.prediction, latency_us=1.0))
    with open_store(url) as store:
        made = store.begin(context, Effort.FULL, 0, {}, found.result.census)
        store.record_many(made, context, [corrected])
        times = store.recorded_session(made).trial_times[trial.config]
    assert times.lowered_at is not None
    assert times.predicted_at is not None
    assert times.lowered_at < times.predicted_at


@pytest.mark.usefixtures("session_id")
def test_a_kernel_in_a_file(monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    asked = []

    def profiles_in_file(*given: object) -> FileProfiles:
        asked.append(given)
        return FileProfiles("scale", (samples.profile(),), load_target("h200"))

    monkeypatch.setattr("tilesight.api.kernel_files.profiles_in_file", profiles_in_file)
    arguments = ("--target", "h200", "--dims", "n=8", "--config", "2", "--json")
    assert run("--file", "kernel.py:scale", *arguments) == 0
    [(place, target, facts, _, config)] = asked
    assert (place, target, config) == ("kernel.py:scale", "h200", "2")
    assert "n=8" in str(facts)
    answer = json.loads(capsys.readouterr().out)
    check_fields("timeline", [answer])
    sums = [
        (part["us"], sum(span["us"] for span in row["spans"]))
        for part in answer["parts"]
        for row in part["rows"]
        if row["adds_up"]
    ]
    assert len(sums) == 3
    assert all(total == pytest.approx(us) for us, total in sums)
    assert run("--file", "kernel.py:scale", "--target", "h200", "--dims", "n=8") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line for line in lines if line.startswith("note: ")]
    assert "note: All spans are numbers of the analytical model" in " ".join(lines)


def test_a_shipped_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    monkeypatch.setenv("TILESIGHT_DB", str(tmp_path / "empty.db"))
    out = tmp_path / "rms_norm.json"
    config = _default_config()
    arguments = ("rms_norm", "--target", "h200", "--shape", "R0", "--config", config, "--workers", "1")
    assert run(*arguments, "-o", str(out)) == 0
    assert f"timeline: {out}" in capsys.readouterr().out
    trace = json.loads(out.read_text(encoding="utf-8"))
    assert trace["otherData"]["title"].startswith("rms_norm R0")


def _default_config() -> str:
    from tilesight.kernels import operator, template_for

    target = load_target("h200")
    template = template_for("rms_norm", target, "bfloat16")
    return str(template.default_config(operator("rms_norm").workload("R0", "bfloat16"), target))


@pytest.mark.usefixtures("session_id")
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "needs one of"),
        (["matmul", "--session", "1"], "needs one of"),
        (["--session", "99"], "session 99 is not in this database"),
        (["--session", "99", "--target", "h200"], "timeline of --session takes no --target"),
        (["--file", "kernel.py:scale", "--shape", "M0"], "timeline of --file takes no --shape"),
        (["matmul", "--dims", "n=8"], "timeline of matmul takes no --dims"),
        (["matmul", "--target", "cpu"], "target cpu is a processor"),
        (["matmull", "--target", "h200"], "did you mean matmul"),
        (["matmul", "-o", "timeline.txt"], "must end in .json"),
        (["matmul", "-o", "nowhere/timeline.json"], "there is no folder 'nowhere'"),
    ],
)
def test_what_cannot_be_shown_or_written(arguments: list[str], words: str, capsys: Captured) -> None:
    assert run(*arguments) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("matmul", "--target", "cpu", "--shape", "M0"), "is a processor"),
        (("matmul", "--target", "mi300x", "--shape", "M0"), "is an AMD GPU"),
        (("matmul_all_reduce", "--target", "h200x2"), "is several devices"),
        (("--session", "1"), "takes no --trace"),
    ],
)
def test_what_cannot_be_traced(arguments: tuple[str, ...], reason: str, capsys: Captured) -> None:
    assert run(*arguments, "--trace") == 2
    assert reason in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("of_file", [False, True])
def test_without_a_gpu_nothing_is_traced(
    of_file: bool, capsys: Captured, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The command says so before it lowers anything."""
    monkeypatch.setattr("tilesight.machine.devices.find_devices", lambda: [])
    subject = ("--file", "kernel.py:scale") if of_file else ("matmul", "--shape", "M0")
    assert run(*subject, "--target", "h200", "--trace") == 5
    assert "nothing can be traced: " in " ".join(capsys.readouterr().err.split())
