"""Outcomes of an item that a worker process ran, and the candidate's failure that follows from each."""

from __future__ import annotations

import re
import signal
import sysconfig
from dataclasses import dataclass, field
from pathlib import Path
from typing import Generic, TypeVar

from ..errors import Failure, FailureKind, headline

T = TypeVar("T")

# failure kind of a worker that exceeded its memory limit, by the kind of a crash in the same stage
_MEMORY = {
    FailureKind.LOWER_CRASH: FailureKind.LOWER_MEMORY,
    FailureKind.BUILD_CRASH: FailureKind.BUILD_MEMORY,
    FailureKind.RUN_CRASH: FailureKind.RUN_MEMORY,
}

_FRAME = re.compile(r'^  File "(.+)", line (\d+), in (.+)$', re.MULTILINE)
_PACKAGE = Path(__file__).resolve().parents[1]
_INSTALLED = {
    Path(sysconfig.get_path(name)).resolve() for name in ("stdlib", "platstdlib", "purelib", "platlib")
}


@dataclass(frozen=True, slots=True)
class Done(Generic[T]):
    """The function returned.

    In all outcomes, `seconds` is the item's running time and `slot` its worker's slot.
    """

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
    """The process was killed because the item took longer than `seconds`.

    `lingers`: the killed process has not ended, for example because a driver holds it.
    """

    seconds: float
    output: str
    lingers: bool = field(default=False, compare=False)
    slot: int = field(default=0, compare=False)


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """The process was killed because it and its children held more than `limit_bytes` of memory."""

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
    """The candidate's failure for a worker's fault.

    Args:
        outcome: The fault.
        error: Failure kind, in the stage that was running, of an exception.
        crash: Failure kind of a crash.
        timeout: Failure kind of an exceeded time limit.
        memory: Failure kind of an exceeded memory limit; by default the one of the stage that `crash` belongs
            to.
    """
    if isinstance(outcome, Raised):
        message = f"{outcome.type_name}: {headline(outcome.message)}{_where(outcome.traceback)}"
        return Failure(error, message, outcome.traceback)
    if isinstance(outcome, Crashed):
        return Failure(crash, outcome.reason, outcome.output)
    lingers = "; its process could not be ended at once" if outcome.lingers else ""
    if isinstance(outcome, OutOfMemory):
        used, limit = (f"{size / 2**30:.1f} GiB" for size in (outcome.used_bytes, outcome.limit_bytes))
        message = f"stopped because it used {used} of host memory, more than its {limit}{lingers}"
        return Failure(memory or _MEMORY[crash], message, outcome.output)
    return Failure(timeout, f"stopped after {outcome.seconds:g} s{lingers}", outcome.output)


def _where(traceback: str) -> str:
    """The innermost frame of a template or of the user's own code, as ` (file.py:12 in build)`."""
    frames = [
        f" ({Path(file).name}:{line} in {function})"
        for file, line, function in _FRAME.findall(traceback)
        if _is_template_code(Path(file))
    ]
    return frames[-1] if frames else ""


def _is_template_code(file: Path) -> bool:
    """Whether a file belongs to a kernel: not to Python, an installed package, or TileSight's other code."""
    if not file.is_absolute():  # <string>, <frozen runpy>
        return False
    parents = file.resolve().parents
    return _PACKAGE / "kernels" in parents or not (_PACKAGE in parents or _INSTALLED & {*parents})
