"""The supervisor of a pool: assigns items to workers, starts and ends workers, collects outcomes."""

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
from .fork_client import ForkServerClient
from .fork_server import ServerReady, ServerSetup, WorkerEnded, WorkerStarted
from .handle import KILL_TIMEOUT_S, EndReason, WorkerHandle, WorkItem, set_io_timeout
from .outcomes import Done, Outcome
from .process_tree import send_group
from .worker import Began, Fault, Ready

_START_RETRIES = 10  # in a row, of processes that another process killed while they started


@dataclass(frozen=True, slots=True)
class WorkerSlot:
    """What all workers of one slot share. `setup`: the first message to them, a pickled `Setup`."""

    setup: bytes
    gated: bool


class Supervisor:
    """One fork server and at most one worker for each of `slots`.

    Methods that start processes raise `ToolchainError` if these cannot start.
    """

    def __init__(
        self,
        slots: Sequence[WorkerSlot],
        server_setup: ServerSetup,
        environment: Mapping[str, str],
        start_timeout_s: float,
    ) -> None:
        self._slots, self._server_setup, self._environment = slots, server_setup, environment
        self._start_timeout_s = start_timeout_s
        self.server: ForkServerClient | None = None
        self.workers: list[WorkerHandle] = []
        self.waiting: deque[WorkItem] = deque()  # items without a worker
        self.finished: deque[tuple[int, Outcome[Any]]] = deque()
        self._next_number = self._failed_starts = 0

    @property
    def busy(self) -> bool:
        return bool(self.finished or self.waiting or any(w.item for w in self.workers))

    def sources(self) -> list[Connection]:
        """Connections to wait for."""
        server = [self.server.control] if self.server else []
        return server + [w.connection for w in self.workers if w.expects_message]

    def deadline(self) -> float:
        """When `advance` must be called even if no message has come (in `time.monotonic`)."""
        return min((w.deadline for w in self.workers), default=float("inf"))

    def advance(self) -> None:
        """Handle all messages and deadlines, without waiting."""
        self.receive_events()
        for w in list(self.workers):
            if w.expects_message and w.connection.poll():
                self._receive(w)
            elif w.ended is None and w.deadline <= time.monotonic():
                self._handle_deadline(w)
        self._remove_ended()
        self.assign_items()

    def take_finished(self) -> list[tuple[int, Outcome[Any]]]:
        """Tickets and outcomes since the last call."""
        found = list(self.finished)
        self.finished.clear()
        return found

    def cancel(self) -> None:
        """Kill the running items, and drop them and the outcomes that were not taken."""
        self.waiting.clear()
        running = [w for w in self.workers if w.item is not None]
        for w in running:
            w.item = None
            self._end(w, EndReason.CANCELLED)
        while self.server and any(w.ended is None for w in running):
            timeout_s = min(w.deadline for w in running if w.ended is None) - time.monotonic()
            if timeout_s <= 0:
                self.server.kill()
            else:
                wait([self.server.control], timeout_s)
            self.receive_events()
        self._remove_ended()
        self.finished.clear()

    def close(self) -> None:
        """End all workers and every process that they started."""
        self.waiting.clear()
        self.finished.clear()
        if self.server:
            self.server.close()
            self.server = None
        for w in self.workers:
            w.close()
        self.workers.clear()

    # starting and ending workers

    def assign_items(self) -> None:
        """Assign waiting items to idle workers, and start workers for the other items."""
        for item in list(self.waiting):
            candidates = [w for w in self.workers if w.idle and not (item.fresh and w.used)]
            if candidates and max(candidates, key=lambda w: w.used).assign(item):
                self.waiting.remove(item)
        wanted = len(self.waiting) - sum(not w.ready for w in self.workers)
        while wanted > 0 and len(self.workers) < len(self._slots):
            self.start_worker()
            wanted -= 1
        # ending workers leave slots for new ones
        wanted -= sum(w.ready and (w.ending is not None or w.ended is not None) for w in self.workers)
        # the idle workers that are left were used, and the items want fresh processes
        for w in [w for w in self.workers if w.idle][: max(0, wanted)]:
            self._end(w, EndReason.REPLACED)

    def start_worker(self) -> None:
        """Start a worker in the first free slot, without waiting until it is ready."""
        slot = min(set(range(len(self._slots))) - {w.slot for w in self.workers})
        try:
            if self.server is None:
                self.server = ForkServerClient(self._environment, self._server_setup)
            log = tempfile.TemporaryFile()  # noqa: SIM115 - closed when the worker ends
            # in append mode, so that writing goes on at the start after the file was emptied
            fcntl.fcntl(log, fcntl.F_SETFL, fcntl.fcntl(log, fcntl.F_GETFL) | os.O_APPEND)
            connection, worker_end = Pipe()
            set_io_timeout(connection, self._start_timeout_s)
        except OSError as error:  # no memory, no process, no disk space, too many open files
            raise self._start_error(f"cannot be started: {error}") from error
        self._next_number += 1
        deadline = time.monotonic() + self._start_timeout_s
        gated = self._slots[slot].gated
        self.workers.append(WorkerHandle(self._next_number, slot, gated, connection, log, deadline))
        with worker_end:
            self.server.start_worker(self._next_number, worker_end, log.fileno())
        with suppress(OSError):  # `receive_events` notices a worker that died at once
            connection.send_bytes(
                self._slots[slot].setup
            )  # a large message waits here until the worker reads it
            set_io_timeout(connection, KILL_TIMEOUT_S)

    def _end(self, w: WorkerHandle, reason: EndReason) -> None:
        if w.ending is None and w.ended is None:
            w.mark_ending(reason)
            if self.server:
                self.server.kill_worker(w.number)

    def _start_error(self, reason: str) -> ToolchainError:
        """Close the pool, which can be used again, and return the error that its workers cannot start."""
        self.close()
        return ToolchainError(f"a worker process {reason}")

    # events

    def receive_events(self) -> None:
        """Handle the events that the fork server has sent."""
        if self.server is None:
            return
        by_number = {w.number: w for w in self.workers}
        for event in self.server.receive():
            if isinstance(event, ServerReady):
                if event.fault:
                    raise self._start_error(_cannot_start(event.fault))
            elif isinstance(event, WorkerStarted) and event.number in by_number:
                by_number[event.number].pid = event.pid
            elif isinstance(event, WorkerEnded) and event.number in by_number:
                by_number[event.number].ended = event
        if self.server.lost:
            self._handle_lost_server(self.server)

    def _handle_lost_server(self, server: ForkServerClient) -> None:
        """Mark all workers as killed from outside: the fork server was killed, and they with it."""
        code = server.exit_code
        if not server.ready and not self._may_start_again(code):
            output = server.output()
            raise self._start_error(f"ended while it started (exit code {code}); its output:\n{output}")
        server.close()
        self.server = None
        for w in self.workers:
            if w.pid is not None and w.ended is None:
                send_group(w.pid, signal.SIGKILL)  # for systems that do not end it with the server
            w.ended = w.ended or WorkerEnded(w.number, -signal.SIGKILL)

    def _may_start_again(self, exit_code: int) -> bool:
        """Count a process that ended while it started. True if another process killed it, up to a limit."""
        self._failed_starts += 1
        return exit_code == -signal.SIGKILL and self._failed_starts <= _START_RETRIES

    def _receive(self, w: WorkerHandle) -> None:
        message = w.receive()
        if isinstance(message, Ready):
            if message.fault:
                raise self._start_error(_cannot_start(message.fault))
            self._failed_starts = 0
            w.pid = message.pid
            w.mark_idle()
        elif isinstance(message, Began):
            w.mark_began()
        elif message is not None and w.item is not None:
            item, outcome = w.item, w.outcome_of(message)
            w.mark_idle()
            if isinstance(outcome, Done):
                item.limit.record(outcome.seconds)
            if message.retires:
                self._end(w, EndReason.REPLACED)
            self.finished.append((item.ticket, outcome))

    def _handle_deadline(self, w: WorkerHandle) -> None:
        if w.ending is not None and self.server:  # the server does not answer
            self.server.kill()
            self._handle_lost_server(self.server)
        elif w.disconnected:
            self._end(w, EndReason.DISCONNECTED)
        elif w.item is not None:
            self._end(w, EndReason.TIME)
        else:
            output = w.output() or (self.server.output() if self.server else "")
            raise self._start_error(
                f"did not start within {self._start_timeout_s:g} s; its output:\n{output}"
            )

    def _remove_ended(self) -> None:
        """Remove the workers that have ended, with the outcomes of their items."""
        for w in [w for w in self.workers if w.ended is not None]:
            while w.expects_message and w.connection.poll():  # it may have sent its result before it ended
                self._receive(w)
            assert w.ended is not None
            if w.item is not None:
                outcome = w.outcome_of_end(w.ended, self._server_setup.memory_bytes)
                if outcome is None:
                    self.waiting.appendleft(w.item)
                else:
                    self.finished.append((w.item.ticket, outcome))
            elif (
                not w.ready
                and w.ending is None
                and self.server
                and not self._may_start_again(w.ended.exit_code)
            ):
                if w.ended.fault:
                    raise self._start_error(f"cannot be started: {w.ended.fault}")
                code, output = w.ended.exit_code, w.output()
                raise self._start_error(f"ended while it started (exit code {code}); its output:\n{output}")
            self.workers.remove(w)
            w.close()


def _cannot_start(fault: Fault) -> str:
    return f"cannot start: {fault[0]}: {fault[1]}\n{fault[2]}"
