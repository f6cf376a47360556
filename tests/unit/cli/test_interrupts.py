"""Ctrl-C, once or many times, and SIGTERM: commands end in order, with the first signal's exit code."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tilesight.cli.interrupts import PATIENCE_S, Interrupts

ROOT = str(Path(__file__).resolve().parents[3])
TEXT = "interrupted: finished results are recorded; run the same command again to continue\n"
# a command whose orderly end takes a while, in a process that takes a while to end, too
SLOW = """
import atexit, sys, time
sys.argv = ["tilesight", "doctor"]
import tilesight.cli.commands as commands
from tilesight.cli.main import main
def waits(*_, **__):
    try:
        print("begun", flush=True)
        time.sleep(60)
    finally:
        print("ending", flush=True)
        time.sleep(0.4)
        print("cleaned up", flush=True)
commands.cli.invoke = waits
atexit.register(time.sleep, 0.4)
main()
"""


def started(*command: str, cwd: Path, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": ROOT, **environment},
        start_new_session=True,
    )


def has_processes(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True


@pytest.mark.parametrize(
    ("numbers", "code"),
    [
        ([signal.SIGINT], 130),
        ([signal.SIGINT, signal.SIGINT], 130),
        ([signal.SIGTERM], 143),
        ([signal.SIGTERM, signal.SIGINT], 143),
        ([signal.SIGINT, signal.SIGTERM], 130),
    ],
)
def test_the_first_signal_ends_a_command_in_order(
    tmp_path: Path, numbers: list[signal.Signals], code: int
) -> None:
    process = started(sys.executable, "-c", SLOW, cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    process.send_signal(numbers[0])
    # signals that wait together are handled by their number: send no other before this one is handled
    assert process.stdout.readline() == "ending\n"
    while process.poll() is None:  # during its own end and the end of Python
        time.sleep(0.02)
        process.send_signal(numbers[-1])
        if len(numbers) == 1:
            break
    out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (code, "cleaned up\n", TEXT)


def test_ctrl_c_while_a_string_is_executed(tmp_path: Path) -> None:
    program = SLOW.replace("time.sleep(60)", "exec('time.sleep(60)', {'time': time})")
    (tmp_path / "waiting.py").write_text(program)
    process = started(sys.executable, "-m", "waiting", cwd=tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "begun\n"
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, TEXT)


@pytest.mark.parametrize("seed", range(3))
def test_a_real_command_that_is_interrupted_again_and_again(tmp_path: Path, seed: int) -> None:
    chosen = random.Random(seed)
    command = ["tune", "matmul", "--target", "cpu", "--shape", "m=64,n=64,k=64", "--workers", "2"]
    process = started(
        *(sys.executable, "-m", "tilesight.cli.main", *command),
        cwd=tmp_path,
        TILESIGHT_DB=f"sqlite:///{tmp_path}/performance.db",
        TILESIGHT_CACHE_DIR=str(tmp_path / "cache"),
    )
    while process.poll() is None and not (tmp_path / "performance.db").exists():
        time.sleep(0.01)
    time.sleep(chosen.uniform(0, 2))
    while process.poll() is None:
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        time.sleep(chosen.uniform(0, 0.2))
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
    assert err.endswith(TEXT)
    assert not list(tmp_path.glob("cache/kernels/building-*"))
    until = time.monotonic() + 10
    while has_processes(process.pid) and time.monotonic() < until:
        time.sleep(0.05)
    assert not has_processes(process.pid)


def test_a_hanging_end_can_be_interrupted(monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts = Interrupts()
    interrupts.install()
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGTERM)
        signal.raise_signal(signal.SIGINT)  # ignored
        now = time.monotonic()
        monkeypatch.setattr("time.monotonic", lambda: now + PATIENCE_S + 1)
        with pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGINT)
        assert interrupts.exit_code == 143
        interrupts.is_finished = True
        monkeypatch.setattr("time.monotonic", lambda: now + 3 * PATIENCE_S)
        signal.raise_signal(signal.SIGINT)
    finally:
        interrupts.uninstall()


def test_a_signal_that_the_parent_ignores_stays_ignored() -> None:
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)  # as nohup and the background of a shell do
    interrupts = Interrupts()
    try:
        interrupts.install()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
        interrupts.uninstall()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, before)
