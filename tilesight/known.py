"""What the performance database knows for dispatch: the winner of a workload, and shapes that were asked for and not found."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

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
