"""The right to tune: one process at a time, and none once its owner is gone."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tilesight.autotuning.one_tunes import right_to_tune, who_tunes
from tilesight.errors import ToolchainError

OWNER = """
import sys, time
from pathlib import Path
from tilesight.autotuning.one_tunes import right_to_tune
with right_to_tune(Path(sys.argv[1]), "abc", wait=False) as ours:
    print(ours, flush=True)
    time.sleep(60)
"""


def owner(folder: Path) -> subprocess.Popen[str]:
    root = str(Path(__file__).resolve().parents[3])
    process = subprocess.Popen(
        [sys.executable, "-c", OWNER, folder], stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": root}
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "True\n"
    return process


def test_one_has_it_and_its_death_frees_it(tmp_path: Path) -> None:
    process = owner(tmp_path)
    try:
        assert who_tunes(tmp_path, "abc") == process.pid
        with right_to_tune(tmp_path, "abc", wait=False) as ours:
            assert not ours
        with right_to_tune(tmp_path, "other", wait=False) as ours:
            assert ours, "another context is another right"
    finally:
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert who_tunes(tmp_path, "abc") is None
    with right_to_tune(tmp_path, "abc", wait=True) as ours:
        assert ours
        assert who_tunes(tmp_path, "abc") == os.getpid()
    assert who_tunes(tmp_path, "abc") is None


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolchainError, match="set TILESIGHT_CACHE_DIR"):
        who_tunes(tmp_path / "file", "abc")


@pytest.mark.parametrize("wait", [True, False])
def test_a_cache_that_knows_no_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wait: bool) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    monkeypatch.setattr("tilesight.file_lock.fcntl.flock", refuse)
    with pytest.raises(ToolchainError, match=r"No locks available; set TILESIGHT_CACHE_DIR to a folder"):
        who_tunes(tmp_path, "abc")
    with pytest.raises(ToolchainError, match="No locks available"), right_to_tune(tmp_path, "abc", wait=wait):
        pass


def test_what_fails_under_the_lock_is_no_fault_of_the_cache(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="disk") as raised, right_to_tune(tmp_path, "abc", wait=False):
        raise OSError("disk")
    assert not isinstance(raised.value, ToolchainError)
