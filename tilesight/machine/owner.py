"""The process that runs a session, named so that other processes can find out whether it is alive."""

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


def _start_of(pid: int) -> str:
    """ "" if the start time is unknown, and for a dead process whose parent has not collected its exit
    status."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # the process name, in brackets, may contain anything: read what follows it
    state, *rest = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]
