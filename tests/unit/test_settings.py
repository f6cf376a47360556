"""Settings: from the environment, from a settings file, or defaults."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

import tilesight
from tests.unit.cli.test_commands import Shell
from tests.unit.conftest import FakeLine
from tilesight.errors import InputError
from tilesight.records.session import Effort
from tilesight.settings import EFFORTS, SETTINGS, load_settings, read_seconds
from tilesight.target.spec import load_target
from tilesight.tuner.options import TuneOptions


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, in a project without settings."""
    for setting in SETTINGS:
        monkeypatch.delenv(setting.variable, raising=False)
    folder = tmp_path / "project" / "deep" / "er"
    folder.mkdir(parents=True)
    monkeypatch.chdir(folder)
    return tmp_path / "project"


def test_without_any_settings_the_defaults_hold() -> None:
    found = load_settings()
    assert (found.target, found.effort, found.budget_s, found.max_noise) == ("auto", "quick", None, 0.1)
    assert set(found.sources.values()) == {"default"}
    assert list(EFFORTS) == [effort.value for effort in Effort]


def test_the_nearest_file_sets_what_the_environment_does_not(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = project / "tilesight.toml"
    file.write_text(
        'target = "h100"\neffort = "full"\nbudget = "10m"\nworkers = 3\nmax_noise = inf\n'
        'database = "results/own.db"\ncache_dir = "/cache"\nlayers = ["team.db", "sqlite:///x.db"]\n'
        'kernels = ["my_ops", "./more_ops.py"]\n'
    )
    (project / "pyproject.toml").write_text('[tool.tilesight]\ntarget = "a100"\n')
    (project / "deep" / "pyproject.toml").write_text('[project]\nname = "without settings"\n')
    monkeypatch.setenv("TILESIGHT_EFFORT", "predict")
    found = load_settings()
    assert (found.target, found.effort, found.budget_s, found.workers) == ("h100", "predict", 600.0, 3)
    assert found.database_url == str(project / "results/own.db")
    assert found.cache_dir == Path("/cache")
    assert found.layers == (str(project / "team.db"), "sqlite:///x.db")
    assert found.kernel_modules == ("my_ops", str(project / "more_ops.py"))
    assert found.sources["target"] == str(file)
    assert found.sources["effort"] == "TILESIGHT_EFFORT"
    assert found.sources["cache_dir"] == str(file)


def test_a_project_file_has_a_table_of_settings(project: Path) -> None:
    (project / "pyproject.toml").write_text('[tool.tilesight]\ntarget = "./mine.toml"\n')
    assert load_settings().target == str(project / "mine.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("efort = 'full'", "'efort' is no setting; did you mean effort?"),
        ("color = 1", "'color' is no setting; "),
        ("effort = 'fast'", "effort='fast' must be one of glance, predict, build, quick, full, exhaustive"),
        ("workers = 0", "workers=0 must be a whole number from 1 to 1024"),
        ("workers = true", "workers=True must be a whole number"),
        ("budget = '10 days'", "budget='10 days' must be a time above 0"),
        ("kernels = [1.5, []]", "kernels=[1.5, []] must be a list of modules or files"),
        ("target = ", "is not valid TOML: "),
    ],
)
def test_a_wrong_file_is_refused_with_file_key_and_rule(project: Path, text: str, message: str) -> None:
    (project / "tilesight.toml").write_text(text)
    with pytest.raises(InputError) as caught:
        load_settings()
    assert str(project / "tilesight.toml") in str(caught.value)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("TILESIGHT_EFFORT", "fast"),
        ("TILESIGHT_WORKERS", "0"),
        ("TILESIGHT_MAX_NOISE", "-1"),
        ("TILESIGHT_MAX_AUTOTUNE", "yes"),
    ],
)
def test_a_wrong_variable_is_refused_with_its_rule(
    variable: str, value: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(variable, value)
    with pytest.raises(InputError, match=f"{variable}='{value}' must be "):
        load_settings()


@pytest.mark.parametrize("key", ["kernels", "cache_dir"])
@pytest.mark.parametrize("who", ["another user", "all users", "another user's link"])
def test_a_file_that_others_can_write_names_no_code(
    project: Path, monkeypatch: pytest.MonkeyPatch, key: str, who: str
) -> None:
    file = project / "tilesight.toml"
    file.write_text(f'target = "h100"\n{key} = "./theirs.py"\n')
    if who == "all users":
        file.chmod(0o666)
    elif who == "another user's link":
        mine = file.rename(project / "mine.toml")
        file.symlink_to(mine)
        who = "another user"
        if os.getuid() == 0:
            os.chown(file, 12345, -1, follow_symlinks=False)
        else:
            monkeypatch.setattr(os, "getuid", lambda: file.lstat().st_uid + 1)
    else:
        if os.getuid() == 0:
            os.chown(file, 12345, -1)
        monkeypatch.setattr(os, "getuid", lambda: file.stat().st_uid + 1)
    variable = next(setting.variable for setting in SETTINGS if setting.key == key)
    with pytest.raises(InputError, match=f"{who}.*'{key}' says which code runs here; set {variable}"):
        load_settings()
    monkeypatch.setenv(variable, "./mine.py")  # what the user says counts alone
    assert load_settings().target == "h100"


def test_lists_in_the_environment() -> None:
    found = load_settings(
        {"TILESIGHT_KERNELS": f"a,b.c{os.pathsep}./d.py", "TILESIGHT_LAYERS": "x.db:y,z.db"}
    )
    assert found.kernel_modules == ("a", "b.c", "./d.py")
    assert found.layers == ("x.db", "y,z.db")


def test_times() -> None:
    assert [read_seconds(text) for text in ("600", "90s", "10m", "1.5h")] == [600, 90, 600, 5400]
    with pytest.raises(ValueError, match="0"):
        read_seconds("0")


def test_the_python_interface_follows_settings(project: Path) -> None:
    (project / "tilesight.toml").write_text('effort = "full"\nbudget = 90\n')
    assert (TuneOptions.of().effort, TuneOptions.of().budget_s) == (Effort.FULL, 90.0)
    chosen = TuneOptions.of(effort="quick", budget_s=5.0)
    assert (chosen.effort, chosen.budget_s) == (Effort.QUICK, 5.0)


def test_both_hosts_take_the_target_from_the_settings(
    project: Path, fake_line: FakeLine, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    text = Path(load_target.__globals__["__file__"]).with_name("cpu.toml").read_text(encoding="utf-8")
    (project / "mine.toml").write_text(text.replace('name = "cpu"', 'name = "mine"'))
    (project / "tilesight.toml").write_text('target = "mine.toml"\n')
    shell = Shell(capsys, fake_line)
    [result] = tilesight.rank("axpy")
    assert result.context.target == "mine"
    ranked = json.loads(shell("rank", "axpy", "--json")[1])["sessions"][0]
    assert ranked["target"] == "mine"
    given = json.loads(shell("rank", "axpy", "--target", "h100", "--json")[1])["sessions"][0]
    assert given["target"] == "h100"
    monkeypatch.setenv("TILESIGHT_TARGET", "a100")
    assert json.loads(shell("space", "axpy", "--json")[1])["target"] == "a100"


def test_doctor_shows_each_setting_and_its_source(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (project / "tilesight.toml").write_text('target = "h200"\n')
    monkeypatch.setenv("TILESIGHT_EFFORT", "full")
    monkeypatch.setenv("TILESIGHT_DB", "postgresql://me:secret@nowhere.invalid/db")
    shell = Shell(capsys)
    out = shell("doctor", "--json")[1]
    assert "secret" not in out
    rows = {row["setting"]: (row["value"], row["source"]) for row in json.loads(out)["settings"]}
    assert rows["target"] == ("h200", str(project / "tilesight.toml"))
    assert rows["effort"] == ("full", "TILESIGHT_EFFORT")
    assert rows["max_noise"] == ("0.1", "default")
    assert rows["database"][1] == "TILESIGHT_DB"
    given = json.loads(shell("doctor", "--json", "--db", str(tmp_path / "x.db"))[1])["settings"]
    assert {row["setting"]: row["source"] for row in given}["database"] == "--db"
    assert "TILESIGHT_EFFORT" in shell("doctor")[1]


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("target = \n", "is not valid TOML"),
        ('targt = "h200"\n', "'targt' is no setting; did you mean target?"),
        ("workers = 0\n", "workers=0 must be a whole number"),
    ],
)
def test_doctor_goes_on_where_the_settings_file_is_refused(
    project: Path, capsys: pytest.CaptureFixture[str], text: str, told: str
) -> None:
    (project / "tilesight.toml").write_text(text)
    code, out, _ = Shell(capsys)("doctor", "--json")
    checks = {row["name"]: row for row in json.loads(out)["checks"]}
    assert code == 5, "every other command refuses to start"
    assert not checks["settings"]["ok"]
    assert told in checks["settings"]["hint"]
    assert checks["database"]["ok"]
    assert len(checks) > 4, "the other checks are made"
    assert {row["source"] for row in json.loads(out)["settings"]}.isdisjoint(
        {str(project / "tilesight.toml")}
    )
    code, out, _ = Shell(capsys)("doctor")
    assert code == 5
    assert told in " ".join(out.split())


def test_doctor_names_every_wrong_setting_at_once(
    project: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (project / "tilesight.toml").write_text('effort = "most"\ntarget = "h200"\n')
    monkeypatch.setenv("TILESIGHT_WORKERS", "many")
    found = json.loads(Shell(capsys)("doctor", "--json")[1])
    hint = next(row["hint"] for row in found["checks"] if row["name"] == "settings")
    assert "effort='most' must be" in hint
    assert "TILESIGHT_WORKERS='many' must be" in hint
    shown = {row["setting"]: row["value"] for row in found["settings"]}
    assert (shown["target"], shown["effort"]) == ("h200", "quick"), "what is right of the file counts"
    with pytest.raises(InputError):  # only doctor goes on
        load_settings()
