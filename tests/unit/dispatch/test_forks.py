"""Forked children of a process that dispatches, also while its other threads build."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import torch

from tests.unit.dispatch.harness import Harness, config, make_harness
from tilesight.dispatch.select.choice import ChoiceSource

DEADLOCK_S = 20  # after which the child is killed


class HeldBuild:
    """Lets builds wait until `release` is set. `began` is set when one waits."""

    def __init__(self) -> None:
        self.began, self.release = threading.Event(), threading.Event()

    def wait(self, _timeout_s: float) -> None:
        self.began.set()
        self.release.wait(DEADLOCK_S)


def in_fork(holds: Callable[[], bool]) -> bool:
    """Whether `holds()` is true in a forked child, which must end soon."""
    child = os.fork()
    if child == 0:
        signal.alarm(DEADLOCK_S)
        try:
            os._exit(0 if holds() else 1)
        except BaseException:
            os._exit(2)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_child_builds_the_shape_that_a_thread_of_its_parent_is_building(tmp_path: Path) -> None:
    made, held, x = make_harness(tmp_path), HeldBuild(), torch.ones(20, 4)
    made.executor.hold = held
    caller = threading.Thread(target=made.d, args=(x,))
    caller.start()
    assert held.began.wait(DEADLOCK_S)

    def builds_itself() -> bool:
        made.executor.hold = None
        made.executor.folder = tmp_path / "child"
        made.executor.folder.mkdir()
        is_right = torch.equal(made.d(x), 3 * x) and torch.equal(made.d(x[:9]), 3 * x[:9])
        made.d.close()
        return is_right

    assert in_fork(builds_itself)
    held.release.set()
    caller.join()
    assert torch.equal(made.d(x), 3 * x)
    assert len(made.executor.built) == 1
    made.d.close()


def test_a_child_replaces_a_fallback_itself(tmp_path: Path) -> None:
    """What a fallback waits for is built by a thread of the parent, which the child does not have."""
    x = torch.ones(40, 4)

    def own_record(made: Harness) -> list:  # type: ignore[type-arg]
        return [made.winner(40, 32)]

    made = make_harness(tmp_path, dynamic=("m",), on_miss="serve", winners=own_record)
    held = HeldBuild()
    made.d(torch.ones(9, 4))  # a kernel that takes any m
    made.executor.hold = held
    assert torch.equal(made.d(x), 3 * x)
    assert held.began.wait(DEADLOCK_S)

    def replaces() -> bool:
        made.executor.hold = None
        made.executor.folder = tmp_path / "child"
        made.executor.folder.mkdir()
        assert torch.equal(made.d(x), 3 * x)
        made.shapes.improver.thread.submit(lambda _: None).result()  # after the build
        found = made.d.choose(m=40)
        made.d.close()
        return (found.source, found.config) == (ChoiceSource.RECORD, config(32))

    assert in_fork(replaces)
    held.release.set()
    made.d.close()
