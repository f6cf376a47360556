"""The fork server of a pool: a process that imports slow modules once and forks a worker for each request.

The server runs no item, has one thread, and initialises no device, which makes forking safe. Where forking is
unsafe (a preload that starts threads, or a system other than Linux), each worker is a fresh Python process
instead.

The server adopts the orphans of its workers: no process outlives its worker. It kills a worker that holds too
much memory and truncates long output. It ends, with all its workers, when the pool closes or the pool's
process is gone.
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

from .process_tree import (
    adopt_orphans,
    below,
    end_below,
    end_with_parent,
    outlive_parent,
    processes,
    send,
    send_group,
)
from .worker import Fault, describe, prepare, serve

_TICK_S = 0.1
_IDLE_TICK_S = 1.0
_MEMORY_CHECK_S = 0.25
_MEMORY_CHECK_SHARE = 0.02  # of one core's time; machines with very many processes are checked less often
_KILL_TIMEOUT_S = 5.0  # after which a killed process is reported as lingering
LOG_BYTES = 8 * 2**20
_LOG_TAIL_BYTES = 2**16
_GPU_DRIVERS = {"/dev/nvidia-uvm", "/dev/kfd"}  # files that a process which uses a GPU has open

# of a worker that is not forked; arguments: descriptor of the connection, process id of the server, import
# path
_START = """import sys
descriptor, parent_pid, *sys.path[:] = sys.argv[1:]
from tilesight.workers.worker import serve
serve(int(descriptor), int(parent_pid))
"""


@dataclass(frozen=True, slots=True)
class ServerSetup:
    """The first message to the server.

    `memory_bytes` limits each worker with all processes that it started.
    """

    preload: bytes
    main_path: str | None
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class ForkRequest:
    """Request: start a worker. The descriptors of its connection and of its output file follow."""

    number: int


@dataclass(frozen=True, slots=True)
class KillRequest:
    """Request: kill a worker and all processes that it started."""

    number: int


@dataclass(frozen=True, slots=True)
class ServerReady:
    """Event: the server can start workers. If `fault` is set, it cannot, and ends."""

    forks: bool
    fault: Fault | None = None


@dataclass(frozen=True, slots=True)
class WorkerStarted:
    """Event: a worker's process exists."""

    number: int
    pid: int


@dataclass(frozen=True, slots=True)
class WorkerEnded:
    """Event: a worker has ended, with all processes that it started.

    Attributes:
        exit_code: As `subprocess` reports it: negative for a signal.
        used_bytes: Memory held by the worker, if it was killed for that; otherwise None.
        lingers: Some of the processes have not ended although they were killed.
        fault: Why the worker could not be started; otherwise empty.
    """

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
    process: subprocess.Popen[bytes] | None = None  # None: forked
    used_bytes: int | None = None
    exit_code: int | None = None
    killed_at: float | None = None
    reported: bool = False


