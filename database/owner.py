"""Who runs a session: enough to tell, from another process, whether it still lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process() -> str:
    """`host|pid|start`, start being the kernel's clock ticks where it gives them: a process id alone is used again."""
    return f"{socket.gethostname()}|{os.getpid()}|{_start_of(os.getpid())}"


def is_alive(owner: str) -> bool:
    """Whether that process may still run. On another host nobody can tell: True."""
    host, pid, start = owner.rsplit("|", 2)
    if host != socket.gethostname():
        return True
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it is another user's
    return _start_of(int(pid)) == start


def _start_of(pid: int) -> str:
    """ "" where the kernel does not tell, and for a process that is dead but not yet buried by its parent."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    # the process name, in brackets, may hold anything: count from behind it
    state, *rest = stat.rpartition(")")[2].split()
    return "" if state in "ZX" else rest[18]
