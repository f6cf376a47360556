"""Inside a nursery: the process of a pool that imports what is slow once and forks a worker for each request.

It runs no item itself, has one thread, and initialises no device, so that forking it is safe. Where it is not (a
preload that starts threads, or a system other than Linux), each worker is a fresh Python process instead.

It adopts what its workers leave behind, so that nothing outlives a worker; it ends a worker that holds too much memory,
cuts output that grows without end, and ends everything with itself when the pool closes or the pool's process is gone.
"""

from __future__ import annotations

import faulthandler
import os
import pickle
import resource
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import recv_handle

from .process import Fault, describe, prepare, serve
from .process_tree import adopt_orphans, below, end_below, end_with_parent, outlive_parent, processes, send, send_group

_TICK_S = 0.1
_IDLE_TICK_S = 1.0
_LOOK_S = 0.25  # between looks at memory
_LOOK_SHARE = 0.02  # of one core that looking may take: on a machine with very many processes it is done less often
_LINGER_S = 5.0  # what a killed process gets before it is given up
LOG_BYTES = 8 * 2**20
_LOG_TAIL_BYTES = 2**16
_DRIVERS = {"/dev/nvidia-uvm", "/dev/kfd"}  # what a process has open that uses a GPU

# what a worker runs where it is not forked: its arguments are the connection, its parent and the import path
_START = """import sys
descriptor, parent_pid, *sys.path[:] = sys.argv[1:]
from tilesight.workers.process import serve
serve(int(descriptor), int(parent_pid))
"""


@dataclass(frozen=True, slots=True)
class Nurture:
    """The first thing that a nursery receives."""

    preload: bytes
    main_path: str | None
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class Bear:
    """Start a worker. The descriptors of its connection and of its output follow."""

    number: int


@dataclass(frozen=True, slots=True)
class End:
    """Kill a worker and all that it started."""

    number: int


@dataclass(frozen=True, slots=True)
class Grown:
    """A nursery can start workers; with `fault`, it ends because it cannot."""

    forks: bool
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class Born:
    number: int
    pid: int


@dataclass(frozen=True, slots=True)
class Ended:
    """A worker is gone with all that it started, but for what `lingers`. `exit_code` is as `subprocess` has it.
    `used_bytes` is set where it was killed for its memory, `fault` where it could not be started."""

    number: int
    exit_code: int
    used_bytes: int | None = None
    lingers: bool = False
    fault: str = ""


@dataclass
class _Child:
    number: int
    pid: int
    log: int
    process: subprocess.Popen[bytes] | None = None  # where it was not forked
    used_bytes: int | None = None
    exit_code: int | None = None
    killed_at: float | None = None
    reported: bool = False


