"""Dispatchers over a database and a kernel cache on a file system that is mounted for reading only."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.preloaded import run_python

USE = """
import sys
import torch
from tilesight.dispatch.make import dispatcher
b = torch.randn(48, 40)
for sizes in ((8, 16), (8,)):  # a built kernel and a new size; a second dispatcher of the process
    with dispatcher("matmul", "cpu", n=40, k=48, workers=1) as made:
        for m in sizes:
            a = torch.randn(m, 48)
            assert torch.allclose(made(a, b), a @ b, atol=1e-3)
            print(made.choose(m=m).source)
        assert made.misses == []
        assert "nothing is recorded, misses neither" in made.explain()
"""
FILL = """
import torch
from tilesight.dispatch.make import dispatcher
with dispatcher("matmul", "cpu", n=40, k=48, workers=1) as made:
    made(torch.randn(8, 48), torch.randn(48, 40))
"""
READS = """
from tilesight.cli.main import main
for arguments in (["best"], ["status"], ["query", "select count(*) from dispatch_misses"]):
    try:
        main(["db", *arguments])
    except SystemExit as end:
        assert end.code == 0, arguments
        print("done")
"""
# $1 is mounted on itself for reading only, in a name space of the process alone
MOUNT = """
import ctypes, subprocess, sys
script = (
    'mount --make-rprivate / && mount --bind "$1" "$1" && mount -o remount,ro,bind "$1"'
    ' && ! touch "$1/probe" 2>/dev/null'
)
NEW_MOUNTS = 0x20000
if ctypes.CDLL(None).unshare(NEW_MOUNTS):
    sys.exit(77)
if subprocess.run(["sh", "-c", script, "sh", sys.argv[1]]).returncode:
    sys.exit(77)
"""


def run(program: str, place: Path, *, is_read_only: bool) -> subprocess.CompletedProcess[str]:
    """Run a program whose database and kernel cache lie in `place`."""
    temporary = place.parent / "temporary"
    temporary.mkdir(exist_ok=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(Path(__file__).resolve().parents[3]),
        "TILESIGHT_DB": f"sqlite:///{place}/performance.db",
        "TILESIGHT_CACHE_DIR": str(place / "cache"),
        "TMPDIR": str(temporary),
    }
    environment.pop("TILESIGHT_LAYERS", None)
    program = is_read_only * MOUNT + program
    return run_python("-c", program, place, env=environment, timeout=300, is_parent=True)


@pytest.mark.skipif(sys.platform != "linux", reason="needs mounts of its own")
def test_it_opens_chooses_serves_and_says_once_that_nothing_is_recorded(tmp_path: Path) -> None:
    place = tmp_path / "place"
    place.mkdir()
    filled = run(FILL, place, is_read_only=False)
    assert filled.returncode == 0, filled.stderr
    kept = sorted(file.name for file in place.rglob("*"))

    used = run(USE, place, is_read_only=True)
    if used.returncode == 77:
        pytest.skip(f"this user may mount nothing: {used.stderr}")
    assert used.returncode == 0, used.stderr
    assert used.stdout.split() == ["default"] * 3
    assert used.stderr.count("nothing is recorded, misses neither") == 1
    assert used.stderr.count(f"kernel cache '{place}/cache' cannot be written") == 1
    assert used.stderr.count("has no built kernel: this call builds") == 1  # the new size, not the built one
    assert len(used.stderr.splitlines()) == 3, used.stderr
    assert sorted(file.name for file in place.rglob("*")) == kept
    assert [file.name for file in (tmp_path / "temporary").iterdir() if "tilesight" in file.name] == []

    found = run(READS, place, is_read_only=True)
    assert found.returncode == 0, found.stderr
    assert found.stdout.split("\n").count("done") == 3


def test_without_a_database_where_none_can_be_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tilesight.dispatch.make import dispatcher

    monkeypatch.setenv("TILESIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("pathlib.Path.mkdir", refuse)
    url = f"sqlite:///{tmp_path}/none/performance.db"
    with dispatcher("matmul", "cpu", database=url, layers=[], n=40, k=48) as made:
        assert made.choose(m=8).source == "default"
        assert "cannot be written" in made.explain()
    assert not (tmp_path / "none").exists()


def refuse(self: Path, *_: object, **__: object) -> None:
    raise OSError(30, "Read-only file system", str(self))
