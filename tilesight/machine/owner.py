"""Processes of this machine: a name for one by which others find out whether it is alive, and its parent."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process() -> str:
    """`host|pid|start`.

    The start time (the kernel's clock ticks) is needed because process ids are used again.
    """
    return f"{socket.gethostname()}|{os.getpid()}|{_start_of(os.getpid())}"


def is_alive(owner: str) -> bool:
    """Whether the process may be alive; True for a process of another host, which cannot be looked up."""
    host, pid, start = owner.rsplit("|", 2)
    if host != socket.gethostname():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # a process of another user
    return _start_of(int(pid)) == start


def parent_of(pid: int) -> int | None:
    """Id of the process that started another one; None if that has ended."""
    fields = _stat(pid)
    return int(fields[1]) if fields else None


def _start_of(pid: int) -> str:
    """ "" if the start time is unknown, and for a dead process whose parent has not collected its exit
    status."""
    fields = _stat(pid)
    return "" if not fields or fields[0] in "ZX" else fields[19]


def _stat(pid: int) -> list[str]:
    """The kernel's fields of a process, its state first; none if it has ended."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    # the process name, in brackets, may contain anything: read what follows it
    return stat.rpartition(")")[2].split()
