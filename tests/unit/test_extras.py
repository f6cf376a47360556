"""Extras: what needs them, and what is said where one is missing."""

from __future__ import annotations

import json
import sys
import tomllib
from pathlib import Path

import pytest

from tests.unit.cli.test_commands import Shell
from tests.unit.conftest import FakeLine
from tilesight.errors import ToolchainError
from tilesight.extras import EXTRAS, require_extra
from tilesight.tuner.options import TuneOptions

PROJECT = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def test_they_are_those_of_the_project() -> None:
    declared = {name: lines[0] for name, lines in PROJECT["optional-dependencies"].items() if name != "dev"}
    assert set(declared) == set(EXTRAS)
    for name, requirement in declared.items():
        assert requirement.startswith(f"{EXTRAS[name].package}>="), name


def test_a_missing_one_is_named_with_the_command_that_adds_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(ToolchainError) as caught:
        require_extra("ray", "cluster auto")
    text = "cluster auto needs ray, which is not installed here: pip install 'ray[client]'"
    assert str(caught.value) == text


def test_collect_says_so_before_any_work(
    fake_line: FakeLine,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = str(tmp_path / "d.parquet")
    code, _, err = Shell(capsys)("collect", "axpy", "--target", "cpu", "--samples", "4", "--out", out)
    assert code == 5
    assert "needs pyarrow, which is not installed here: pip install pyarrow" in err
    assert fake_line.executors_made == 0


def test_a_sampler_without_its_package_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cmaes", None)
    with pytest.raises(ToolchainError, match=r"sampler 'cmaes' needs cmaes, .*: pip install cmaes"):
        TuneOptions.of(sampler="cmaes")


def test_doctor_lists_them(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    shell = Shell(capsys)
    found = {row["name"]: row for row in json.loads(shell("doctor", "--json")[1])["extras"]}
    assert set(found) == set(EXTRAS)
    assert found["plots"]["found"] is None
    assert found["plots"]["hint"] == "pip install matplotlib"
    assert found["parquet"]["needed_for"].startswith("collect, ")
    assert "pip install matplotlib" in shell("doctor")[1]
