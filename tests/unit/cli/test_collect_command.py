"""`tilesight collect` as a user types it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.unit.cli.documented import check_fields
from tests.unit.cli.test_commands import Shell
from tests.unit.conftest import FakeLine
from tests.unit.datasets.test_collect import Device
from tests.unit.datasets.test_refresh import NewReader, row, write
from tilesight.errors import Failure
from tilesight.problem.space import Config
from tilesight.records.dataset import read_dataset


@pytest.fixture
def shell(capsys: pytest.CaptureFixture[str], fake_line: FakeLine) -> Shell:
    fake_line.executor = Device()
    return Shell(capsys, fake_line)


def test_collects_and_says_what(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    code, out, err = shell(
        "collect", "axpy", "--target", "cpu", "--shape", "all", "--samples", "30", "--out", str(path)
    )
    assert code == 0
    assert len(read_dataset(path)) == 60
    heading, *lines = out.splitlines()
    assert heading.split() == [
        "case",
        "rows",
        "right",
        "same",
        "code",
        "failed",
        "fastest",
        "us",
        "vendor",
        "us",
        "vendor",
    ]
    first = lines[0].split()
    assert first[0] == "axpy(n=1024;dtype=float32)"
    assert first[1] == "30"
    assert int(first[2]) + int(first[3]) == 30
    assert first[-2:] == ["12.00", "vendor"]
    assert f"60 rows in {path}" in out.replace("\n", "")
    assert "2 workloads on the machine at hand" in err
    assert "axpy X0: n=1024 float32: " in err
    assert all(len(line) <= 100 for line in out.splitlines())


def test_json(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    code, out, _ = shell(
        "collect", "axpy", "--target", "cpu", "--samples", "4", "--out", str(path), "--json", "--seed", "3"
    )
    assert code == 0
    found = json.loads(out)
    assert (found["kind"], found["rows"], found["complete"], found["file"]) == ("collect", 4, True, str(path))
    assert found["bytes"] == path.stat().st_size
    (case,) = found["cases"]
    assert case["candidates"] == 4
    assert case["vendor_us"] == 12.0
    (run,) = read_dataset(path).runs.values()
    assert run["program"].startswith("tilesight ")
    assert run["seed"] == 3


def test_a_budget_that_ends_early_is_said(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    code, out, err = shell(
        "collect", "axpy", "--target", "cpu", "--samples", "4", "--out", str(path), "--budget", "0.0000001"
    )
    assert code == 0
    assert "not complete: run the same command again to continue" in out.replace("\n", " ")
    assert "the time budget ended the collection early" in err


def test_an_interrupt_keeps_what_was_measured(shell: Shell, tmp_path: Path) -> None:
    path, count = tmp_path / "d.parquet", 0

    def stop(stage: str, _config: Config) -> Failure | None:
        nonlocal count
        count += stage == "measure"
        if count == 3:
            raise KeyboardInterrupt
        return None

    assert shell.line is not None
    shell.line.executor = Device(stop)
    code, _, err = shell("collect", "axpy", "--target", "cpu", "--samples", "9", "--out", str(path))
    assert code == 130
    assert "run the same command again to continue" in err
    assert len(read_dataset(path).verified()) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("axpy",), "collect needs --samples N, --out FILE"),
        (("--samples", "3"), "collect needs KERNEL, --out FILE"),
        (("axpi", "--samples", "3", "--out", "d.parquet"), "unknown kernel 'axpi'; did you mean axpy?"),
        (("axpy", "--refresh", "d.parquet"), "--refresh FILE takes no kernels"),
        (("--refresh", "nothing.parquet"), "there is no such file"),
    ],
)
def test_what_is_asked_wrongly(shell: Shell, arguments: tuple[str, ...], message: str) -> None:
    code, out, err = shell("collect", "--target", "cpu", *arguments)
    assert (code, out) == (2, "")
    assert message in err


def test_refresh(shell: Shell, tmp_path: Path) -> None:
    path = tmp_path / "d.parquet"
    write(path, [row(1), row(2), row(3, fingerprint="other")])
    assert shell.line is not None
    shell.line.executor = NewReader()
    code, out, _ = shell("collect", "--refresh", str(path))
    assert code == 0
    assert "1 profiles changed, 1 are unchanged; 1 rows kept their profile" in out.replace("\n", " ")
    code, out, _ = shell("collect", "--refresh", str(path), "--json")
    assert code == 0
    refreshed = json.loads(out)
    assert refreshed["same"] == 2
    code, out, _ = shell(
        "collect", "axpy", "--target", "cpu", "--samples", "2", "--out", str(tmp_path / "e.parquet"), "--json"
    )
    assert code == 0
    check_fields("collect", [json.loads(out), refreshed])
