"""What else runs on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest

from tilesight.machine.devices import Device
from tilesight.machine.load import BusyProcess, LoadMeter, MachineLoad, busy_text, machine_load

SPIN = "while True: pass"


@pytest.fixture
def stranger() -> Iterator[int]:
    """A busy process that is no descendant of this one."""
    program = (
        f"import subprocess, sys; print(subprocess.Popen([sys.executable, '-c', {SPIN!r}], stdout=2).pid)"
    )
    started = subprocess.run(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, check=True, timeout=60
    )
    pid = int(started.stdout)
    yield pid
    os.kill(pid, 9)


def test_a_busy_stranger_is_named(stranger: int) -> None:
    found = machine_load(0.5)
    [seen] = [process for process in found.processes if process.pid == stranger]
    assert 0.1 < seen.cores < 1.2
    assert seen.name in found.text or len(found.processes) > 3
    text = busy_text(())
    assert text is None or "other processes use" in text


def test_own_children_do_not_count() -> None:
    meter = LoadMeter()
    child = subprocess.Popen([sys.executable, "-c", SPIN])
    try:
        found = meter.read() if child.poll() is not None else machine_load(0.3)
        assert child.pid not in {process.pid for process in found.processes}
    finally:
        child.kill()
        child.wait()


def test_the_busiest_come_first_and_the_rest_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    load = MachineLoad(tuple(BusyProcess(n, f"p{n}", cores) for n, cores in enumerate((1.5, 1.0, 0.5, 0.2))))
    assert load.text == "other processes use 3.2 cores: p0 (0) 1.5, p1 (1) 1.0, p2 (2) 0.5, 1 more"
    monkeypatch.setattr("tilesight.machine.load.machine_load", lambda: load)
    monkeypatch.setattr("tilesight.machine.load.gpu_busy_share", lambda _uuid: 0.9)
    gpu = Device("NVIDIA H200", "GPU-1", "580", "cuda", 0, 1)
    assert busy_text([gpu]) == f"NVIDIA H200 GPU-1 is 90% busy with other work; {load.text}"
    monkeypatch.setattr("tilesight.machine.load.machine_load", lambda: MachineLoad(()))
    monkeypatch.setattr("tilesight.machine.load.gpu_busy_share", lambda _uuid: 0.0)
    assert busy_text([gpu]) is None
