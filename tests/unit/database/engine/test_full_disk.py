"""A full disk, where the kernel refuses any of SQLite's writes: what was recorded before is kept."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.preloaded import PreloadedPython
from tests.unit.database import samples
from tilesight.database import Store, open_store
from tilesight.problem.space import Census
from tilesight.records.session import Effort

ROOT = Path(__file__).resolve().parents[4]

# Records trials until the database raises an error; prints how many, and the error.
RECORDER = """
import resource, sys
from tests.unit.database import samples
from tests.unit.database.engine.test_full_disk import begin
from tilesight.database import open_store
from tilesight.errors import DatabaseError

url, limit = sys.argv[1], int(sys.argv[2])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
done = 0
try:
    with open_store(url) as store:
        session_id = begin(store)
        for number in range(5000):
            store.record(session_id, samples.context(), samples.verified(number, 10.0 + number))
            done += 1
except DatabaseError as error:
    print(done)
    print(type(error).__name__, error)
"""


def begin(store: Store) -> int:
    return store.begin(samples.context(), Effort.QUICK, 0, {}, Census(1, 1, {}))


def record_until_it_fails(command: list[str]) -> tuple[int, str]:
    with PreloadedPython(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        out, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    done, said = out.strip().split("\n")
    return int(done), said


def recorder(url: str, limit: int = 0) -> list[str]:
    return [sys.executable, "-c", RECORDER, url, str(limit)]


def assert_kept(url: str, done: int) -> None:
    with open_store(url) as store:
        wanted = {samples.config(n).key: samples.verified(n, 10.0 + n) for n in range(done)}
        assert store.recall(samples.context()) == wanted
        store.record(begin(store), samples.context(), samples.verified(done, 1.0))  # there is room again


def test_a_limit_of_file_sizes_is_reached(tmp_path: Path) -> None:
    """A limit like a quota: the log grows until the kernel refuses."""
    url = f"sqlite:///{tmp_path}/x.db"
    done, said = record_until_it_fails(recorder(url, 2 << 20))
    assert done > 5
    assert said.startswith("Database")
    assert f"'{tmp_path}/x.db'" in said
    assert "another disk with --db" in said
    assert "What was recorded before is kept" in said
    assert_kept(url, done)


def small_disk(folder: Path, size: str) -> list[str] | None:
    """A command that runs another with a small disk of its own mounted at `folder`; None where that is not
    allowed."""
    if not shutil.which("unshare") or not shutil.which("mount"):
        return None
    script = f"mount -t tmpfs -o size={size} none '{folder}' && exec \"$@\""
    for privileges in ([], ["--user", "--map-root-user"]):
        command = ["unshare", *privileges, "--mount", "sh", "-c", script, "sh"]
        if subprocess.run([*command, "true"], capture_output=True).returncode == 0:
            return command
    return None


def test_a_disk_that_fills_up(tmp_path: Path) -> None:
    disk = small_disk(tmp_path, "3m")
    if disk is None:
        pytest.skip("no small disk can be mounted here: needs root, or user namespaces")
    # the disk goes with its processes: what is left of the database is copied off it
    copy = Path(f"{tmp_path}-kept")
    copy.mkdir()
    keep = f"\"$@\"; cp {tmp_path}/x.db* '{copy}'"
    done, said = record_until_it_fails(
        [*disk, "sh", "-c", keep, "sh", *recorder(f"sqlite:///{tmp_path}/x.db")]
    )
    assert done > 5
    assert said.startswith("DatabaseFullError no space left for database")
    assert not os.listdir(tmp_path)
    assert_kept(f"sqlite:///{copy}/x.db", done)
