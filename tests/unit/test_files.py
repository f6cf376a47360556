"""Files that commands write: whole, or not at all."""

from __future__ import annotations

import os
import stat
import time
from pathlib import Path

import pytest

from tilesight.errors import InputError
from tilesight.files import may_write, replacing


def names(folder: Path) -> list[str]:
    return sorted(file.name for file in folder.iterdir())


def test_where_files_may_be_made(tmp_path: Path) -> None:
    assert may_write(tmp_path)
    assert may_write(tmp_path / "new" / "newer")
    closed = tmp_path / "closed"
    closed.mkdir(mode=0o555)
    was_root = os.geteuid() == 0  # whom permissions do not stop
    if was_root:
        os.seteuid(65534)
    try:
        assert not may_write(closed)
        assert not may_write(closed / "new" / "newer")
    finally:
        if was_root:
            os.seteuid(0)


def test_a_file_is_replaced_once_the_new_one_is_whole(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    out.write_text("of before")
    with replacing(out, "export failed") as partial_path:
        assert not partial_path.exists()
        partial_path.write_text("new")
        assert out.read_text() == "of before"
    assert (names(tmp_path), out.read_text()) == (["out.csv"], "new")


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt])
def test_what_fails_leaves_the_file_of_before(tmp_path: Path, error: type[BaseException]) -> None:
    out = tmp_path / "out.csv"
    out.write_text("of before")

    def fail() -> None:
        with replacing(out, "export failed") as partial_path:
            partial_path.write_text("half")
            raise error

    with pytest.raises(error):
        fail()
    assert (names(tmp_path), out.read_text()) == (["out.csv"], "of before")


def test_several_write_one_file_at_once_and_the_last_ones_stays(tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    with replacing(out, "export failed") as first, replacing(out, "export failed") as second:
        assert first != second
        second.write_text("of the second")
        first.write_text("of the first")
    assert (names(tmp_path), out.read_text()) == (["out.csv"], "of the first")


def test_its_mode_is_that_of_any_new_file_and_a_link_becomes_a_file(tmp_path: Path) -> None:
    (tmp_path / "target").write_text("stays")
    out = tmp_path / "out.csv"
    out.symlink_to(tmp_path / "target")
    umask = os.umask(0o027)
    try:
        with replacing(out, "export failed") as partial_path:
            partial_path.write_text("new")
    finally:
        os.umask(umask)
    assert stat.S_IMODE(out.lstat().st_mode) == 0o640
    assert not out.is_symlink()
    assert (tmp_path / "target").read_text() == "stays"


def test_what_killed_processes_left_goes_after_a_day(tmp_path: Path) -> None:
    old, fresh = ("out.0123456789abcdef.csv.partial", "out.fedcba9876543210.csv.partial")
    others = [
        "out.csv.partial",
        "more.0123456789abcdef.csv.partial",
        "out.0123456789abcdef.csv.partial.mine",
        "out.0123456789abcdef.csv",
    ]
    for name in [old, f"{old}-journal", fresh, *others]:
        (tmp_path / name).write_text("half")
        if name != fresh:
            os.utime(tmp_path / name, (time.time() - 25 * 3600,) * 2)
    with replacing(tmp_path / "out.csv", "export failed") as partial_path:
        partial_path.write_text("new")
    assert names(tmp_path) == sorted(["out.csv", fresh, *others])


def test_what_the_file_system_refuses_is_told(tmp_path: Path) -> None:
    with (
        pytest.raises(
            InputError,
            match=r"^export failed: No such file or directory; "
            r"name a file in a folder that exists and has space$",
        ),
        replacing(tmp_path / "none" / "out.csv", "export failed") as partial_path,
    ):
        partial_path.write_text("new")
    with (
        pytest.raises(InputError, match=r"^export failed: No such file"),
        replacing(tmp_path / "out.csv", "export failed"),
    ):
        pass  # nothing was written: nothing takes its place
    assert names(tmp_path) == []
