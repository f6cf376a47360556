"""The command line: what it prints, where, and with which exit code."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tilesight
from tests.support.fakes import FakeExecutor, failing
from tests.unit.conftest import FakeLine, Terminal
from tilesight.cli.main import main
from tilesight.errors import Failure, FailureKind
from tilesight.problem.space import Config
from tilesight.target.spec import load_target

TUNE = ["tune", "axpy", "--target", "cpu", "--shape", "X0"]


class Shell:
    def __init__(self, capsys: pytest.CaptureFixture[str], line: FakeLine | None = None) -> None:
        self._capsys, self.line = capsys, line

    def __call__(self, *arguments: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = self._capsys.readouterr()
        code = ended.value.code
        assert isinstance(code, int)
        return code, out, err


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], fake_line: FakeLine) -> Shell:
    """With the kernel `axpy` and nothing real behind it."""
    return Shell(capsys, fake_line)


@pytest.fixture
def real_shell(capsys: pytest.CaptureFixture[str]) -> Shell:
    return Shell(capsys)


def test_tune_prints_a_table_and_progress_apart(shell: Shell) -> None:
    code, out, err = shell(*TUNE, "--top", "3")
    assert code == 0
    lines = out.splitlines()
    heading = next(line for line in lines if line.startswith("#"))
    assert heading.split() == [
        "#",
        "status",
        "measured",
        "us",
        "GB/s",
        "of",
        "limit",
        "predicted",
        "us",
        "config",
    ]
    first = lines[lines.index(heading) + 1]
    assert first.split()[:3] == ["1", "verified", "10.00"]
    assert first.split()[-1] == "block=30,stages=3,swizzle=true"
    assert sum("verified" in line for line in lines) == 3
    assert "vendor: vendor 12.00 us" in out
    assert "ours is 1.20x as fast" in out
    assert "search space: 200 of 240 configs are legal; rules that the others break: even_stages 40" in out
    assert "explore: 128 candidates" in err
    assert "explore:" not in out
    assert max(map(len, lines[:-1])) <= 100


def test_predictions_are_marked_and_not_in_a_column_with_measurements(shell: Shell) -> None:
    code, out, _ = shell("rank", "axpy", "--target", "cpu", "--shape", "X0", "--top", "2")
    assert code == 0
    heading = next(line for line in out.splitlines() if line.startswith("#"))
    assert "measured" not in heading
    assert "predicted us" in heading
    assert "predicted GB/s" in heading
    assert "verified" not in out
    code, out, _ = shell(*TUNE, "--top", "20")
    row = next(line for line in out.splitlines() if " predicted " in line and "config" not in line)
    assert row.split()[1:5] == ["predicted", "-", "-", "-"]


def test_json_is_one_object_and_progress_is_elsewhere(shell: Shell) -> None:
    code, out, err = shell(*TUNE, "--json", "--top", "2")
    assert code == 0
    found = json.loads(out)
    assert found["schema_version"] == 2
    assert found["kind"] == "tune"
    session = found["sessions"][0]
    assert session["is_measured"] is True
    assert session["from_database"] is False
    assert session["counts"]["verified"] == 16
    assert len(session["candidates"]) == 2
    best = session["candidates"][0]
    assert best["config"] == {"block": 30, "stages": 3, "swizzle": True}
    assert (best["status"], best["measured_us"]) == ("verified", 10.0)
    assert session["vendor"][0]["latency_us"] == 12.0
    assert session["speedup_over_vendor"] == pytest.approx(1.2)
    assert "explore" in err
    assert json.loads(shell(*TUNE, "--json")[1])["sessions"][0]["from_database"] is True


def test_json_of_predictions_has_no_measurement(shell: Shell) -> None:
    session = json.loads(shell("rank", "axpy", "--target", "h100", "--json")[1])["sessions"][0]
    assert session["device"] is None
    assert session["speedup_over_vendor"] is None
    assert {c["measured_us"] for c in session["candidates"]} == {None}
    assert {c["status"] for c in session["candidates"]} == {"predicted"}


def test_second_call_says_where_it_comes_from(shell: Shell) -> None:
    shell(*TUNE)
    code, out, err = shell(*TUNE)
    assert code == 0
    assert "from the database" in out
    assert "explore" not in err


def test_without_a_gpu_the_reason_is_printed(shell: Shell) -> None:
    code, out, err = shell("tune", "axpy", "--target", "h100", "--shape", "X0")
    assert code == 0
    assert "note: nothing is measured, all times are predicted: no GPU was found here" in out
    assert "nothing is measured" in err
    assert "verified" not in out


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["tune", "axpi", "--target", "cpu"], 2, "unknown kernel 'axpi'; did you mean axpy?"),
        (["tuen", "axpy"], 2, "unknown command 'tuen'; did you mean tune"),
        (["tune", "axpy", "--target", "h20"], 2, "unknown target 'h20'"),
        (["tune", "axpy", "--target", "./none.toml"], 2, "target file 'none.toml' cannot be read"),
        ([*TUNE, "--dtype", "int3"], 2, "dtype 'int3' is not supported"),
        ([*TUNE, "--top", "0"], 2, "--top"),
        (
            [*TUNE, "--budget", "soon"],
            2,
            "--budget 'soon' must be a time above 0: seconds (600, 90s), minutes (10m) or hours (1h)",
        ),
        ([*TUNE, "--effort", "hard"], 2, "'hard' is not one of"),
        ([*TUNE, "--db", "mysql://x/y"], 2, "mysql"),
        (["tune", "axpy"], 5, "no GPU was found here"),
        (["explain", "axpy", "--target", "cpu", "--config", "block=3"], 2, "lacks stages, swizzle"),
        (
            ["explain", "axpy", "--target", "cpu", "--config", "blok=3,stages=1,swizzle=true"],
            2,
            "did you mean block?",
        ),
        (["space", "axpy", "--target", "cpu", "--shape", "n=-1"], 2, "n=-1 must lie in"),
        (["kernels", "nope"], 2, "unknown kernel"),
        (["targets", "nope"], 2, "unknown target"),
        (["targets", "h200", "--world", "16"], 2, "describes 16 devices of h200 (there are h200x2, h200x4"),
        (["targets", "h100x4", "--world", "8"], 2, "world 8 is larger than target h100x4"),
        (["targets", "h100x4", "--world", "1"], 2, "world=1 must be a whole number of devices"),
        (["targets", "--world", "4"], 2, "--world is the number of devices of one target"),
        (["calibrate", "--target", "h100x4", "--device", "0"], 2, "is one GPU, and target h100x4 is 4"),
        ([], 2, "Usage: tilesight"),
    ],
)
def test_wrong_input(shell: Shell, arguments: list[str], code: int, message: str) -> None:
    found, out, err = shell(*arguments)
    assert found == code
    assert message in err
    assert out == ""
    assert "Traceback" not in err


def test_nothing_works_is_exit_code_3(shell: Shell, fake_line: FakeLine) -> None:
    fake_line.executor = FakeExecutor(failing(FailureKind.LOWER_CRASH, "lower"))
    code, _, err = shell(*TUNE)
    assert code == 3
    assert "error: none of 128 candidates" in err


def test_one_hopeless_shape_does_not_hide_the_others(shell: Shell, fake_line: FakeLine) -> None:
    def broken(_stage: str, _config: Config) -> Failure | None:
        return (
            Failure(FailureKind.LOWER_ERROR, "hopeless")
            if len(fake_line.executor.done["lower"]) < 128
            else None
        )

    fake_line.executor = FakeExecutor(broken)
    code, out, err = shell("tune", "axpy", "--target", "cpu", "--shape", "X1", "--shape", "X0", "--json")
    assert code == 3
    assert [session["shape"] for session in json.loads(out)["sessions"]] == ["X0"]
    assert "axpy X1" in err


def test_unusable_database_is_exit_code_4(shell: Shell, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database at all" * 100)
    code, _, err = shell(*TUNE, "--db", str(broken))
    assert code == 4
    assert "damaged or is not a database" in err


def test_interrupt_is_exit_code_130(shell: Shell, fake_line: FakeLine) -> None:
    def interrupt(_stage: str, _config: Config) -> Failure | None:
        raise KeyboardInterrupt

    fake_line.executor = FakeExecutor(interrupt)
    code, out, err = shell(*TUNE)
    assert code == 130
    assert out == ""
    assert "interrupted" in err
    assert "Traceback" not in err


def test_error_of_ours_is_exit_code_1_and_says_how_to_report(
    shell: Shell, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilesight.api.sessions.run_session", lambda *_: 1 / 0)
    code, _, err = shell(*TUNE)
    assert code == 1
    assert "ZeroDivisionError" in err
    assert "--debug" in err
    assert "Traceback" not in err
    for arguments in ([*TUNE, "--debug"], ["--debug", *TUNE]):
        with pytest.raises(ZeroDivisionError):
            main(arguments)


def test_explain_shows_uses_and_why_it_loses(shell: Shell) -> None:
    code, out, err = shell(
        "explain", "axpy", "--target", "cpu", "--shape", "X0", "--config", "block=10,stages=1,swizzle=true"
    )
    assert code == 0, err
    assert (
        "largest cost: launch; next: vector; limiting: vector" in out
    )  # as the analytical model sees the stand-in's small profile
    assert "Why it is slower than the best config: predicted 102.0 us, the best 30.00 us (3.40x)" in out
    assert "best: block=30,stages=3,swizzle=" in out
    rows = [line.split() for line in out.splitlines()]
    assert (
        "Largest step: block 10 -> 30, 60 us faster (the two are 72 us apart): vector falls from 101 to"
        in out
    )
    assert ["block", "10", "->", "30", "42.00", "-", "vector", "-60"] in rows
    assert ["vector", "101", "29"] in rows
    found = json.loads(shell("explain", "axpy", "--target", "cpu", "--shape", "X0", "--json")[1])
    assert found["kind"] == "explain"
    assert found["best"] is None
    assert found["this"]["utilization"] == {"vector": 0.5, "dram": 0.25}
    assert found["this"]["largest_cost"] == found["this"]["costs"][0]["name"]


def test_rank_and_explain_name_the_same_pace(shell: Shell) -> None:
    (ranked,) = json.loads(
        shell("rank", "axpy", "--target", "cpu", "--shape", "X0", "--top", "200", "--json")[1]
    )["sessions"]
    slow = next(c for c in ranked["candidates"] if c["config"] == {"block": 10, "stages": 1, "swizzle": True})
    arguments = (
        "explain",
        "axpy",
        "--target",
        "cpu",
        "--shape",
        "X0",
        "--config",
        "block=10,stages=1,swizzle=true",
    )
    this = json.loads(shell(*arguments, "--json")[1])["this"]
    assert this["limiting"] == slow["limiting"] == "vector"
    assert this["largest_cost"] == this["costs"][0]["name"] == "launch"
    assert "Limiting is arithmetic, which is busy longest and sets the pace." in shell(*arguments)[1]


def test_rank_says_how_sure_it_is(shell: Shell) -> None:
    out = shell("rank", "axpy", "--target", "cpu", "--shape", "X0")[1]
    assert re.search(
        r"^predicted time of the best config: 30\.00 us, give or take \d+\.\d % \(one sigma\)$",
        out,
        re.MULTILINE,
    )


def test_space_counts_and_reasons(shell: Shell) -> None:
    code, out, _ = shell("space", "axpy", "--target", "cpu")
    assert code == 0
    assert "200 of 240 configs are legal" in out
    assert "block=1 must be even for stages=2" in out
    found = json.loads(shell("space", "axpy", "--target", "cpu", "--json")[1])
    assert (found["size"], found["legal"]) == (240, 200)
    assert found["rejected"] == [
        {"constraint": "even_stages", "count": 40, "example": "block=1 must be even for stages=2"}
    ]
    assert found["default_config"] == {"block": 20, "stages": 1, "swizzle": False}


def test_space_says_why_not_and_what_is_near(shell: Shell) -> None:
    code, out, _ = shell("space", "axpy", "--target", "cpu", "--config", "block=7,stages=2,swizzle=true")
    assert code == 0
    assert "not legal: block=7,stages=2,swizzle=true" in out
    assert "block=7 must be even for stages=2" in out
    assert "nearest legal: block=8,stages=2,swizzle=true" in out
    _, out, _ = shell("space", "axpy", "--target", "cpu", "--config", "block=8,stages=2,swizzle=true")
    assert out == "legal: block=8,stages=2,swizzle=true\n"
    found = json.loads(
        shell("space", "axpy", "--target", "cpu", "--config", "block=7,stages=2,swizzle=true", "--json")[1]
    )
    assert found["legal"] is False
    assert found["violations"][0]["constraint"] == "even_stages"


def test_kernels(real_shell: Shell) -> None:
    _, out, _ = real_shell("kernels")
    assert {"matmul", "flash_attention"} <= {line.split()[0] for line in out.splitlines()}
    assert ["M0", "4096", "1024", "8192", "nn", "float32", "none", "none", "default"] in [
        line.split() for line in real_shell("kernels", "matmul")[1].splitlines()
    ]
    found = json.loads(real_shell("kernels", "--json")[1])["kernels"]
    matmul = next(k for k in found if k["name"] == "matmul")
    assert matmul["shapes"]["M0"] == {"m": 4096, "n": 1024, "k": 8192}
    assert "cpu" in matmul["target_kinds"]


def test_targets_with_provenance(real_shell: Shell, terminal: Terminal) -> None:
    terminal(100)
    _, out, _ = real_shell("targets")
    assert {"h100", "h200", "a100", "mi300x", "cpu"} <= {line.split()[0] for line in out.splitlines() if line}
    _, out, _ = real_shell("targets", "h200")
    assert max(map(len, out.splitlines())) <= 100
    row = next(line.split() for line in out.splitlines() if line.startswith("device.memory.dram.gb_per_s"))
    assert row[1:4] == [f"{load_target('h200')['device.memory.dram.gb_per_s']:g}", "GB/s", "measured"]
    found = json.loads(real_shell("targets", "h200", "--json")[1])["target"]
    figure = next(f for f in found["figures"] if f["path"] == "core.count")
    assert (figure["value"], figure["provenance"]) == (132, "spec")


def test_targets_of_several_devices(real_shell: Shell, terminal: Terminal) -> None:
    terminal(100)
    _, out, _ = real_shell("targets")
    assert {"h100x2", "h200x8"} <= {line.split()[0] for line in out.splitlines() if line}
    _, out, _ = real_shell("targets", "h200x4")
    assert max(map(len, out.splitlines())) <= 100
    assert "4 devices of target h200, which has the figures of each" in out
    assert "node.network.tma_add.core_gb_per_s" in out
    assert "core.clock_mhz" not in out
    row = next(line.split() for line in out.splitlines() if line.startswith("all_reduce"))
    predicted = tilesight.predict_collective("all_reduce", 64 << 20, "h200x4")
    assert (row[4], row[-1]) == (f"{predicted.latency_us:.1f}", "measured")
    assert real_shell("targets", "h200", "--world", "4")[1] == out
    three = real_shell("targets", "h200", "--world", "3")[1]
    assert "on 3 devices, in us" in three
    assert "h200x4" in three
    found = json.loads(real_shell("targets", "h200x4", "--json")[1])["target"]
    assert (found["chip"], found["world"], found["levels"][0]["topology"]) == ("h200", 4, "switch")
    paths = {figure["path"]: figure for figure in found["figures"]}
    assert paths["node.network.flag_us"]["unit"] == "us"
    assert "core.count" in paths


def test_a_command_for_one_device_uses_the_chip_of_a_node(shell: Shell) -> None:
    """The same kernels, records and times as with the chip's own name, and a note that says so."""
    code, of_node, _ = shell("rank", "axpy", "--target", "h100x4", "--json")
    assert code == 0
    [session] = json.loads(of_node)["sessions"]
    assert session["target"] == "h100"
    assert any("target h100x4 is 4 devices" in text for text in session["messages"])


