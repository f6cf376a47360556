"""Advisory locks on open files (`flock`): they end with the process that holds them, however that ends. Who holds one writes
its process id into the file."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress


def take(descriptor: int, *, wait: bool = True) -> bool:
    """Hold the lock until the descriptor is closed. False: another process has it, and `wait` is not wanted."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    with suppress(OSError):  # a full disk: who holds it is then not known
        os.pwrite(descriptor, f"{os.getpid():<20}".encode(), 0)
    return True


def holder(descriptor: int) -> int | None:
    """Process id of whoever holds the lock now; None where nobody does, or it is not known."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.pread(descriptor, 20, 0).strip()
        return int(text) if text.isdigit() else None
    fcntl.flock(descriptor, fcntl.LOCK_UN)
    return None
