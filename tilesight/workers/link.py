"""A pool's side of one worker process: what it is doing, until when, and what its end means for its item."""

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

from .nursery import Ended
from .nursery_client import tail
from .outcomes import Crashed, Done, Outcome, OutOfMemory, Raised, TimedOut
from .process import Began, Ready, Result
from .time_limits import TimeLimit

ANSWER_S = 15.0  # what a nursery gets to end a worker: it gives up by itself before
_FAREWELL_S = 2.0  # what a worker gets to end after it closed its connection
_NEVER = float("inf")


class Why(Enum):
    """Why a worker was asked to end."""

    TIME = "its item took too long"
    CANCELLED = "nobody wants its item any more"
    REPLACED = "a fresh process is wanted in its place"
    SILENT = "it has closed its connection"


@dataclass
class Task:
    ticket: int
    payload: bytes
    limit: TimeLimit
    fresh: bool
    losses: int = 0  # workers that were killed from outside while they had it


@dataclass
class Worker:
    """`task` is None while it starts or waits. `due` is when something must be done about it, if nothing is heard."""

    number: int
    slot: int
    gated: bool
    connection: Connection
    log: IO[bytes]  # its output: a file that has no name, so that nothing stays behind
    due: float
    pid: int | None = None
    ready: bool = False
    used: bool = False
    at_gate: bool = False
    silent: bool = False
    task: Task | None = None
    ending: Why | None = None
    ended: Ended | None = None
    limit_s: float = 0.0
    since: float = field(default_factory=time.monotonic)

    @property
    def idle(self) -> bool:
        return self.ready and self.task is None and self.ending is None and self.ended is None and not self.silent

    @property
    def listening(self) -> bool:
        """Whether something may come from it that matters."""
        return self.ending is None and not self.silent and not (self.ready and self.task is None)

    def give(self, task: Task) -> bool:
        """Whether it took the task; a process that has died does not."""
        os.ftruncate(self.log.fileno(), 0)
        try:
            self.connection.send_bytes(task.payload)
        except OSError:
            self.fall_silent()
            return False
        self.task, self.used, self.limit_s = task, True, task.limit.seconds
        self.begin()
        if self.gated:
            self.at_gate, self.due = True, _NEVER
        return True

    def begin(self) -> None:
        """Its item begins now."""
        self.at_gate, self.since = False, time.monotonic()
        self.due = self.since + self.limit_s

    def rest(self) -> None:
        self.ready, self.task, self.due = True, None, _NEVER

    def end(self, why: Why) -> None:
        self.ending, self.at_gate, self.due = why, False, time.monotonic() + ANSWER_S

    def receive(self) -> Ready | Began | Result | None:
        """Its next message; None where it can send no more."""
        try:
            message = pickle.loads(self.connection.recv_bytes())
        except Exception:  # it is gone, or its item has written into the connection
            message = None
        if isinstance(message, Ready | Began | Result):
            return message
        self.fall_silent()
        return None

    def fall_silent(self) -> None:
        """It has closed its connection, and should end now."""
        self.silent, self.at_gate, self.due = True, False, time.monotonic() + _FAREWELL_S

    def outcome_of(self, result: Result) -> Outcome[Any]:
        if result.fault is not None:
            return Raised(*result.fault, result.seconds, self.slot)
        try:
            return Done(pickle.loads(result.value), result.seconds, self.slot)
        except Exception as error:
            return Raised(type(error).__name__, f"the result cannot be read back: {error}", "", result.seconds, self.slot)

    def outcome_of_end(self, ended: Ended, memory_bytes: int) -> Outcome[Any] | None:
        """What its end means for its item. None: nothing, since somebody else killed it, and it was the first time."""
        assert self.task is not None
        seconds, output = time.monotonic() - self.since, self.output()
        if ended.used_bytes is not None:
            return OutOfMemory(ended.used_bytes, memory_bytes, output, seconds, ended.lingers, self.slot)
        if self.ending is Why.TIME:
            return TimedOut(self.limit_s, output, ended.lingers, self.slot)
        if ended.exit_code == -signal.SIGKILL and self.ending is None:
            self.task.losses += 1
            if self.task.losses == 1:
                return None
        return Crashed(ended.exit_code, output, seconds, self.slot)

    def output(self) -> str:
        return tail(self.log.fileno())

    def close(self) -> None:
        self.connection.close()
        self.log.close()


def limit_waiting(connection: Connection, seconds: float) -> None:
    """Where the other end stops in the midst of a message, reading and writing raise `OSError` after so long."""
    with socket.socket(fileno=os.dup(connection.fileno())) as end:
        end.setblocking(True)  # whatever the program's default for its sockets is
        for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
            end.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", math.ceil(seconds), 0))
