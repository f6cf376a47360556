"""The pool's view of one worker process: its item, its deadline, and the outcome when it answers or ends."""

from __future__ import annotations

import math
import os
import pickle
import signal
import socket
import struct
import time
from dataclasses import dataclass, field
from enum import Enum
from multiprocessing.connection import Connection
from typing import IO, Any

from .fork_client import tail
from .fork_server import WorkerEnded
from .outcomes import Crashed, Done, Outcome, OutOfMemory, Raised, TimedOut
from .time_limits import TimeLimit
from .worker import Began, Ready, Result

KILL_TIMEOUT_S = 15.0  # for the fork server to end a worker, longer than the server's own limit
_EXIT_TIMEOUT_S = 2.0  # for a worker to end after it closed its connection
_NEVER = float("inf")


class EndReason(Enum):
    """Why the pool ends a worker."""

    TIME = "its item took too long"
    CANCELLED = "its item was cancelled"
    REPLACED = "a fresh process takes its place"
    DISCONNECTED = "it has closed its connection"


@dataclass
class WorkItem:
    """One call for a worker.

    `payload` is the pickled function and its argument; `fresh` asks for an unused process.
    """

    ticket: int
    payload: bytes
    limit: TimeLimit
    fresh: bool
    outside_kills: int = 0  # how often its worker was killed by another process


@dataclass
class WorkerHandle:
    """One worker process.

    `item` is None while the worker starts or idles. At `deadline` (of `time.monotonic`) the pool must act if
    the worker has sent nothing by then.
    """

    number: int
    slot: int
    gated: bool
    connection: Connection
    log: IO[bytes]  # the worker's output; an unnamed file, which the system removes
    deadline: float
    pid: int | None = None
    ready: bool = False
    used: bool = False
    at_gate: bool = False
    disconnected: bool = False
    item: WorkItem | None = None
    ending: EndReason | None = None
    ended: WorkerEnded | None = None
    limit_s: float = 0.0
    began: float = field(default_factory=time.monotonic)

    @property
    def idle(self) -> bool:
        return (
            self.ready
            and self.item is None
            and self.ending is None
            and self.ended is None
            and not self.disconnected
        )

    @property
    def expects_message(self) -> bool:
        """Whether the pool must read the worker's next message."""
        return self.ending is None and not self.disconnected and not (self.ready and self.item is None)

    def assign(self, item: WorkItem) -> bool:
        """Send the item to the worker. Returns False if the process has died."""
        os.ftruncate(self.log.fileno(), 0)
        self.item, self.used, self.limit_s = item, True, item.limit.seconds
        try:
            # An interrupt may come as soon as this is sent: the worker is then known to run the item.
            self.connection.send_bytes(item.payload)
        except OSError:
            self.item = None
            self.mark_disconnected()
            return False
        self.mark_began()
        if self.gated:
            self.at_gate, self.deadline = True, _NEVER
        return True

    def mark_began(self) -> None:
        """Start the time limit of the item."""
        self.at_gate, self.began = False, time.monotonic()
        self.deadline = self.began + self.limit_s

    def mark_idle(self) -> None:
        self.ready, self.item, self.deadline = True, None, _NEVER

    def mark_ending(self, reason: EndReason) -> None:
        """Note that the fork server was asked to kill the worker."""
        self.ending, self.at_gate, self.deadline = reason, False, time.monotonic() + KILL_TIMEOUT_S

    def mark_disconnected(self) -> None:
        """Note that the worker can send no more messages; it should end soon."""
        self.disconnected, self.at_gate, self.deadline = True, False, time.monotonic() + _EXIT_TIMEOUT_S

    def receive(self) -> Ready | Began | Result | None:
        """The worker's next message; None if it can send no more."""
        try:
            message = pickle.loads(self.connection.recv_bytes())
        except Exception:  # the worker is gone, or its item has written into the connection
            message = None
        if isinstance(message, Ready | Began | Result):
            return message
        self.mark_disconnected()
        return None

    def outcome_of(self, result: Result) -> Outcome[Any]:
        """The outcome of an item that ran to its end."""
        if result.fault is not None:
            return Raised(*result.fault, result.seconds, self.slot)
        try:
            return Done(pickle.loads(result.value), result.seconds, self.slot)
        except Exception as error:
            message = f"the result cannot be read back: {error}"
            return Raised(type(error).__name__, message, "", result.seconds, self.slot)

    def outcome_of_end(self, ended: WorkerEnded, memory_bytes: int) -> Outcome[Any] | None:
        """The outcome of an item whose worker has ended, or None if the item should run again.

        An item runs again after the first time that another process killed its worker.

        Args:
            ended: The fork server's report.
            memory_bytes: The worker's memory limit.
        """
        assert self.item is not None
        seconds, output = time.monotonic() - self.began, self.output()
        if ended.used_bytes is not None:
            return OutOfMemory(ended.used_bytes, memory_bytes, output, seconds, ended.lingers, self.slot)
        if self.ending is EndReason.TIME:
            return TimedOut(self.limit_s, output, ended.lingers, self.slot)
        if ended.exit_code == -signal.SIGKILL and self.ending is None:
            self.item.outside_kills += 1
            if self.item.outside_kills == 1:
                return None
        return Crashed(ended.exit_code, output, seconds, self.slot)

    def output(self) -> str:
        """The end of the worker's output."""
        return tail(self.log.fileno())

    def close(self) -> None:
        self.connection.close()
        self.log.close()


def set_io_timeout(connection: Connection, seconds: float) -> None:
    """Make reads and writes raise `OSError` if the other end stops inside a message for `seconds`."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setblocking(True)  # whatever default the program has set for its sockets
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", math.ceil(seconds), 0))