@dataclass
class _Nursery:
    control: Connection
    pool_pid: int
    memory_bytes: int
    forks: bool
    shared_bytes: int  # what each worker shares with this process
    children: list[_Child] = field(default_factory=list)
    looked: float = 0.0
    look_after: float = _LOOK_S
    wakeup: tuple[int, int] = field(default_factory=os.pipe)

    def run(self) -> None:
        """Serve the pool until it closes or is gone, then end everything."""
        for end in self.wakeup:
            os.set_blocking(end, False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self.wakeup[1], warn_on_full_buffer=False)
        stopped: list[int] = []
        signal.signal(signal.SIGTERM, lambda *_: stopped.append(1))
        try:
            while not stopped and os.getppid() == self.pool_pid:
                ready = wait([self.control, self.wakeup[0]], _TICK_S if self.children else _IDLE_TICK_S)
                if self.control in ready:
                    self.obey(pickle.loads(self.control.recv_bytes()))
                with suppress(BlockingIOError):
                    os.read(self.wakeup[0], 4096)
                self.tend()
        except (EOFError, OSError):
            pass  # the pool has closed
        finally:
            self.end_all()

    def end_all(self) -> None:
        for child in self.children:
            send_group(child.pid, signal.SIGKILL)
            send(child.pid, signal.SIGKILL)
        until = time.monotonic() + _LINGER_S
        while end_below() and time.monotonic() < until:
            time.sleep(0.002)

    def obey(self, request: Bear | End) -> None:
        if isinstance(request, End):
            for child in self.children:
                if child.number == request.number:
                    self.kill(child)
            return
        connection, log = recv_handle(self.control), recv_handle(self.control)
        try:
            child = _Child(request.number, 0, log)
            self.bear(child, connection)
        except OSError as error:  # no memory, no process
            os.close(log)
            self.say(Ended(request.number, 1, fault=str(error)))
        else:
            self.children.append(child)
            self.say(Born(child.number, child.pid))
        finally:
            os.close(connection)

    def bear(self, child: _Child, connection: int) -> None:
        if not self.forks:
            child.process = subprocess.Popen(
                [sys.executable, "-c", _START, str(connection), str(os.getpid()), *sys.path],
                stdin=subprocess.DEVNULL,
                stdout=child.log,
                stderr=subprocess.STDOUT,
                pass_fds=[connection],
            )
            child.pid = child.process.pid
            return
        own = os.getpid()
        child.pid = os.fork()
        if child.pid == 0:
            try:
                signal.set_wakeup_fd(-1)
                for number in (signal.SIGCHLD, signal.SIGTERM):
                    signal.signal(number, signal.SIG_DFL)
                os.dup2(child.log, 1)
                os.dup2(child.log, 2)
                self.control.close()  # or the pool would not see that the nursery is gone
                for descriptor in (*self.wakeup, child.log, *(other.log for other in self.children)):
                    os.close(descriptor)
                serve(connection, own)
            finally:
                os._exit(1)

    def tend(self) -> None:
        for child in self.children:
            if child.exit_code is None:
                self.look_for_end(child)
        # one that was reported and lingers is looked at again when it has ended
        if any(child.killed_at is not None and (not child.reported or child.exit_code is not None) for child in self.children):
            self.bury()
        for child in self.children:
            if os.fstat(child.log).st_size > LOG_BYTES:
                _cut(child.log)
        if self.children and time.monotonic() - self.looked > self.look_after:
            self.look_at_memory()

    def look_for_end(self, child: _Child) -> None:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            child.exit_code = os.waitstatus_to_exitcode(status)
            child.killed_at = child.killed_at or time.monotonic()
            send_group(child.pid, signal.SIGKILL)
            if child.process:
                child.process.returncode = child.exit_code

    def bury(self) -> None:
        """End what workers that are gone left behind, and tell the pool of those that left nothing any more."""
        living = {child.pid for child in self.children if child.exit_code is None}
        left = end_below(living)
        now = time.monotonic()
        for child in list(self.children):
            if child.killed_at is None:
                continue
            late = now - child.killed_at > _LINGER_S
            gone = child.exit_code is not None
            if not child.reported and ((gone and not left) or late):
                code = child.exit_code if child.exit_code is not None else -signal.SIGKILL
                self.say(Ended(child.number, code, child.used_bytes, lingers=bool(left) or not gone))
                child.reported = True
            if child.reported and gone:
                os.close(child.log)
                self.children.remove(child)
        if left and any(child.killed_at is not None and not child.reported for child in self.children):
            time.sleep(0.001)
            os.write(self.wakeup[1], b"x")  # look again at once

    def kill(self, child: _Child) -> None:
        if child.exit_code is None and child.killed_at is None:
            child.killed_at = time.monotonic()
            started = below(child.pid, processes())
            send_group(child.pid, signal.SIGKILL)
            for pid in (child.pid, *started):
                send(pid, signal.SIGKILL)

    def look_at_memory(self) -> None:
        begin = time.monotonic()
        table = processes()
        for child in self.children:
            family = [table[pid].resident_bytes for pid in (child.pid, *below(child.pid, table)) if pid in table]
            used = sum(max(0, size - self.shared_bytes) for size in family)
            if used > self.memory_bytes and child.killed_at is None:
                child.used_bytes = used
                self.kill(child)
        self.looked = time.monotonic()
        self.look_after = max(_LOOK_S, (self.looked - begin) / _LOOK_SHARE)

    def say(self, message: Born | Ended) -> None:
        self.control.send_bytes(pickle.dumps(message))


def grow(descriptor: int, pool_pid: int) -> None:
    """The whole life of a nursery."""
    end_with_parent(pool_pid)  # while it imports there is nothing to tidy up
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.set_inheritable(descriptor, False)
    control = Connection(descriptor)
    try:
        first: Nurture = pickle.loads(control.recv_bytes())
        forks = sys.platform == "linux"
        if forks:
            try:
                prepare(first.preload, first.main_path)
            except BaseException as error:
                control.send_bytes(pickle.dumps(Grown(forks, describe(error))))
                os._exit(1)
            sys.stdout.flush()  # or each worker would print it again
            sys.stderr.flush()
            forks = _may_fork()
        control.send_bytes(pickle.dumps(Grown(forks)))
    except (EOFError, OSError):
        os._exit(0)
    outlive_parent()
    own = processes().get(os.getpid())
    _Nursery(control, pool_pid, first.memory_bytes, forks, own.resident_bytes if own and forks else 0).run()
    os._exit(0)


def _may_fork() -> bool:
    """Whether this process has one thread and has not begun with a GPU's driver, which a fork cannot use."""
    held = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the one that read the folder
            held.add(os.readlink(f"/proc/self/fd/{name}"))
    return len(os.listdir("/proc/self/task")) == 1 and held.isdisjoint(_DRIVERS)


def _cut(log: int) -> None:
    """Keep only the tail of an output: its end is what is shown."""
    size = os.fstat(log).st_size
    tail = os.pread(log, _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES))
    os.ftruncate(log, 0)
    os.write(log, tail)  # it is open for appending, in every process
