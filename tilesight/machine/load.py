"""What else runs on this machine and its GPUs: other work makes measured times longer."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import psutil

from .devices import Device

BUSY_GPU = 0.05
BUSY_CORES = 0.5  # used by others; less disturbs few samples, and those are taken again
_INTERVAL_S = 0.3
_MOST_NAMED = 3
_LEAST_CORES = 0.01


@dataclass(frozen=True, slots=True)
class BusyProcess:
    """Another process and the number of cores that it uses."""

    pid: int
    name: str
    cores: float


@dataclass(frozen=True, slots=True)
class MachineLoad:
    """The visible processes that use the processor beside this one and its children, busiest first."""

    processes: tuple[BusyProcess, ...]

    @property
    def cores(self) -> float:
        """Cores that the others use together."""
        return sum(process.cores for process in self.processes)

    @property
    def text(self) -> str:
        """The load in words, with the busiest processes."""
        named = [f"{p.name} ({p.pid}) {p.cores:.1f}" for p in self.processes[:_MOST_NAMED]]
        more = len(self.processes) - len(named)
        others = [f"{more} more"] if more else []
        return f"other processes use {self.cores:.1f} cores: {', '.join([*named, *others])}"


def notice_load(devices: Sequence[Device], notice: Callable[[str], None]) -> None:
    """Tell the user what would disturb measurements on `devices`, if anything does."""
    busy = busy_text(devices)
    if busy:
        notice(f"this machine is busy, so times may be noisy: {busy}")


def busy_text(devices: Sequence[Device]) -> str | None:
    """What would disturb measurements on `devices` now; None if nothing does.

    Takes 0.3 s. Call it before this process works.
    """
    found = [
        f"{device.name} {device.uuid} is {share:.0%} busy with other work"
        for device in devices
        if device.kind != "cpu" and (share := gpu_busy_share(device.uuid) or 0.0) > BUSY_GPU
    ]
    load = machine_load()
    if load.cores >= BUSY_CORES:
        found.append(load.text)
    return "; ".join(found) or None


def gpu_busy_share(uuid: str) -> float | None:
    """The share of the last moments in which kernels ran on an NVIDIA GPU, 0 .. 1; None if it is unknown."""
    try:
        import pynvml

        return float(pynvml.nvmlDeviceGetUtilizationRates(nvml_device(pynvml, uuid)).gpu) / 100
    except Exception:  # not installed, no driver, another vendor's GPU, no permission
        return None


def nvml_device(nvml: Any, uuid: str) -> Any:
    """The device of a UUID, in CUDA's form or the driver's, in NVIDIA's management library.

    Raises the library's errors if there is no driver or no such device.
    """
    nvml.nvmlInit()
    return nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")


def machine_load(interval_s: float = _INTERVAL_S) -> MachineLoad:
    """Watch the processes of this machine for `interval_s` seconds."""
    meter = LoadMeter()
    time.sleep(interval_s)
    return meter.read()


class LoadMeter:
    """Watches the processor time of other processes, from now on.

    Processes that cannot be seen from here, such as those of other containers, do not count. Nor do this
    process, its ancestors and descendants, and the other children of its parent.
    """

    def __init__(self) -> None:
        self._begin, self._before = time.monotonic(), _cpu_seconds()

    def read(self) -> MachineLoad:
        """The load since this meter was made."""
        seconds, after = max(1e-3, time.monotonic() - self._begin), _cpu_seconds()
        parents = {pid: parent for (pid, _), (parent, _) in after.items()}
        above = set(_ancestors(os.getpid(), parents))
        found = []
        for (pid, name), (parent, used_s) in after.items():
            cores = (used_s - self._before.get((pid, name), (0, used_s))[1]) / seconds
            is_ours = (
                pid in above or parent == os.getppid() or os.getpid() in (pid, *_ancestors(pid, parents))
            )
            if cores > _LEAST_CORES and not is_ours:
                found.append(BusyProcess(pid, name, cores))
        return MachineLoad(tuple(sorted(found, key=lambda process: -process.cores)))


def _ancestors(pid: int, parents: Mapping[int, int]) -> Iterator[int]:
    """The parent of a process, its parent, and so on."""
    while parent := parents.get(pid):
        yield parent
        pid = parent


def _cpu_seconds() -> dict[tuple[int, str], tuple[int, float]]:
    """Parent and processor time of each process, by id and name."""
    found = {}
    for process in psutil.process_iter(["name", "ppid", "cpu_times"]):
        times = process.info["cpu_times"]
        if times is not None:  # None: another user's, or it has just ended
            key = process.pid, str(process.info["name"])
            found[key] = int(process.info["ppid"] or 0), float(times.user + times.system)
    return found
