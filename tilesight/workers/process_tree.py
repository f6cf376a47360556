"""The process tree as /proc shows it: parents, memory, and how to end all processes below one.

On systems without /proc (macOS) no process is found, and the functions do nothing.
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
_MAX_PASSES = 50  # a process that forks all the time is caught within a few passes


@dataclass(frozen=True, slots=True)
class Process:
    """One process. `ended`: it is a zombie, which its parent has yet to wait for."""

    parent: int
    resident_bytes: int
    ended: bool


def end_with_parent(parent_pid: int) -> None:
    """Let Linux kill this process when the thread that started it ends.

    Exits at once if that has already happened.
    """
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent_pid:
        os._exit(1)


def outlive_parent() -> None:
    """Undo `end_with_parent`."""
    _prctl(_PR_SET_PDEATHSIG, 0)


def adopt_orphans() -> None:
    """Become the parent of all orphans below this process."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def _prctl(option: int, value: int) -> None:
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def processes() -> dict[int, Process]:
    """All visible processes, by process id."""
    found = {}
    with suppress(FileNotFoundError), os.scandir("/proc") as entries:
        for name in (entry.name for entry in entries if entry.name.isdecimal()):
            with suppress(OSError):  # the process has ended
                fields = Path(f"/proc/{name}/stat").read_bytes().rpartition(b")")[2].split()
                found[int(name)] = Process(
                    int(fields[1]), int(fields[21]) * _page_bytes(), fields[0] in (b"Z", b"X")
                )
    return found


def _page_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE")


def below(root: int, table: Mapping[int, Process], spare: Collection[int] = ()) -> list[int]:
    """Process ids of all descendants of `root` in `table`, except those in `spare` and their descendants."""
    children: dict[int, list[int]] = {}
    for pid, process in table.items():
        children.setdefault(process.parent, []).append(pid)
    found, unvisited = [], [root]
    while unvisited:
        for pid in children.get(unvisited.pop(), ()):
            if pid not in spare:
                found.append(pid)
                unvisited.append(pid)
    return found


def end_below(spare: Collection[int] = ()) -> int:
    """Kill all descendants of this process, except those in `spare` and their descendants.

    Returns how many are left; call again until none is. Works only after `adopt_orphans`: otherwise orphans
    are missed.
    """
    own, stopped = os.getpid(), set[int]()
    for _ in range(_MAX_PASSES):  # a stopped process starts no other: the last pass finds all of them
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
    """Send a signal to a process, if it still exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def send_group(pid: int, number: int) -> None:
    """Send a signal to the process group of a leader, if it still exists."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def end_marked(mark: bytes) -> set[int]:
    """Kill every process that was started with `mark` in its environment, or forked from one.

    Returns their ids.
    """
    found = set()
    for pid, process in processes().items():
        with suppress(OSError):
            if not process.ended and mark in Path(f"/proc/{pid}/environ").read_bytes():
                send(pid, signal.SIGKILL)
                found.add(pid)
    return found


def still_running(pids: Collection[int]) -> list[int]:
    """Those of `pids` that have not ended yet."""
    table = processes()
    return [pid for pid in pids if pid in table and not table[pid].ended]
