"""A pool's side of its nursery: starting it, asking it for workers, hearing what became of them."""

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

from .nursery import Bear, Born, End, Ended, Grown, Nurture
from .process_tree import end_marked, still_running

_MARK = "TILESIGHT_NURSERY"
_FIT_TO_FORK = {
    "OPENBLAS_NUM_THREADS": "1",  # it starts threads where NumPy is imported
    "PYTORCH_NVML_BASED_CUDA_CHECK": "1",  # or asking PyTorch whether there is a GPU, as TileLang's import does, starts the driver
}
_CLOSE_S = 10.0
_SWEEP_S = 5.0
_TAIL_BYTES = 4000  # of what a process printed, the last

# its arguments are the connection, its parent and the import path
_START = """import sys
descriptor, parent_pid, *sys.path[:] = sys.argv[1:]
from tilesight.workers.nursery import grow
grow(int(descriptor), int(parent_pid))
"""


class NurseryClient:
    """A nursery that runs. Raises `OSError` where it cannot be started.

    `grown`: it has imported what it should. `forks`: its workers are forked, and not fresh Python processes. `lost`: it
    is gone without having been asked, and its workers with it; `exit_code` tells how it ended.
    """

    def __init__(self, environment: Mapping[str, str], first: Nurture) -> None:
        self.grown = self.forks = self.lost = False
        self.exit_code = 0
        self._mark = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._log: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the nursery
        self.control, theirs = Pipe()
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", _START, str(theirs.fileno()), str(os.getpid()), *(p or os.getcwd() for p in sys.path)],
                stdin=subprocess.DEVNULL,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                # all that it starts has the mark too, by which it is found where the nursery itself was killed
                env={**os.environ, **_FIT_TO_FORK, **environment, _MARK: self._mark},
                start_new_session=True,  # Ctrl-C on the terminal is not for it
            )
        except OSError:
            self.control.close()
            self._log.close()
            raise
        finally:
            theirs.close()
        self._send(first)

    def bear(self, number: int, connection: Connection, log: int) -> None:
        """Ask for a worker that serves the other end of `connection` and writes its output to `log`."""
        self._send(Bear(number))
        with suppress(OSError):
            send_handle(self.control, connection.fileno(), self._process.pid)
            send_handle(self.control, log, self._process.pid)

    def end(self, number: int) -> None:
        """Ask for the end of a worker; `Ended` follows, even where it has ended by itself."""
        self._send(End(number))

    def heard(self) -> list[Born | Ended | Grown]:
        """What it has said since; sets `lost` where it is gone."""
        found: list[Born | Ended | Grown] = []
        while not self.lost:
            try:
                if not self.control.poll():
                    break
                message = pickle.loads(self.control.recv_bytes())
            except (EOFError, OSError):
                self.lose()
                break
            if isinstance(message, Grown) and message.fault is None:
                self.grown, self.forks = True, message.forks
            found.append(message)
        return found

    def lose(self) -> None:
        """End a nursery that does not answer, or that is gone, with all that it left."""
        with suppress(OSError):
            self._process.kill()
        self.exit_code = self._wait()
        until, found = time.monotonic() + _SWEEP_S, set[int]()
        while time.monotonic() < until:
            new = end_marked(f"{_MARK}={self._mark}".encode())
            found |= new
            if not new and not still_running(found):
                break
            time.sleep(0.002)
        self.lost = True

    def output(self) -> str:
        return tail(self._log.fileno())

    def close(self) -> None:
        """End it, its workers and everything that they started."""
        with suppress(OSError), socket.socket(fileno=os.dup(self.control.fileno())) as end:
            end.shutdown(socket.SHUT_RDWR)  # closing is no sign to it where a fork of this process holds the connection too
        self.control.close()
        if not self.grown:  # it imports, hears nothing, and has started nothing
            self._process.kill()
        if not self.lost:
            try:
                self._process.wait(_CLOSE_S)
            except subprocess.TimeoutExpired:
                self.lose()
        self._log.close()

    def _wait(self) -> int:
        try:
            return self._process.wait(_CLOSE_S)
        except subprocess.TimeoutExpired:  # a driver may hold even a killed process
            return 0

    def _send(self, message: Nurture | Bear | End) -> None:
        with suppress(OSError):  # one that is gone is noticed when it is heard
            self.control.send_bytes(pickle.dumps(message))


def tail(descriptor: int) -> str:
    """The end of a file."""
    start = max(0, os.fstat(descriptor).st_size - _TAIL_BYTES)
    return os.pread(descriptor, _TAIL_BYTES, start).decode(errors="replace")