@dataclass
class _ForkServer:
    control: Connection
    pool_pid: int
    memory_bytes: int
    forks: bool
    shared_bytes: int  # memory that each worker shares with this process
    children: list[_Child] = field(default_factory=list)
    memory_checked_at: float = 0.0
    memory_check_interval_s: float = _MEMORY_CHECK_S
    wakeup: tuple[int, int] = field(default_factory=os.pipe)

    def run(self) -> None:
        """Serve the pool until it closes or is gone, then end all processes."""
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
                    self.handle(pickle.loads(self.control.recv_bytes()))
                with suppress(BlockingIOError):
                    os.read(self.wakeup[0], 4096)
                self.check_children()
        except (EOFError, OSError):
            pass  # the pool has closed
        finally:
            self.end_all()

    def end_all(self) -> None:
        for child in self.children:
            send_group(child.pid, signal.SIGKILL)
            send(child.pid, signal.SIGKILL)
        until = time.monotonic() + _KILL_TIMEOUT_S
        while end_below() and time.monotonic() < until:
            time.sleep(0.002)

    def handle(self, request: ForkRequest | KillRequest) -> None:
        if isinstance(request, KillRequest):
            for child in self.children:
                if child.number == request.number:
                    self.kill(child)
            return
        connection, log = recv_handle(self.control), recv_handle(self.control)
        try:
            child = _Child(request.number, 0, log)
            self.start(child, connection)
        except OSError as error:  # out of memory, or of process ids
            os.close(log)
            self.send_event(WorkerEnded(request.number, 1, fault=str(error)))
        else:
            self.children.append(child)
            self.send_event(WorkerStarted(child.number, child.pid))
        finally:
            os.close(connection)

    def start(self, child: _Child, connection: int) -> None:
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
                self.control.close()  # an open copy would hide the server's end from the pool
                for descriptor in (*self.wakeup, child.log, *(other.log for other in self.children)):
                    os.close(descriptor)
                serve(connection, own)
            finally:
                os._exit(1)

    def check_children(self) -> None:
        """Reap ended workers, report their ends, and enforce the limits of output and memory."""
        for child in self.children:
            if child.exit_code is None:
                self.reap(child)
        # a lingering worker was reported already, and is removed when it ends
        if any(
            c.killed_at is not None and (not c.reported or c.exit_code is not None) for c in self.children
        ):
            self.report_ended()
        for child in self.children:
            if os.fstat(child.log).st_size > LOG_BYTES:
                _truncate(child.log)
        if self.children and time.monotonic() - self.memory_checked_at > self.memory_check_interval_s:
            self.check_memory()

    def reap(self, child: _Child) -> None:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            child.exit_code = os.waitstatus_to_exitcode(status)
            child.killed_at = child.killed_at or time.monotonic()
            send_group(child.pid, signal.SIGKILL)
            if child.process:
                child.process.returncode = child.exit_code

    def report_ended(self) -> None:
        """Kill the processes that ended workers left behind, then report these workers."""
        living = {child.pid for child in self.children if child.exit_code is None}
        left = end_below(living)
        now = time.monotonic()
        for child in list(self.children):
            if child.killed_at is None:
                continue
            late = now - child.killed_at > _KILL_TIMEOUT_S
            gone = child.exit_code is not None
            if not child.reported and ((gone and not left) or late):
                code = child.exit_code if child.exit_code is not None else -signal.SIGKILL
                self.send_event(
                    WorkerEnded(child.number, code, child.used_bytes, lingers=bool(left) or not gone)
                )
                child.reported = True
            if child.reported and gone:
                os.close(child.log)
                self.children.remove(child)
        if left and any(child.killed_at is not None and not child.reported for child in self.children):
            time.sleep(0.001)
            os.write(self.wakeup[1], b"x")  # check again at once

    def kill(self, child: _Child) -> None:
        if child.exit_code is None and child.killed_at is None:
            child.killed_at = time.monotonic()
            started = below(child.pid, processes())
            send_group(child.pid, signal.SIGKILL)
            for pid in (child.pid, *started):
                send(pid, signal.SIGKILL)

    def check_memory(self) -> None:
        """Kill workers that hold more memory than allowed, counted with all processes that they started."""
        begin = time.monotonic()
        table = processes()
        for child in self.children:
            sizes = [
                table[pid].resident_bytes for pid in (child.pid, *below(child.pid, table)) if pid in table
            ]
            used = sum(max(0, size - self.shared_bytes) for size in sizes)
            if used > self.memory_bytes and child.killed_at is None:
                child.used_bytes = used
                self.kill(child)
        self.memory_checked_at = time.monotonic()
        self.memory_check_interval_s = max(
            _MEMORY_CHECK_S, (self.memory_checked_at - begin) / _MEMORY_CHECK_SHARE
        )

    def send_event(self, event: WorkerStarted | WorkerEnded) -> None:
        self.control.send_bytes(pickle.dumps(event))


def run_fork_server(descriptor: int, pool_pid: int) -> None:
    """The main function of a fork server's process; does not return.

    Args:
        descriptor: The server's end of its connection to the pool.
        pool_pid: Process id of the pool.
    """
    end_with_parent(pool_pid)  # until the imports are done there are no workers to end
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    faulthandler.enable()
    adopt_orphans()
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.set_inheritable(descriptor, False)
    control = Connection(descriptor)
    try:
        setup: ServerSetup = pickle.loads(control.recv_bytes())
        forks = sys.platform == "linux"
        if forks:
            try:
                prepare(setup.preload, setup.main_path)
            except BaseException as error:
                control.send_bytes(pickle.dumps(ServerReady(forks, describe(error))))
                os._exit(1)
            sys.stdout.flush()  # each worker would inherit the buffers and print them again
            sys.stderr.flush()
            forks = _may_fork()
        control.send_bytes(pickle.dumps(ServerReady(forks)))
    except (EOFError, OSError):
        os._exit(0)
    outlive_parent()
    own = processes().get(os.getpid())
    _ForkServer(
        control, pool_pid, setup.memory_bytes, forks, own.resident_bytes if own and forks else 0
    ).run()
    os._exit(0)


def _may_fork() -> bool:
    """Whether this process has one thread and has not initialised a GPU's driver, which a fork cannot use."""
    open_files = set()
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):  # the descriptor that listed the folder is closed
            open_files.add(os.readlink(f"/proc/self/fd/{name}"))
    return len(os.listdir("/proc/self/task")) == 1 and open_files.isdisjoint(_GPU_DRIVERS)


def _truncate(log: int) -> None:
    """Keep only the tail of an output file: error messages show no more."""
    size = os.fstat(log).st_size
    tail = os.pread(log, _LOG_TAIL_BYTES, max(0, size - _LOG_TAIL_BYTES))
    os.ftruncate(log, 0)
    os.write(log, tail)  # every process has the file open for appending
