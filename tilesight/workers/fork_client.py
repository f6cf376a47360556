"""The client of a fork server: starts the server process, requests workers, receives events."""

from __future__ import annotations

import os
import pickle
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from multiprocessing.connection import Connection, Pipe
from multiprocessing.reduction import send_handle
from typing import IO

from .fork_server import ForkRequest, KillRequest, ServerReady, ServerSetup, WorkerEnded, WorkerStarted
from .process_tree import end_marked, still_running

_MARK = "TILESIGHT_FORK_SERVER"
_FORK_SAFE = {"OPENBLAS_NUM_THREADS": "1"}  # OpenBLAS starts its threads when NumPy is imported
_CLOSE_TIMEOUT_S = 10.0
_SWEEP_TIMEOUT_S = 5.0
_TAIL_BYTES = 4000  # of a process's output that error messages show

# arguments: descriptor of the connection, process id of the pool, import path
_START = """import sys
descriptor, parent_pid, *sys.path[:] = sys.argv[1:]
from tilesight.workers.fork_server import run_fork_server
run_fork_server(int(descriptor), int(parent_pid))
"""


class ForkServerClient:
    """One running fork server. Construction raises `OSError` if the process cannot be started.

    Attributes:
        ready: The server has finished its imports.
        forks: The server forks its workers; otherwise each worker is a fresh Python process.
        lost: The server ended without `close()`, and its workers with it.
        exit_code: How a lost server ended.
    """

    def __init__(self, environment: Mapping[str, str], setup: ServerSetup) -> None:
        self.ready = self.forks = self.lost = False
        self.exit_code = 0
        self._mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        self.control, server_end = Pipe()
        import_path = [path or os.getcwd() for path in sys.path]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(server_end.fileno()), str(os.getpid()), *import_path],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                pass_fds=[server_end.fileno()],
                # every process below the server inherits the mark, which finds them after the server was
                # killed
                env={**os.environ, **_FORK_SAFE, **environment, _MARK: self._mark},
                start_new_session=True,  # Ctrl-C in the terminal does not reach the server
            )
        except OSError:
            self.control.close()
            self._log.close()
            raise
        finally:
            server_end.close()
        self._send(setup)

    def start_worker(self, number: int, connection: Connection, log: int) -> None:
        """Request a worker; `WorkerStarted` or `WorkerEnded` follows.

        Args:
            number: Identifies the worker in later messages.
            connection: The worker's end of its connection to the pool.
            log: Descriptor of the file that receives the worker's output.
        """
        self._send(ForkRequest(number))
        with suppress(OSError):
            send_handle(self.control, connection.fileno(), self._process.pid)
            send_handle(self.control, log, self._process.pid)

    def kill_worker(self, number: int) -> None:
        """Request the end of a worker; `WorkerEnded` follows, also for a worker that has ended by itself."""
        self._send(KillRequest(number))

    def receive(self) -> list[WorkerStarted | WorkerEnded | ServerReady]:
        """All events that have arrived, without waiting. Sets `lost` if the server is gone."""
        events: list[WorkerStarted | WorkerEnded | ServerReady] = []
        while not self.lost:
            try:
                if not self.control.poll():
                    break
                event = pickle.loads(self.control.recv_bytes())
            except (EOFError, OSError):
                self.kill()
                break
            if isinstance(event, ServerReady) and event.fault is None:
                self.ready, self.forks = True, event.forks
            events.append(event)
        return events

    def kill(self) -> None:
        """Kill a server that does not answer, or is gone, with every process below it."""
        with suppress(OSError):
            self._process.kill()
        self.exit_code = self._wait()
        deadline, found = time.monotonic() + _SWEEP_TIMEOUT_S, set[int]()
        while time.monotonic() < deadline:
            new = end_marked(f"{_MARK}={self._mark}".encode())
            found |= new
            if not new and not still_running(found):
                break
            time.sleep(0.002)
        self.lost = True

    def output(self) -> str:
        """The end of the server's own output."""
        return tail(self._log.fileno())

    def close(self) -> None:
        """End the server, its workers and every process that they started."""
        with suppress(OSError), socket.socket(fileno=os.dup(self.control.fileno())) as end:
            end.shutdown(
                socket.SHUT_RDWR
            )  # the server sees this even if a fork of this process holds the connection
        self.control.close()
        if not self.ready:  # it is importing, reads no messages, and has started no worker
            self._process.kill()
        if not self.lost:
            try:
                self._process.wait(_CLOSE_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                self.kill()
        self._log.close()

    def _wait(self) -> int:
        try:
            return self._process.wait(_CLOSE_TIMEOUT_S)
        except subprocess.TimeoutExpired:  # a driver may hold even a killed process
            return 0

    def _send(self, message: ServerSetup | ForkRequest | KillRequest) -> None:
        with suppress(OSError):  # `receive` notices that the server is gone
            self.control.send_bytes(pickle.dumps(message))


def tail(descriptor: int) -> str:
    """The end of an open file, as text."""
    start = max(0, os.fstat(descriptor).st_size - _TAIL_BYTES)
    return os.pread(descriptor, _TAIL_BYTES, start).decode(errors="replace")
