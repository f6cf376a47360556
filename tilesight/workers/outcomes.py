"""What can become of an item that a worker process ran, and what that means for a candidate."""

from __future__ import annotations

import signal
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from ..errors import Failure, FailureKind, headline

T = TypeVar("T")

# the kind for a worker that took too much memory, by the kind of a crash in the same stage
_MEMORY = {
    FailureKind.LOWER_CRASH: FailureKind.LOWER_MEMORY,
    FailureKind.BUILD_CRASH: FailureKind.BUILD_MEMORY,
    FailureKind.RUN_CRASH: FailureKind.RUN_MEMORY,
}


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """In all outcomes: `seconds` that the item ran, and `slot`, the number of the place in its pool where it did."""

    value: T
    seconds: float
    slot: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Raised:
    """The function raised, or its item or value cannot be sent between processes."""

    type_name: str
    message: str
    traceback: str
    seconds: float
    slot: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class Crashed:
    """The process ended: with `exit_code`, or by the signal `-exit_code` where that is negative."""

    exit_code: int
    output: str
    seconds: float
    slot: int = field(default=0, compare=False)

    @property
    def reason(self) -> str:
        if self.exit_code >= 0:
            return f"the process ended with exit code {self.exit_code}"
        number = -self.exit_code
        known = {s.value for s in signal.Signals}
        name = signal.Signals(number).name if number in known else f"signal {number}"
        return f"the process was killed by {name}" + (" (out of memory?)" if number == signal.SIGKILL else "")


@dataclass(frozen=True, slots=True)
class TimedOut:
    """The process was killed because the item took longer than `seconds`. It `lingers` where even that did not end it
    in time: a driver may hold it."""

    seconds: float
    output: str
    lingers: bool = field(default=False, compare=False)
    slot: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The process was killed because it, with all that it started, held more than `limit_bytes` of host memory."""

    used_bytes: int
    limit_bytes: int
    output: str
    seconds: float
    lingers: bool = field(default=False, compare=False)
    slot: int = field(default=0, compare=False)


Outcome = Done[T] | Raised | Crashed | TimedOut | OutOfMemory


def failure_of(
    outcome: Raised | Crashed | TimedOut | OutOfMemory,
    error: FailureKind,
    crash: FailureKind,
    timeout: FailureKind,
    memory: FailureKind | None = None,
) -> Failure:
    """What a worker's fault means for the candidate, in the kinds of the stage that was running."""
    if isinstance(outcome, Raised):
        return Failure(error, f"{outcome.type_name}: {headline(outcome.message)}", outcome.traceback)
    if isinstance(outcome, Crashed):
        return Failure(crash, outcome.reason, outcome.output)
    lingers = "; its process could not be ended at once" if outcome.lingers else ""
    if isinstance(outcome, OutOfMemory):
        used, limit = (f"{size / 2**30:.1f} GiB" for size in (outcome.used_bytes, outcome.limit_bytes))
        message = f"stopped because it used {used} of host memory, more than its {limit}{lingers}"
        return Failure(memory or _MEMORY[crash], message, outcome.output)
    return Failure(timeout, f"stopped after {outcome.seconds:g} s{lingers}", outcome.output)
