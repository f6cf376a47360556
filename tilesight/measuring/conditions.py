"""What the device was doing while it was measured: clock, power, temperature, and who else used it.

Where NVIDIA's management library cannot be asked (another vendor's GPU, a processor, package `nvidia-ml-py` not installed) the
figures are absent, and nothing else changes.
"""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

FAR_BELOW = 0.7  # of the clock that this process usually saw under load: a drop
KEPT_LOOKS = 64

# why a clock is lower than it could be: bits of nvmlClocksEventReasons, nvml.h
IDLE, POWER_CAP = 0x1, 0x4
BRAKES = 0x8 | 0x20 | 0x40 | 0x80  # the hardware's slowdown, heat as software and hardware see it, the power brake


@dataclass(frozen=True, slots=True)
class Look:
    """The device at one moment, meant to be one under load."""

    sm_clock_mhz: float
    reasons: int = 0

    @property
    def is_idle(self) -> bool:
        return bool(self.reasons & IDLE)

    @property
    def is_capped(self) -> bool:
        """By the power limit: what matrix products are always."""
        return bool(self.reasons & POWER_CAP)

    @property
    def is_braked(self) -> bool:
        return bool(self.reasons & BRAKES)


class Sensor(ABC):
    """Asks one device. Any of its answers may be None: not known here."""

    @abstractmethod
    def look(self) -> Look | None: ...

    @abstractmethod
    def power_w(self) -> float | None: ...

    @abstractmethod
    def temperature_c(self) -> float | None: ...

    @abstractmethod
    def processes(self) -> list[int] | None:
        """Ids of the processes that use the device to compute."""


class Conditions:
    """What the sensor saw, over all measurements of a process and during the present one."""

    def __init__(self, sensor: Sensor | None = None) -> None:
        self._sensor = sensor
        self._usual: deque[Look] = deque(maxlen=KEPT_LOOKS)
        self._present: list[Look] = []
        self._last: Look | None = None

    def begin(self) -> None:
        """A new measurement."""
        self._present.clear()

    def look(self) -> None:
        """To be called while the device is busy."""
        self._last = self._sensor.look() if self._sensor else None
        if self._last is not None and not self._last.is_idle:
            self._present.append(self._last)
            self._usual.append(self._last)

    def disturbed(self) -> bool:
        """Whether the device was slower, at the last look, than this process knows it.

        Under a power limit matrix products always run with lowered clocks, and a card in a warm place may always be braked:
        what is usual here is no disturbance.
        """
        last = self._last
        if last is None or last.is_idle or not self._usual:
            return False
        braked = last.is_braked and 2 * sum(look.is_braked for look in self._usual) <= len(self._usual)
        dropped = not last.is_capped and last.sm_clock_mhz < FAR_BELOW * median(look.sm_clock_mhz for look in self._usual)
        return braked or dropped

    def observed(self) -> dict[str, float]:
        """Figures of the present measurement, with units in their names; those that are not known are absent."""
        found: dict[str, float] = {}
        if self._present:
            found["sm_clock_mhz"] = median(look.sm_clock_mhz for look in self._present)
            found["power_capped"] = sum(look.is_capped for look in self._present) / len(self._present)
            found["braked"] = sum(look.is_braked for look in self._present) / len(self._present)
        if self._sensor is not None:
            figures = {"power_w": self._sensor.power_w(), "temperature_c": self._sensor.temperature_c()}
            found |= {name: value for name, value in figures.items() if value is not None}
            users = self._sensor.processes()
            # without ourselves among them they are numbers of another name space, as containers have
            if users is not None and os.getpid() in users:
                found["other_processes"] = float(sum(map(_is_another, users)))
        return found


def sensor_for(uuid: str) -> Sensor | None:
    """The sensor of the GPU with this UUID, as CUDA gives it; None where it cannot be asked."""
    try:
        import pynvml
    except ImportError:
        return None
    with suppress(Exception):  # no driver, another vendor's, no permission: a package's own exceptions
        return NvmlSensor(pynvml, uuid)
    return None


class NvmlSensor(Sensor):
    """Through `nvidia-ml-py`. An answer costs from some 10 us to a few ms."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        """Raises the library's errors where it finds no driver or no such device."""
        self._nvml = nvml
        nvml.nvmlInit()
        self._device = nvml.nvmlDeviceGetHandleByUUID(uuid if uuid.startswith("GPU-") else f"GPU-{uuid}")
        # renamed in 2023; drivers know the old name as well
        self._reasons = getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or nvml.nvmlDeviceGetCurrentClocksThrottleReasons

    def look(self) -> Look | None:
        clock = self._ask(lambda: self._nvml.nvmlDeviceGetClockInfo(self._device, self._nvml.NVML_CLOCK_SM))
        reasons = self._ask(lambda: self._reasons(self._device))
        return None if clock is None else Look(float(clock), int(reasons or 0))

    def power_w(self) -> float | None:
        milliwatts = self._ask(lambda: self._nvml.nvmlDeviceGetPowerUsage(self._device))
        return None if milliwatts is None else milliwatts / 1e3

    def temperature_c(self) -> float | None:
        degrees = self._ask(lambda: self._nvml.nvmlDeviceGetTemperature(self._device, self._nvml.NVML_TEMPERATURE_GPU))
        return None if degrees is None else float(degrees)

    def processes(self) -> list[int] | None:
        found = self._ask(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._device))
        return None if found is None else [int(process.pid) for process in found]

    def _ask(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._nvml.NVMLError:
            return None


def _is_another(pid: int) -> bool:
    """Not this process, its parent, or another child of it: workers of one session wait on the device beside each other."""
    if pid in (os.getpid(), os.getppid()):
        return False
    try:
        status = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False  # gone
    # the name stands in brackets, and may hold any character
    return status.rpartition(")")[2].split()[1] != str(os.getppid())
