"""The state of a device while it is measured: clock, power, temperature, and other processes on it.

Without NVIDIA's management library (another vendor's GPU, a processor, package `nvidia-ml-py` not installed)
the figures are absent, and nothing else changes.
"""

from __future__ import annotations

import os
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import median
from typing import Any

from ..machine.device_lock import taking_turns
from ..machine.load import LoadMeter, nvml_device
from ..machine.owner import parent_of
from ..settings import available_cores

DROP_RATIO = 0.7  # a clock below this share of the usual clock under load is a drop
HISTORY_LENGTH = 64
UTILIZATION_S = 1.0  # the driver averages the use of a GPU over up to this time

# reasons for a lowered clock: bits of nvmlClocksEventReasons in nvml.h
IDLE, POWER_CAP = 0x1, 0x4
THROTTLE_REASONS = (
    0x8 | 0x20 | 0x40 | 0x80
)  # hardware slowdown, thermal slowdown by software and by hardware, power brake


@dataclass(frozen=True, slots=True)
class DeviceState:
    """One sample of the device's state, taken under load. `reasons` are bits of nvmlClocksEventReasons."""

    sm_clock_mhz: float
    reasons: int = 0

    @property
    def is_idle(self) -> bool:
        return bool(self.reasons & IDLE)

    @property
    def is_power_capped(self) -> bool:
        """Whether the power limit lowers the clock, as always under matrix products."""
        return bool(self.reasons & POWER_CAP)

    @property
    def is_throttled(self) -> bool:
        return bool(self.reasons & THROTTLE_REASONS)


class Sensor(ABC):
    """Reads the state of one device. Each figure is None if it is unknown."""

    @abstractmethod
    def read_state(self) -> DeviceState | None: ...

    @abstractmethod
    def power_w(self) -> float | None: ...

    @abstractmethod
    def temperature_c(self) -> float | None: ...

    @abstractmethod
    def processes(self) -> list[int] | None:
        """Ids of the processes that compute on the device."""

    @abstractmethod
    def busy_shares(self, seconds: float) -> dict[int, float] | None:
        """Share of the device that each process used in the last `seconds`, 0 .. 1, by process id."""


class Conditions:
    """The sensor's samples, over all measurements of this process and during the current one."""

    def __init__(
        self, sensor: Sensor | None = None, *, on_processor: bool = False, uuids: Sequence[str] = ()
    ) -> None:
        """
        Args:
            sensor: of the device.
            on_processor: kernels are measured on the processor, which other processes may use, too.
            uuids: of the device's GPUs. Processes that take turns on them do not disturb each other.
        """
        self._sensor, self._on_processor, self._uuids = sensor, on_processor, uuids
        self._meter: LoadMeter | None = None
        self._began = time.monotonic()
        self._usual: deque[DeviceState] = deque(maxlen=HISTORY_LENGTH)
        self._current: list[DeviceState] = []
        self._last: DeviceState | None = None

    def begin(self) -> None:
        """Start a new measurement."""
        self._current.clear()
        self._began = time.monotonic()
        self._meter = LoadMeter() if self._on_processor else None

    def sample(self) -> None:
        """Read the state; call while the device is busy."""
        self._last = self._sensor.read_state() if self._sensor else None
        if self._last is not None and not self._last.is_idle:
            self._current.append(self._last)
            self._usual.append(self._last)

    def disturbed(self) -> bool:
        """Whether the device was slower in the last sample than usual in this process.

        The usual state is no disturbance: matrix products always lower the clock under a power limit, and a
            card in a warm
        place may always be throttled.
        """
        last = self._last
        if last is None or last.is_idle or not self._usual:
            return False
        throttled = last.is_throttled and 2 * sum(state.is_throttled for state in self._usual) <= len(
            self._usual
        )
        dropped = not last.is_power_capped and last.sm_clock_mhz < DROP_RATIO * median(
            state.sm_clock_mhz for state in self._usual
        )
        return throttled or dropped

    def observed(self) -> dict[str, float]:
        """Figures of the current measurement, with units in their names. Unknown figures are absent."""
        found: dict[str, float] = {}
        if self._meter is not None:
            found["other_load"] = round(self._meter.read().cores / available_cores(), 3)
        if self._current:
            found["sm_clock_mhz"] = median(state.sm_clock_mhz for state in self._current)
            found["power_capped"] = sum(state.is_power_capped for state in self._current) / len(self._current)
            found["braked"] = sum(state.is_throttled for state in self._current) / len(self._current)
        if self._sensor is not None:
            figures = {"power_w": self._sensor.power_w(), "temperature_c": self._sensor.temperature_c()}
            found |= {name: value for name, value in figures.items() if value is not None}
            users = self._sensor.processes()
            # if this process is missing, the ids belong to another name space, as in a container
            if users is not None and os.getpid() in users:
                found["other_processes"] = float(sum(map(_is_another, users)))
                shares = self._sensor.busy_shares(time.monotonic() - self._began + UTILIZATION_S)
                if shares is not None:
                    turns = taking_turns(*self._uuids)
                    others = [
                        share
                        for pid, share in shares.items()
                        if _is_another(pid) and not _belongs_to(pid, turns)
                    ]
                    found["other_gpu_load"] = max(others, default=0.0)
        return found


