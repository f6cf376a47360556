"""The processes of a pool: who works on what, who is started and ended, and what their ends mean for their items."""

from __future__ import annotations

import fcntl
import os
import signal
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any

from ..errors import ToolchainError
from .link import ANSWER_S, Task, Why, Worker, limit_waiting
from .nursery import Born, Ended, Grown, Nurture
from .nursery_client import NurseryClient
from .outcomes import Done, Outcome
from .process import Began, Fault, Ready
from .process_tree import send_group

_LOSSES = 10  # that a pool bears, one after the other, of processes that were killed from outside while they started


@dataclass(frozen=True, slots=True)
class Slot:
    """What is the same for each worker in one place of a pool: the first message to it, and whether it has a gate."""

    setup: bytes
    gated: bool


class Crew:
    """One nursery and a worker for each of `slots`, at most. Raises `ToolchainError` where they cannot start."""

    def __init__(self, slots: Sequence[Slot], first: Nurture, environment: Mapping[str, str], start_timeout_s: float) -> None:
        self._slots, self._first, self._environment, self._start_timeout_s = slots, first, environment, start_timeout_s
        self.nursery: NurseryClient | None = None
        self.workers: list[Worker] = []
        self.waiting: deque[Task] = deque()  # for workers that are not ready yet
        self.finished: deque[tuple[int, Outcome[Any]]] = deque()
        self._numbers = self._losses = 0

    @property
    def busy(self) -> bool:
        return bool(self.finished or self.waiting or any(w.task for w in self.workers))

    def sources(self) -> list[Connection]:
        """What must be waited for: something may come from it."""
        nursery = [self.nursery.control] if self.nursery else []
        return nursery + [w.connection for w in self.workers if w.listening]

    def due(self) -> float:
        """When `advance` is needed even if nothing comes."""
        return min((w.due for w in self.workers), default=float("inf"))

    def advance(self) -> None:
        """React to all that has happened, without waiting."""
        self.hear()
        for w in list(self.workers):
            if w.listening and w.connection.poll():
                self._receive(w)
            elif w.ended is None and w.due <= time.monotonic():
                self._overdue(w)
        self._bury()
        self.place()

    def take(self) -> list[tuple[int, Outcome[Any]]]:
        found = list(self.finished)
        self.finished.clear()
        return found

    def cancel(self) -> None:
        """Kill all that runs and forget it, with the outcomes that nobody has taken."""
        self.waiting.clear()
        running = [w for w in self.workers if w.task is not None]
        for w in running:
            w.task = None
            self._end(w, Why.CANCELLED)
        while self.nursery and any(w.ended is None for w in running):
            patience_s = min(w.due for w in running if w.ended is None) - time.monotonic()
            if patience_s <= 0:
                self.nursery.lose()
            else:
                wait([self.nursery.control], patience_s)
            self.hear()
        self._bury()
        self.finished.clear()

    def close(self) -> None:
        """End all workers and everything that they started."""
        self.waiting.clear()
        self.finished.clear()
        if self.nursery:
            self.nursery.close()
            self.nursery = None
        for w in self.workers:
            w.close()
        self.workers.clear()

    # starting and ending workers

    def place(self) -> None:
        """Give waiting tasks to idle workers, and see that there will be workers for those that are left."""
        for task in list(self.waiting):
            chosen = [w for w in self.workers if w.idle and not (task.fresh and w.used)]
            if chosen and max(chosen, key=lambda w: w.used).give(task):
                self.waiting.remove(task)
        wanted = len(self.waiting) - sum(not w.ready for w in self.workers)
        while wanted > 0 and len(self.workers) < len(self._slots):
            self.bear()
            wanted -= 1
        wanted -= sum(w.ready and (w.ending is not None or w.ended is not None) for w in self.workers)  # soon there is room for others
        for w in [w for w in self.workers if w.idle][: max(0, wanted)]:  # used ones, and only fresh ones are wanted
            self._end(w, Why.REPLACED)

    def bear(self) -> None:
        slot = min(set(range(len(self._slots))) - {w.slot for w in self.workers})
        try:
            if self.nursery is None:
                self.nursery = NurseryClient(self._environment, self._first)
            log = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the worker ends
            # appending, or a worker would write on where it stood after the file was emptied
            fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_APPEND)
            ours, theirs = Pipe()
            limit_waiting(ours, self._start_timeout_s)
        except OSError as error:  # no memory, no process, no disk space, too many open files
            raise self._given_up(f"cannot be started: {error}") from error
        self._numbers += 1
        due = time.monotonic() + self._start_timeout_s
        self.workers.append(Worker(self._numbers, slot, self._slots[slot].gated, ours, log, due))
        with theirs:
            self.nursery.bear(self._numbers, theirs, log.fileno())
        with suppress(OSError):  # what has died at once is noticed when it is heard
            ours.send_bytes(self._slots[slot].setup)  # a large one waits here until there is somebody who reads it
            limit_waiting(ours, ANSWER_S)

    def _end(self, w: Worker, why: Why) -> None:
        if w.ending is None and w.ended is None:
            w.end(why)
            if self.nursery:
                self.nursery.end(w.number)

    def _given_up(self, why: str) -> ToolchainError:
        """The error of a pool whose workers cannot start; it is closed, but can be used again."""
        self.close()
        return ToolchainError(f"a worker process {why}")

    # what befalls them

    def hear(self) -> None:
        """Note what the nursery has said."""
        if self.nursery is None:
            return
        by_number = {w.number: w for w in self.workers}
        for message in self.nursery.heard():
            if isinstance(message, Grown):
                if message.fault:
                    raise self._given_up(_cannot_start(message.fault))
            elif isinstance(message, Born) and message.number in by_number:
                by_number[message.number].pid = message.pid
            elif isinstance(message, Ended) and message.number in by_number:
                by_number[message.number].ended = message
        if self.nursery.lost:
            self._lose(self.nursery)

    def _lose(self, nursery: NurseryClient) -> None:
        """Its nursery was killed, and all workers with it: that is no fault of their items."""
        code = nursery.exit_code
        if not nursery.grown and not self._forgive(code):
            raise self._given_up(f"ended while it started (exit code {code}); its output:\n{nursery.output()}")
        nursery.close()
        self.nursery = None
        for w in self.workers:
            if w.pid is not None and w.ended is None:
                send_group(w.pid, signal.SIGKILL)  # where the system does not end it with its nursery
            w.ended = w.ended or Ended(w.number, -signal.SIGKILL)

    def _forgive(self, exit_code: int) -> bool:
        """Whether to try again after a process was killed while it started: not for ever."""
        self._losses += 1
        return exit_code == -signal.SIGKILL and self._losses <= _LOSSES

    def _receive(self, w: Worker) -> None:
        message = w.receive()
        if isinstance(message, Ready):
            if message.fault:
                raise self._given_up(_cannot_start(message.fault))
            self._losses = 0
            w.rest()
        elif isinstance(message, Began):
            w.begin()
        elif message is not None and w.task is not None:
            task, outcome = w.task, w.outcome_of(message)
            w.rest()
            if isinstance(outcome, Done):
                task.limit.saw(outcome.seconds)
            if message.retires:
                self._end(w, Why.REPLACED)
            self.finished.append((task.ticket, outcome))

    def _overdue(self, w: Worker) -> None:
        if w.ending is not None and self.nursery:  # which does not answer
            self.nursery.lose()
            self._lose(self.nursery)
        elif w.silent:
            self._end(w, Why.SILENT)
        elif w.task is not None:
            self._end(w, Why.TIME)
        else:
            output = w.output() or (self.nursery.output() if self.nursery else "")
            raise self._given_up(f"did not start within {self._start_timeout_s:g} s; its output:\n{output}")

    def _bury(self) -> None:
        """Forget the workers that have ended, and say what that means for their items."""
        for w in [w for w in self.workers if w.ended is not None]:
            while w.listening and w.connection.poll():  # it may have answered before it ended
                self._receive(w)
            assert w.ended is not None
            if w.task is not None:
                outcome = w.outcome_of_end(w.ended, self._first.memory_bytes)
                if outcome is None:
                    self.waiting.appendleft(w.task)
                else:
                    self.finished.append((w.task.ticket, outcome))
            elif not w.ready and w.ending is None and not (self.nursery is None or self._forgive(w.ended.exit_code)):
                if w.ended.fault:
                    raise self._given_up(f"cannot be started: {w.ended.fault}")
                raise self._given_up(f"ended while it started (exit code {w.ended.exit_code}); its output:\n{w.output()}")
            self.workers.remove(w)
            w.close()


def _cannot_start(fault: Fault) -> str:
    return f"cannot start: {fault[0]}: {fault[1]}\n{fault[2]}"
