"""The tuning lock: one process at a time, none once that process is gone."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tilesight.errors import ToolchainError
from tilesight.tuner.tuning_lock import tuning_lock, tuning_process

OWNER = """
import sys, time
from pathlib import Path
from tilesight.tuner.tuning_lock import tuning_lock
with tuning_lock(Path(sys.argv[1]), "abc", wait=False) as ours:
    print(ours, flush=True)
    time.sleep(60)
"""


def owner(folder: Path, program: str = OWNER) -> subprocess.Popen[str]:
    root = str(Path(__file__).resolve().parents[3])
    process = subprocess.Popen(
        [sys.executable, "-c", program, folder],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": root},
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_one_process_holds_the_lock_and_its_death_frees_it(tmp_path: Path) -> None:
    process = owner(tmp_path)
    try:
        assert tuning_process(tmp_path, "abc") == process.pid
        with tuning_lock(tmp_path, "abc", wait=False) as ours:
            assert not ours
        with tuning_lock(tmp_path, "other", wait=False) as ours:
            assert ours, "another context is another right"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert tuning_process(tmp_path, "abc") is None
    with tuning_lock(tmp_path, "abc", wait=True) as ours:
        assert ours
        assert tuning_process(tmp_path, "abc") == os.getpid()
    assert tuning_process(tmp_path, "abc") is None


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolchainError, match="set TILESIGHT_CACHE_DIR"):
        tuning_process(tmp_path / "file", "abc")


@pytest.mark.parametrize("wait", [True, False])
def test_a_file_system_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("tilesight.files.fcntl.flock", refuse)
    with pytest.raises(ToolchainError, match=r"No locks available; set TILESIGHT_CACHE_DIR to a folder"):
        tuning_process(tmp_path, "abc")
    with pytest.raises(ToolchainError, match="No locks available"), tuning_lock(tmp_path, "abc", wait=wait):
        pass


def test_an_error_under_the_lock_passes_unchanged(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk") as raised, tuning_lock(tmp_path, "abc", wait=False):
        raise OSError("disk")
    assert not isinstance(raised.value, ToolchainError)


FORKER = """
import os, sys, time
from pathlib import Path
from tilesight.tuner.tuning_lock import tuning_lock
with tuning_lock(Path(sys.argv[1]), "abc", wait=False) as ours:
    parent = os.getpid()
    if os.fork() == 0:
        print(ours, flush=True)
        time.sleep(60 if os.getppid() == parent else 0)
        os._exit(0)
    time.sleep({seconds})
print("ended", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("is_killed", [False, True])
def test_a_forked_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path, is_killed: bool) -> None:
    process = owner(tmp_path, FORKER.format(seconds=60 if is_killed else 0.1))
    try:
        assert process.stdout is not None
        if is_killed:
            process.send_signal(signal.SIGKILL)
            process.wait()
        else:
            assert process.stdout.readline() == "ended\n"
        with tuning_lock(tmp_path, "abc", wait=False) as ours:
            assert ours
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
