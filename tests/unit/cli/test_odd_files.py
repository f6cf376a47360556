"""Files that users name: endless, deeply nested, or with names and content that are not UTF-8."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.preloaded import run_python
from tilesight.cli.main import main
from tilesight.dispatch.table.table_file import read_table
from tilesight.errors import InputError

NAME = os.fsdecode(b"bad\xff")  # no UTF-8
PLAN = ("plan", "matmul", "--target", "cpu", "--vary", "m=1..8", "--shape", "n=64,k=64", "--weights")


def make_nested_array(path: Path) -> None:
    path.write_text("a = " + "[\n" * 100_000)


def make_long_key(path: Path) -> None:
    path.write_text("a" + ".a" * 50_000 + " = 1\n")  # takes a TOML reader minutes


def make_huge(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)  # without blocks on disk


def make_binary(path: Path) -> None:
    path.write_bytes(b"\0\xff\xfe")


def make_endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.parametrize(
    "arguments", [("targets",), ("rank", "matmul", "--target"), PLAN, ("collect", "--workloads")]
)
@pytest.mark.parametrize("make", [make_nested_array, make_long_key, make_huge, make_binary, make_endless])
def test_a_file_that_cannot_be_used_is_wrong_input_in_one_line(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
    make: Callable[[Path], None],
) -> None:
    file = tmp_path / "odd.toml"
    make(file)
    after = ["--out", str(tmp_path / "x.parquet"), "--target", "cpu"] if arguments[0] == "collect" else []
    with pytest.raises(SystemExit) as ended:
        main([*arguments, str(file), *after])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_names_that_are_not_utf8_are_shown(tmp_path: Path) -> None:
    """A dataset, which another library writes, under a locale whose encoding is strict."""
    shape = ("--shape", "m=64,n=64,k=64", "--target", "cpu", "--samples", "1", "--workers", "1")
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
        "PYTHONIOENCODING": "utf-8:strict",
        "TILESIGHT_DB": f"sqlite:///{tmp_path}/performance.db",
        "TILESIGHT_CACHE_DIR": str(tmp_path / "cache"),
    }
    options = {"cwd": tmp_path, "env": environment, "text": False}
    command = ("-m", "tilesight.cli.main")
    done = run_python(
        *command, "collect", "matmul", *shape, "--out", f"{NAME}.parquet", is_parent=True, **options
    )
    assert done.returncode == 0, done.stderr
    assert rb"rows in bad\udcff.parquet" in done.stdout
    assert (tmp_path / f"{NAME}.parquet").is_file()

    done = run_python(*command, "targets", f"{NAME}.toml", **options)
    assert done.returncode == 2
    assert done.stderr == b"error: target file 'bad\\udcff.toml' cannot be read: No such file or directory\n"


@pytest.mark.parametrize("text", ["[" * 100_000, '{"format":' * 50_000])
def test_a_table_of_deep_nesting_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "table.json").write_text(text)
    with pytest.raises(InputError, match=r"dispatch table '.*' *: it is not JSON"):
        read_table(tmp_path / "table.json")


def test_an_endless_table_is_refused() -> None:
    with pytest.raises(InputError, match="larger than 16 MiB"):
        read_table("/dev/zero")