def test_doctor(shell: Shell) -> None:
    code, out, _ = shell("doctor")
    assert code == 0
    assert "C++ compiler" in out
    found = json.loads(shell("doctor", "--json")[1])
    assert found["ok"] is True
    assert {"Python", "tilelang", "database"} <= {check["name"] for check in found["checks"]}


def test_doctor_names_an_unusable_database(shell: Shell, tmp_path: Path) -> None:
    broken = tmp_path / "broken.db"
    broken.write_bytes(b"no database at all" * 100)
    code, out, _ = shell("doctor", "--db", str(broken))
    assert code == 0
    assert "damaged or is not a database" in out


def run_apart(*arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = [sys.executable, "-m", "tilesight.cli.main", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False, **options)  # type: ignore[call-overload,no-any-return]


def test_reader_that_leaves_early_is_no_error() -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    command = f"{sys.executable} -m tilesight.cli.main targets h200; echo $? >&2"
    # the reader closes at once, before anything is written
    done = subprocess.run(
        ["bash", "-c", f"({command}) | true"], env=environment, capture_output=True, text=True, check=False
    )
    assert done.stderr.split() in (["141"], ["0"])


def test_help_lists_all_commands_without_loading_them() -> None:
    help_call = "try: main(['--help'])\nexcept SystemExit: print(sorted(sys.modules))"
    code = f"import sys; from tilesight.cli.main import main\n{help_call}"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    for name in ("tune", "rank", "explain", "kernels", "targets", "space", "db", "doctor"):
        assert f"\n  {name} " in done.stdout
    for module in ("tilesight.cli.tune", "numpy", "optuna", "sqlalchemy", "rich", "torch"):
        assert f"'{module}'" not in done.stdout


def test_version() -> None:
    assert run_apart("--version").stdout.startswith("tilesight, version ")


def test_tune_ends_with_the_config_to_paste(shell: Shell) -> None:
    out = shell(*TUNE)[1]
    config = {"block": 30, "stages": 3, "swizzle": True}
    assert out.splitlines()[-3:-1] == [
        "best config: block=30,stages=3,swizzle=true",
        f"as a dict: {config}",
    ]
    call = f'axpy = tilesight.dispatcher("axpy", target="cpu", dtype="float32", n=1024, config={config})'
    assert out.splitlines()[-1] == f"in Python: {call}"
    assert json.loads(shell(*TUNE, "--json")[1])["sessions"][0]["usage"] == call


@pytest.mark.parametrize("command", ["space", "explain"])
def test_a_config_is_taken_as_json(shell: Shell, command: str) -> None:
    asked = (command, "axpy", "--target", "cpu", "--shape", "X0", "--config")
    shell(*asked, "block=7,stages=1,swizzle=true")
    plain = shell(*asked, "block=7,stages=1,swizzle=true")
    assert plain[0] == 0
    assert shell(*asked, '{"block": 7, "stages": 1, "swizzle": true}')[:2] == plain[:2]


def test_a_wrong_json_config_is_refused_with_the_reason(shell: Shell) -> None:
    asked = ("space", "axpy", "--target", "cpu", "--shape", "X0", "--config")
    code, _, err = shell(*asked, '{"block": 7,')
    assert code == 2
    assert "is not valid JSON" in err
    assert "block=1.5 must be a whole number, a text or true or false" in shell(*asked, '{"block": 1.5}')[2]
    assert "config 'block=7' lacks stages, swizzle" in shell(*asked, '{"block": 7}')[2]


def test_quiet_prints_the_result_alone_and_verbose_each_event(shell: Shell) -> None:
    code, out, err = shell("rank", "axpy", "--target", "cpu", "--shape", "X0", "--quiet")
    assert (code, err) == (0, "")
    assert "best config: " in out
    _, _, err = shell(*TUNE, "-v")
    assert "measure begins" in err
    assert "    verified 10.00 us" in err
    assert shell(*TUNE, "-v", "-q")[::2] == (
        2,
        "error: --quiet and --verbose exclude each other: give one of them\n",
    )
    _, _, err = shell("tune", "axpy", "--target", "cpu", "--shape", "X1")
    assert "explore: " in err
    assert "begins" not in err


def test_doctor_names_a_wrong_target_of_the_settings(shell: Shell, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TILESIGHT_TARGET", "cpux")
    _, out, _ = shell("doctor")
    assert "target: unknown target 'cpux'; did you mean cpu?" in out
    assert "from TILESIGHT_TARGET" in out
