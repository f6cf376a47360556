"""Processes as /proc shows them: who started whom, how much memory they hold, and how to end all of them.

Where there is no /proc (macOS) nothing is seen, and what rests on it does nothing.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PASSES = 50  # a process that forks all the time is caught within a few


@dataclass(frozen=True, slots=True)
class Process:
    parent: int
    resident_bytes: int
    ended: bool  # and not yet waited for


def end_with_parent(parent_pid: int) -> None:
    """Let Linux kill this process when the thread that started it ends. Exits at once where that has happened."""
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `end_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of every process below this one whose own parent ends."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def processes() -> dict[int, Process]:
    """All processes that can be seen, by id."""
    found = {}
    with suppress(FileNotFoundError), os.scandir("/proc") as entries:
        for name in (entry.name for entry in entries if entry.name.isdecimal()):
            with suppress(OSError):  # it has ended
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                found[int(name)] = Process(int(fields[1]), int(fields[21]) * _page_bytes(), fields[0] in (b"Z", b"X"))
    return found


def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")


def below(root: int, table: Mapping[int, Process], spare: Collection[int] = ()) -> list[int]:
    """Ids of all processes that `root` started, directly or not, but for those in `spare` and what these started."""
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    found, open_ends = [], [root]
    while open_ends:
        for pid in children.get(open_ends.pop(), ()):
            if pid not in spare:
                found.append(pid)
                open_ends.append(pid)
    return found


def end_below(spare: Collection[int] = ()) -> int:
    """Kill every process below this one, but for `spare` and what these started. Returns how many are still there: call
    it again until none is. This process must adopt orphans, or some are missed."""
    own, stopped = os.getpid(), set[int]()
    for _ in range(_PASSES):  # a stopped process starts no other, so that the last pass has found all of them
        table = processes()
        found = below(own, table, spare)
        new = [pid for pid in found if pid not in stopped and not table[pid].ended]
        if not new:
            break
        for pid in new:
            send(pid, signal.SIGSTOP)
        stopped.update(new)
    for pid in found:
        send(pid, signal.SIGKILL)
    left = len(found)
    for pid in (pid for pid in found if table[pid].parent == own):
        with suppress(ChildProcessError):
            left -= os.waitpid(pid, os.WNOHANG)[0] == pid
    return left


def send(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(pid: int, number: int) -> None:
    """Send a signal to the process group of a leader that may be gone."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end_marked(mark: bytes) -> set[int]:
    """Kill every process whose first environment, or that of the process it was forked from, holds `mark`. Returns those
    that were found."""
    found = set()
    for pid, process in processes().items():
        with suppress(OSError):
            if not process.ended and mark in Path(f"/proc/{pid}/environ").read_bytes():
                send(pid, signal.SIGKILL)
                found.add(pid)
    return found


def still_running(pids: Collection[int]) -> list[int]:
    """Those that have not ended: a process that was killed takes a moment for it."""
    table = processes()
    return [pid for pid in pids if pid in table and not table[pid].ended]
