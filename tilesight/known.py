"""What the performance database knows for dispatch: the winner of a workload, and shapes that were asked for and not found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from .session import SessionResult
from .space import Config
from .workload import Workload


@dataclass(frozen=True, slots=True)
class Known:
    """The winner of one workload: verified on the device of the context that was asked for, under its protocol."""

    workload: Workload
    config: Config
    latency_us: float  # measured
    open: tuple[str, ...] = ()  # dimensions that the kernel takes at run time
    recorded_at: datetime | None = None
    layer: str = ""  # name of the database that knows it


@dataclass(frozen=True, slots=True)
class Miss:
    """A workload that a dispatcher was asked for and had no exact record of."""

    workload: Workload
    target: str
    device: str
    template: str
    count: int  # calls since it was first seen
    config: Config  # what served it
    source: str  # `dispatch.Source` of that choice
    expected_us: float | None  # of one call, as far as it is known
    first_at: datetime
    last_at: datetime

    @property
    def cost_us(self) -> float:
        """Time that its calls took together, as far as it is known: what tuning it can save a share of."""
        return self.count * (self.expected_us or 0.0)


@dataclass(frozen=True, slots=True)
class Gain:
    """What tuning a missed workload brought. `served_us` is the time of what served it: measured in the same session, else what
    was expected of it; None where neither is known."""

    miss: Miss
    result: SessionResult

    @property
    def is_measured(self) -> bool:
        """Of `served_us`."""
        return self._measured_us is not None

    @property
    def served_us(self) -> float | None:
        return self.miss.expected_us if self._measured_us is None else self._measured_us

    @property
    def best_us(self) -> float | None:
        """Of the kernel that was found; None where nothing was measured."""
        return self.result.best.measured_us if self.result.best is not None else None

    @property
    def saved_us(self) -> float | None:
        """Of one call: below 0 where what served it was expected to be faster than anything is."""
        return None if self.served_us is None or self.best_us is None else self.served_us - self.best_us

    @property
    def _measured_us(self) -> float | None:
        return next((trial.measured_us for trial in self.result.trials if trial.config == self.miss.config), None)
