"""A copy of this process: faults cost one item, and the parent keeps what is its own."""

from __future__ import annotations

import fcntl
import gc
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from tilesight.workers import Crashed, Done, ProcessCopy, Raised, TimedOut


def test_runs_a_closure_and_keeps_the_copy() -> None:
    held = {"factor": 3}
    copy = ProcessCopy(lambda item: (item * held["factor"], os.getpid()), 30.0)
    first, second = copy.run(2), copy.run(5)
    assert isinstance(first, Done)
    assert isinstance(second, Done)
    assert (first.value[0], second.value[0]) == (6, 15)
    assert first.value[1] == second.value[1] != os.getpid()


def _fault(item: str) -> Any:
    if item == "abort":
        os.abort()
    if item == "exit":
        os._exit(3)
    if item == "raise":
        raise ValueError("no such tile")
    if item == "hang":
        time.sleep(600)
    if item == "odd":
        return lambda: None
    return item


@pytest.mark.parametrize(
    ("item", "reason"),
    [("abort", "killed by SIGABRT"), ("exit", "ended with exit code 3")],
)
def test_a_crash_costs_one_item(item: str, reason: str) -> None:
    copy = ProcessCopy(_fault, 30.0)
    found = copy.run(item)
    assert isinstance(found, Crashed)
    assert reason in found.reason
    following = copy.run("next")
    assert isinstance(following, Done)
    assert following.value == "next"


def test_errors_and_hangs() -> None:
    copy = ProcessCopy(_fault, 1.0)
    raised, odd = copy.run("raise"), copy.run("odd")
    assert isinstance(raised, Raised)
    assert (raised.type_name, raised.message) == ("ValueError", "no such tile")
    assert "in _fault" in raised.traceback
    assert isinstance(odd, Raised), "a value that cannot be sent"
    assert isinstance(copy.run("hang"), TimedOut)
    assert isinstance(copy.run("next"), Done)


def test_it_ends_with_its_object() -> None:
    copy = ProcessCopy(lambda _: os.getpid(), 30.0)
    found = copy.run(0)
    assert isinstance(found, Done)
    del copy
    gc.collect()
    with pytest.raises(ProcessLookupError):
        os.kill(found.value, 0)


def test_locks_of_the_parent_end_with_the_parent(tmp_path: Path) -> None:
    """A file lock is held as long as any process has the file open."""
    path = tmp_path / "lock"
    with path.open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        copy = ProcessCopy(lambda item: item, 30.0)
        assert isinstance(copy.run(1), Done)
    with path.open("w") as again:
        fcntl.flock(again, fcntl.LOCK_EX | fcntl.LOCK_NB)
    assert isinstance(copy.run(1), Done)


def test_a_lock_of_another_thread_is_waited_for() -> None:
    """A copy that were made while the other thread holds it would wait for ever."""
    lock, holds, ends = threading.RLock(), threading.Event(), threading.Event()

    def hold() -> None:
        with lock:
            holds.set()
            ends.wait(30)

    def take(_: int) -> bool:
        return lock.acquire(timeout=5)

    other = threading.Thread(target=hold)
    other.start()
    assert holds.wait(30)
    threading.Timer(0.3, ends.set).start()
    copy = ProcessCopy(take, 30.0, forking=lambda: lock)
    found = copy.run(0)
    other.join()
    assert isinstance(found, Done)
    assert found.value
