"""The state of one shape in a dispatcher."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from ..machine.fork_locks import ForkLock
from ..records.trial import BuildResult
from .kernels.bound_calls import CallCounter
from .select.choice import Choice


@dataclass(frozen=True)
class ActiveKernel:
    """The kernel in use for one shape.

    `pending` is set for a fallback: the choice whose kernel is still to be built.
    """

    choice: Choice
    built: BuildResult
    pending: Choice | None = None


class Shape:
    """One shape that was called. `kernel` is replaced under `lock`, and may be read without it."""

    __slots__ = ("calls", "is_scheduled", "kernel", "lock")

    def __init__(self) -> None:
        self.lock = ForkLock(threading.RLock)
        self.kernel: ActiveKernel | None = None
        self.calls = CallCounter()
        self.is_scheduled = False  # for a comparison in the background, at most once
