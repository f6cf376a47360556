"""Worker processes: run untrusted work (lowering, building, measuring), where a fault costs one item only."""

from __future__ import annotations

from .outcomes import Crashed, Done, Outcome, OutOfMemory, Raised, TimedOut, failure_of
from .pool import WorkerPool, thread_limits, wait_for
from .process_copy import ProcessCopy
from .time_limits import TimeLimit

__all__ = [
    "Crashed",
    "Done",
    "OutOfMemory",
    "Outcome",
    "ProcessCopy",
    "Raised",
    "TimeLimit",
    "TimedOut",
    "WorkerPool",
    "failure_of",
    "thread_limits",
    "wait_for",
]