class SensorOfAll(Sensor):
    """The sensors of several devices as one: the state of the slowest, and what happens on any of them."""

    def __init__(self, sensors: Sequence[Sensor]) -> None:
        self._sensors = sensors

    def read_state(self) -> DeviceState | None:
        states = [state for sensor in self._sensors if (state := sensor.read_state()) is not None]
        if not states:
            return None
        reasons = 0
        for state in states:
            reasons |= state.reasons & ~IDLE
        idle = IDLE if all(state.is_idle for state in states) else 0
        return DeviceState(min(state.sm_clock_mhz for state in states), reasons | idle)

    def power_w(self) -> float | None:
        """The sum of all."""
        powers = [power for sensor in self._sensors if (power := sensor.power_w()) is not None]
        return sum(powers) if powers else None

    def temperature_c(self) -> float | None:
        """That of the hottest."""
        found = [degrees for sensor in self._sensors if (degrees := sensor.temperature_c()) is not None]
        return max(found, default=None)

    def processes(self) -> list[int] | None:
        found = [pids for sensor in self._sensors if (pids := sensor.processes()) is not None]
        return sorted({pid for pids in found for pid in pids}) if found else None

    def busy_shares(self, seconds: float) -> dict[int, float] | None:
        found = [shares for sensor in self._sensors if (shares := sensor.busy_shares(seconds)) is not None]
        if not found:
            return None
        largest: dict[int, float] = {}
        for shares in found:
            for pid, share in shares.items():
                largest[pid] = max(largest.get(pid, 0.0), share)
        return largest


def sensor_for(uuid: str) -> Sensor | None:
    """The sensor of the GPU with this UUID (CUDA's form); None if there is none."""
    try:
        import pynvml
    except ImportError:
        return None
    with suppress(Exception):  # no driver, another vendor's GPU, no permission
        return NvmlSensor(pynvml, uuid)
    return None


class NvmlSensor(Sensor):
    """A sensor that uses `nvidia-ml-py`. A reading takes from some 10 us to a few ms."""

    def __init__(self, nvml: Any, uuid: str) -> None:
        """Raises the library's errors if there is no driver or no such device."""
        self._nvml, self._device = nvml, nvml_device(nvml, uuid)
        # renamed in 2023; older packages have only the old name
        self._reasons = (
            getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None)
            or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
        )

    def read_state(self) -> DeviceState | None:
        clock = self._query(lambda: self._nvml.nvmlDeviceGetClockInfo(self._device, self._nvml.NVML_CLOCK_SM))
        reasons = self._query(lambda: self._reasons(self._device))
        return None if clock is None else DeviceState(float(clock), int(reasons or 0))

    def power_w(self) -> float | None:
        milliwatts = self._query(lambda: self._nvml.nvmlDeviceGetPowerUsage(self._device))
        return None if milliwatts is None else milliwatts / 1e3

    def temperature_c(self) -> float | None:
        degrees = self._query(
            lambda: self._nvml.nvmlDeviceGetTemperature(self._device, self._nvml.NVML_TEMPERATURE_GPU)
        )
        return None if degrees is None else float(degrees)

    def processes(self) -> list[int] | None:
        found = self._query(lambda: self._nvml.nvmlDeviceGetComputeRunningProcesses(self._device))
        return None if found is None else [int(process.pid) for process in found]

    def busy_shares(self, seconds: float) -> dict[int, float] | None:
        since_us = int((time.time() - seconds) * 1e6)
        found = self._query(lambda: self._nvml.nvmlDeviceGetProcessUtilization(self._device, since_us))
        if found is None:
            return None
        shares: dict[int, float] = {}
        for sample in found:
            shares[int(sample.pid)] = max(shares.get(int(sample.pid), 0.0), sample.smUtil / 100)
        return shares

    def _query(self, function: Callable[[], Any]) -> Any:
        try:
            return function()
        except self._nvml.NVMLError:
            return None


def _is_another(pid: int) -> bool:
    """Whether a process is neither this process, nor its parent, nor another child of the parent."""
    if pid in (os.getpid(), os.getppid()):
        return False
    parent = parent_of(pid)
    return parent is not None and parent != os.getppid()


def _belongs_to(pid: int, sessions: Collection[int]) -> bool:
    """Whether a process is one of `sessions`, or was started by one, through others or not."""
    one: int | None = pid
    while one:
        if one in sessions:
            return True
        one = parent_of(one)
    return False
