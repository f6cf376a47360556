"""The pool's view of a worker: its messages, and the outcome of its end."""

from __future__ import annotations

import json
import pickle
import signal
import tempfile
import time
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe

import pytest
import torch

import tilesight.kernels.matmul
import tilesight.problem.space
from tilesight.errors import FailureKind
from tilesight.workers import Crashed, OutOfMemory, Raised, TimedOut, TimeLimit, failure_of
from tilesight.workers.fork_server import WorkerEnded
from tilesight.workers.handle import EndReason, WorkerHandle, WorkItem
from tilesight.workers.worker import Began, Ready, Result

KINDS = (FailureKind.BUILD_ERROR, FailureKind.BUILD_CRASH, FailureKind.BUILD_TIMEOUT)
LIMIT_BYTES = 2**31


@pytest.fixture
def pair() -> Iterator[tuple[WorkerHandle, Connection]]:
    """A worker that runs an item, and the other end of its connection."""
    ours, theirs = Pipe()
    worker = WorkerHandle(1, 3, False, ours, tempfile.TemporaryFile(), 0.0)  # noqa: SIM115
    worker.mark_idle()
    assert worker.idle
    assert worker.assign(WorkItem(7, b"payload", TimeLimit(30.0, floor_s=30.0), fresh=False))
    assert theirs.recv_bytes() == b"payload"
    worker.log.write(b"end of output")
    worker.log.flush()
    yield worker, theirs
    worker.close()
    theirs.close()


def test_a_killed_process_that_lingers_is_in_the_message(pair: tuple[WorkerHandle, Connection]) -> None:
    worker, _ = pair
    worker.mark_ending(EndReason.TIME)
    outcome = worker.outcome_of_end(WorkerEnded(1, -9, lingers=True), LIMIT_BYTES)
    assert outcome == TimedOut(30.0, "end of output")
    assert isinstance(outcome, TimedOut)
    assert outcome.lingers
    assert outcome.slot == 3
    assert failure_of(outcome, *KINDS).message == "stopped after 30 s; its process could not be ended at once"


@pytest.mark.parametrize(
    ("files", "where"),
    [
        (("/home/me/op.py", "/home/me/helper.py"), " (helper.py:3 in build)"),
        (("/home/me/op.py", torch.__file__, "<string>"), " (op.py:3 in build)"),
        ((json.__file__, tilesight.problem.space.__file__), ""),
        ((tilesight.kernels.matmul.__file__, tilesight.problem.space.__file__), " (matmul.py:3 in build)"),
    ],
)
def test_an_exception_is_located_in_the_template(files: tuple[str, ...], where: str) -> None:
    frames = "".join(f'  File "{file}", line 3, in build\n    code()\n' for file in files)
    raised = Raised("KeyError", "'x'", f"Traceback (most recent call last):\n{frames}KeyError: 'x'\n", 0.1)
    assert failure_of(raised, *KINDS).message == f"KeyError: 'x'{where}"


def test_exceeded_memory_precedes_other_reasons(pair: tuple[WorkerHandle, Connection]) -> None:
    worker, _ = pair
    worker.mark_ending(EndReason.TIME)
    outcome = worker.outcome_of_end(WorkerEnded(1, -9, used_bytes=3 * 2**30), LIMIT_BYTES)
    assert isinstance(outcome, OutOfMemory)
    failure = failure_of(outcome, *KINDS)
    assert failure.kind is FailureKind.BUILD_MEMORY
    assert failure.message == "stopped because it used 3.0 GiB of host memory, more than its 2.0 GiB"
    assert failure.detail == "end of output"


def test_after_a_kill_from_outside_the_item_runs_again_once(pair: tuple[WorkerHandle, Connection]) -> None:
    worker, _ = pair
    killed = WorkerEnded(1, -signal.SIGKILL)
    assert worker.outcome_of_end(killed, LIMIT_BYTES) is None
    assert isinstance(worker.outcome_of_end(killed, LIMIT_BYTES), Crashed)


def test_after_a_crash_the_item_does_not_run_again(pair: tuple[WorkerHandle, Connection]) -> None:
    worker, _ = pair
    assert isinstance(worker.outcome_of_end(WorkerEnded(1, -signal.SIGSEGV), LIMIT_BYTES), Crashed)


@pytest.mark.parametrize("sent", [b"", b"no pickle", pickle.dumps("no message")])
def test_an_item_that_writes_into_the_connection_disconnects_its_worker(
    pair: tuple[WorkerHandle, Connection], sent: bytes
) -> None:
    worker, theirs = pair
    theirs.send_bytes(sent)
    assert worker.expects_message
    assert worker.receive() is None
    assert not worker.expects_message
    assert worker.deadline < time.monotonic() + 10


def test_a_worker_that_is_gone_takes_no_item(pair: tuple[WorkerHandle, Connection]) -> None:
    worker, theirs = pair
    worker.mark_idle()
    theirs.close()
    assert not worker.assign(WorkItem(8, b"payload", TimeLimit(30.0), fresh=False))
    assert worker.item is None
    assert not worker.idle


def test_messages(pair: tuple[WorkerHandle, Connection]) -> None:
    worker, theirs = pair
    for message in (Ready(1), Began(), Result(b"x", seconds=2.0)):
        theirs.send_bytes(pickle.dumps(message))
        assert worker.receive() == message
    outcome = worker.outcome_of(Result(b"x", seconds=2.0))
    assert isinstance(outcome, Raised)
    assert "cannot be read back" in outcome.message
