"""What a pool makes of what it hears from a worker, and of its end."""

from __future__ import annotations

import pickle
import signal
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe

import pytest

from tilesight.errors import FailureKind
from tilesight.workers import Crashed, OutOfMemory, Raised, TimedOut, TimeLimit, failure_of
from tilesight.workers.link import Task, Why, Worker
from tilesight.workers.nursery import Ended
from tilesight.workers.process import Began, Ready, Result

KINDS = (FailureKind.BUILD_ERROR, FailureKind.BUILD_CRASH, FailureKind.BUILD_TIMEOUT)
LIMIT_BYTES = 2**31


@pytest.fixture
def pair() -> Iterator[tuple[Worker, Connection]]:
    """A worker that has a task, and the other end of its connection."""
    ours, theirs = Pipe()
    worker = Worker(1, 3, False, ours, tempfile.TemporaryFile(), 0.0)  # noqa: SIM115 - closed with the worker
    worker.rest()
    assert worker.idle
    assert worker.give(Task(7, b"payload", TimeLimit(30.0, floor_s=30.0), fresh=False))
    assert theirs.recv_bytes() == b"payload"
    worker.log.write(b"its last words")
    worker.log.flush()
    yield worker, theirs
    worker.close()
    theirs.close()


def test_a_driver_that_holds_a_killed_process_is_said(pair: tuple[Worker, Connection]) -> None:
    worker, _ = pair
    worker.end(Why.TIME)
    outcome = worker.outcome_of_end(Ended(1, -9, lingers=True), LIMIT_BYTES)
    assert outcome == TimedOut(30.0, "its last words")
    assert isinstance(outcome, TimedOut)
    assert outcome.lingers
    assert outcome.slot == 3
    assert failure_of(outcome, *KINDS).message == "stopped after 30 s; its process could not be ended at once"


def test_memory_counts_before_other_reasons(pair: tuple[Worker, Connection]) -> None:
    worker, _ = pair
    worker.end(Why.TIME)
    outcome = worker.outcome_of_end(Ended(1, -9, used_bytes=3 * 2**30), LIMIT_BYTES)
    assert isinstance(outcome, OutOfMemory)
    failure = failure_of(outcome, *KINDS)
    assert failure.kind is FailureKind.BUILD_MEMORY
    assert failure.message == "stopped because it used 3.0 GiB of host memory, more than its 2.0 GiB"
    assert failure.detail == "its last words"


def test_a_kill_from_outside_is_forgiven_once(pair: tuple[Worker, Connection]) -> None:
    worker, _ = pair
    killed = Ended(1, -signal.SIGKILL)
    assert worker.outcome_of_end(killed, LIMIT_BYTES) is None
    assert isinstance(worker.outcome_of_end(killed, LIMIT_BYTES), Crashed)


def test_a_crash_is_not_forgiven(pair: tuple[Worker, Connection]) -> None:
    worker, _ = pair
    assert isinstance(worker.outcome_of_end(Ended(1, -signal.SIGSEGV), LIMIT_BYTES), Crashed)


@pytest.mark.parametrize("sent", [b"", b"no pickle", pickle.dumps("no message")])
def test_an_item_that_writes_into_the_connection_silences_its_worker(pair: tuple[Worker, Connection], sent: bytes) -> None:
    worker, theirs = pair
    theirs.send_bytes(sent)
    assert worker.listening
    assert worker.receive() is None
    assert not worker.listening
    assert worker.due < time.monotonic() + 10


def test_a_worker_that_is_gone_takes_no_task(pair: tuple[Worker, Connection]) -> None:
    worker, theirs = pair
    worker.rest()
    theirs.close()
    assert not worker.give(Task(8, b"payload", TimeLimit(30.0), fresh=False))
    assert worker.task is None
    assert not worker.idle


def test_messages(pair: tuple[Worker, Connection]) -> None:
    worker, theirs = pair
    for message in (Ready(), Began(), Result(b"x", seconds=2.0)):
        theirs.send_bytes(pickle.dumps(message))
        assert worker.receive() == message
    outcome = worker.outcome_of(Result(b"x", seconds=2.0))
    assert isinstance(outcome, Raised)
    assert "cannot be read back" in outcome.message
