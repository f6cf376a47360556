"""Records for dispatch: winners of workloads, missed workloads, and what tuning those brought."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from ..problem.space import Config
from ..problem.workload import Workload
from .session import SessionResult


@dataclass(frozen=True, slots=True)
class Winner:
    """The winner of one workload: a verified config and its time under the protocol of a context."""

    workload: Workload
    config: Config
    latency_us: float  # measured
    dynamic: tuple[str, ...] = ()  # dimensions that its kernel takes at run time
    recorded_at: datetime | None = None
    layer: str = ""  # name of the database that has the record


@dataclass(frozen=True, slots=True)
class Miss:
    """A workload that a dispatcher ran without an exact record of it."""

    workload: Workload
    target: str
    device: str
    template: str
    count: int  # calls since the first one
    config: Config  # that the dispatcher used
    source: str  # `dispatch.Source` of that choice
    expected_us: float | None  # of one call; None if unknown
    first_at: datetime
    last_at: datetime

    @property
    def cost_us(self) -> float:
        """Expected time of all its calls together, the upper bound of what tuning saves; 0 if unknown."""
        return self.count * (self.expected_us or 0.0)


@dataclass(frozen=True, slots=True)
class Gain:
    """What tuning a missed workload brought."""

    miss: Miss
    result: SessionResult

    @property
    def is_measured(self) -> bool:
        """Whether `dispatched_us` was measured."""
        return self._measured_us is not None

    @property
    def dispatched_us(self) -> float | None:
        """Time of the config that the dispatcher used, in us.

        Measured in the tuning session, else the expected time; None if neither is known.
        """
        return self.miss.expected_us if self._measured_us is None else self._measured_us

    @property
    def best_us(self) -> float | None:
        """Time of the kernel that tuning found; None if nothing was measured."""
        return self.result.best.measured_us if self.result.best is not None else None

    @property
    def saved_us(self) -> float | None:
        """Saved time of one call; below 0 if the expected time was shorter than any measured one."""
        return (
            None if self.dispatched_us is None or self.best_us is None else self.dispatched_us - self.best_us
        )

    @property
    def _measured_us(self) -> float | None:
        return next(
            (trial.measured_us for trial in self.result.trials if trial.config == self.miss.config), None
        )
