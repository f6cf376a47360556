"""The busy share of the devices that measure."""

from __future__ import annotations

import time


class DeviceTime:
    """Counts measurements and the time that they hold devices."""

    def __init__(self) -> None:
        self.count = 0  # measurements taken
        self._seconds = 0.0
        self._first: float | None = None
        self._last = 0.0

    def began(self) -> None:
        """A device receives a job."""
        if self._first is None:
            self._first = time.monotonic()

    def took(self, seconds: float) -> None:
        """A measurement ended that held its device for `seconds`."""
        self.count += 1
        self._seconds += seconds
        self._last = time.monotonic()

    def text(self, devices: int) -> str:
        """`the device busy 71% of the time`."""
        where = "the device" if devices == 1 else f"{devices} devices"
        return f"{where} busy {self.share(devices):.0%} of the time"

    def share(self, devices: int) -> float:
        """Busy share between the first work and the last result, 0 .. 1."""
        span = self._last - self._first if self._first is not None else 0.0
        return min(1.0, self._seconds / (span * devices)) if span > 0 else 0.0
