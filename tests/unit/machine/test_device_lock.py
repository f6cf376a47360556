"""The lock of a GPU: one process at a time, also with obstacles that other users have created."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tilesight.errors import ToolchainError
from tilesight.machine import device_lock
from tilesight.machine.device_lock import alone_on, holder_of, taking_turns


@pytest.fixture(autouse=True)
def base(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tilesight.machine.device_lock._BASE", tmp_path)
    return tmp_path


@contextmanager
def other(folder: Path, uuid: str) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock, and prints a line when it does."""
    code = f"""
import time
from pathlib import Path
from tilesight.machine import device_lock
from tilesight.machine.device_lock import alone_on
device_lock._BASE = Path({str(folder)!r})
with alone_on({uuid!r}):
    print("held", flush=True)
    time.sleep(3600)
"""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    process = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment
    )
    assert process.stdout is not None
    try:
        yield process
    finally:
        process.kill()
        process.wait()
        process.stdout.close()


def test_one_process_at_a_time_and_the_lock_ends_with_its_process(base: Path) -> None:
    with other(base, "GPU-1") as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        assert holder_of("GPU-1") == process.pid
        with alone_on("GPU-2"):  # another device is free
            assert holder_of("GPU-2") == os.getpid()
        process.send_signal(signal.SIGKILL)
        with alone_on("GPU-1"):
            assert holder_of("GPU-1") == os.getpid()
    assert holder_of("GPU-1") is None


def test_it_waits_for_the_holder(base: Path) -> None:
    with alone_on("GPU-1"), other(base, "GPU-1") as process:
        assert process.stdout is not None
        os.set_blocking(process.stdout.fileno(), False)
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(1.0)
        with pytest.raises(BlockingIOError):
            os.read(process.stdout.fileno(), 1)


def test_an_exception_frees_it() -> None:
    with pytest.raises(KeyError), alone_on("GPU-1"):
        raise KeyError
    assert holder_of("GPU-1") is None


def test_all_users_of_the_machine_share_it(base: Path) -> None:
    before = os.umask(0o077)
    try:
        with alone_on("GPU-1"):
            folder = base / "tilesight-devices"
            assert stat.S_IMODE(folder.stat().st_mode) == 0o1777
            assert stat.S_IMODE((folder / "GPU-1.lock").stat().st_mode) == 0o666
    finally:
        os.umask(before)


def test_names_cannot_leave_the_folder(base: Path) -> None:
    with alone_on("../../GPU/1"):
        assert [path.name for path in (base / "tilesight-devices").iterdir()] == [".._.._GPU_1.lock"]


def own_folder(base: Path) -> Path:
    return base / f"tilesight-devices-{os.getuid()}"


@pytest.mark.parametrize(
    "obstacle",
    [
        "a file",
        "a link to a folder",
        "a link to nothing",
        "a linked lock",
        "a hard link",
        "a pipe",
        "a folder",
    ],
)
def test_an_obstacle_leads_to_a_folder_of_the_user(base: Path, obstacle: str) -> None:
    victim, folder = base / "victim", base / "tilesight-devices"
    victim.write_text("precious")
    (base / "elsewhere").mkdir()
    if obstacle == "a file":
        folder.touch()
    elif obstacle.startswith("a link to"):
        folder.symlink_to(base / ("elsewhere" if obstacle.endswith("folder") else "nowhere"))
    else:
        folder.mkdir()
        lock = folder / "GPU-1.lock"
        make = {"a linked lock": lock.symlink_to, "a hard link": lock.hardlink_to}
        if obstacle in make:
            make[obstacle](victim)
        elif obstacle == "a pipe":
            os.mkfifo(lock)
        else:
            lock.mkdir()
    with alone_on("GPU-1"):
        assert (own_folder(base) / "GPU-1.lock").is_file()
        assert holder_of("GPU-1") == os.getpid()
    assert stat.S_IMODE(own_folder(base).stat().st_mode) == 0o700
    assert victim.read_text() == "precious"
    assert list((base / "elsewhere").iterdir()) == []


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_without_the_sticky_bit_is_not_used(base: Path) -> None:
    folder = base / "tilesight-devices"
    folder.mkdir()
    folder.chmod(0o777)
    os.chown(folder, 12345, 12345)
    with alone_on("GPU-1"):
        assert own_folder(base).is_dir()
        assert list(folder.iterdir()) == []


def test_the_users_temporary_folder_is_the_last_resort(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container `/tmp` may be read-only."""
    (base / "tilesight-devices").touch()
    own_folder(base).touch()
    (base / "other").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(base / "other"))
    with alone_on("GPU-1"):
        assert own_folder(base / "other").is_dir()


def test_without_a_usable_folder_there_is_an_error(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (base / "tilesight-devices").touch()
    own_folder(base).touch()
    monkeypatch.setattr("tempfile.tempdir", str(base))
    with pytest.raises(
        ToolchainError,
        match=r"no lock can be had for GPU-1: .*is not a folder; .*; make one of these folders writable",
    ):
        alone_on("GPU-1").__enter__()


def test_several_locks_are_held_together() -> None:
    with alone_on("GPU-2", "GPU-1"):
        assert holder_of("GPU-1") == holder_of("GPU-2") == os.getpid()
    assert holder_of("GPU-1") is holder_of("GPU-2") is None


def test_processes_that_had_the_lock_lately_take_turns(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with other(base, "GPU-1") as process:
        assert process.stdout is not None
        process.stdout.readline()
        assert taking_turns("GPU-1") == {process.pid}
        process.kill()
        with alone_on("GPU-1", "GPU-2"):
            assert taking_turns("GPU-1") == {process.pid, os.getpid()}
            assert holder_of("GPU-1") == os.getpid()
    assert taking_turns("GPU-1", "GPU-2") == {process.pid, os.getpid()}
    assert taking_turns("GPU-2") == {os.getpid()}
    assert taking_turns("GPU-3") == taking_turns() == frozenset()
    monkeypatch.setattr(device_lock, "TURN_S", -1.0)
    assert not taking_turns("GPU-1"), "they may have ended"


def test_a_damaged_list_of_turns_is_begun_anew(base: Path) -> None:
    with alone_on("GPU-1"):
        pass
    [path] = base.rglob("GPU-1.lock")
    path.write_bytes(path.read_bytes()[:20] + b"7\nx y\n\xff 3\n1 nan\n")
    assert not taking_turns("GPU-1")
    with alone_on("GPU-1"):
        assert taking_turns("GPU-1") == {os.getpid()}
