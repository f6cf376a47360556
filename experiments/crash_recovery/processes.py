"""The processes of one session, found in /proc by a mark in their environment and by their parents."""

from __future__ import annotations

import os
import signal
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

MARK = "TILESIGHT_CRASH_CASE"
COMPILERS = (
    "g++",
    "c++",
    "gcc",
    "cc1plus",
    "as",
    "ld",
    "collect2",
    "clang",
    "clang++",
    "nvcc",
    "ptxas",
    "cicc",
)


@dataclass(frozen=True)
class Process:
    """One process."""

    pid: int
    start: str  # clock ticks since boot; unique together with the id
    parent: int
    name: str


@dataclass
class Session:
    """The session whose main process is `main`.

    Processes that start and end between two calls of `running` are missed.
    """

    main: int
    mark: str

    def __post_init__(self) -> None:
        self.seen: dict[tuple[int, str], Process] = {}

    def running(self) -> list[Process]:
        """All processes of the session that run now, the main process first."""
        table = _table()
        marked = f"{MARK}={self.mark}".encode()
        known = {pid for pid, _ in self.seen}
        found: dict[int, Process] = {}
        for process in table.values():
            if (
                process.parent in known
                or (process.pid, process.start) in self.seen
                or marked in _environment(process.pid)
            ):
                found[process.pid] = process
                known.add(process.pid)
                self.seen[process.pid, process.start] = process
        return sorted(found.values(), key=lambda p: (p.pid != self.main, p.pid))

    def kinds(self) -> dict[str, list[Process]]:
        """The processes that run now, by kind."""
        found: dict[str, list[Process]] = {}
        running = self.running()
        by_pid = {p.pid: p for p in running}
        parents = {p.parent for p in running}
        for p in running:
            found.setdefault(self._kind(p, by_pid, parents), []).append(p)
        return found

    def _kind(self, p: Process, running: dict[int, Process], parents: set[int]) -> str:
        if p.pid == self.main:
            return "main"
        if p.name in COMPILERS:
            return "compiler"
        if p.parent == self.main and "tilesight.workers.fork_server" in _command(p.pid):
            return "fork server"
        if "python" not in p.name:
            return "other"
        return "lowering worker" if "libtvm" in _maps(p.pid) else "measuring worker"


def kill(process: Process) -> bool:
    """Kill a process. Returns False if it has already ended."""
    if _table().get(process.pid) != process:
        return False
    with suppress(ProcessLookupError):
        os.kill(process.pid, signal.SIGKILL)
        return True
    return False


def _table() -> dict[int, Process]:
    """All processes that run, without zombies."""
    found = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            with suppress(OSError):
                head, _, tail = (folder / "stat").read_text(errors="replace").rpartition(")")
                state, *rest = tail.split()
                if state not in "ZX":
                    found[int(folder.name)] = Process(
                        int(folder.name), rest[18], int(rest[0]), head.partition("(")[2]
                    )
    return dict(sorted(found.items(), key=lambda pair: int(pair[1].start)))  # parents before their children


def _environment(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/environ").read_bytes()
    return b""


def _command(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_text(errors="replace")
    return ""


def _maps(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/maps").read_text(errors="replace")
    return ""
