"""Times of several GPUs, on devices that only note what they are asked."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from tilesight.runner.group import group_timer
from tilesight.runner.group.group_timer import GroupTimer
from tilesight.runner.timers import Stretch


class Notes:
    """Two GPUs. The time between two events of rank r is `times_ms[r]`."""

    devices = ("cuda:0", "cuda:1")
    times_ms = (0.5, 0.7)

    def __init__(self) -> None:
        self.done: list[str] = []

    def begin_start(self) -> None:
        self.done.append("wait for the host and all ranks")

    def end_start(self) -> None:
        self.done.append("all is launched")

    def synchronize(self) -> None:
        self.done.append("synchronize")


class Event:
    def __init__(self, notes: Notes) -> None:
        self._notes, self._rank = notes, -1

    def record(self, stream: str) -> None:
        self._rank = self._notes.devices.index(stream)
        self._notes.done.append(f"event on {stream}")

    def elapsed_time(self, end: Event) -> float:
        assert self._rank == end._rank
        return self._notes.times_ms[self._rank]


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    made = Notes()

    def empty(size: int, *, device: str, **_: object) -> Any:
        return SimpleNamespace(zero_=lambda: made.done.append(f"write {size} bytes on {device}"))

    cuda = SimpleNamespace(current_stream=lambda device: device, Event=lambda **_: Event(made))
    monkeypatch.setitem(sys.modules, "torch", SimpleNamespace(empty=empty, int8=None, cuda=cuda))
    return made


def test_a_sample_is_the_slowest_rank_behind_a_common_start(notes: Notes) -> None:
    timer = GroupTimer(notes, 64)  # type: ignore[arg-type]
    rows = timer.turns([Stretch(lambda: notes.done.append("call"))], 1)
    assert rows == [(700.0,)]
    assert notes.done == [
        "write 64 bytes on cuda:0",
        "write 64 bytes on cuda:1",
        "wait for the host and all ranks",
        "event on cuda:0",
        "event on cuda:1",
        "call",
        "event on cuda:0",
        "event on cuda:1",
        "all is launched",
        "synchronize",
    ]


def test_ranks_do_not_wait_for_a_call_that_was_refused(notes: Notes) -> None:
    def refused() -> None:
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        GroupTimer(notes, 64).turns([Stretch(refused)], 1)  # type: ignore[arg-type]
    assert notes.done[-1] == "all is launched"


def test_devices_rest_after_a_burst(notes: Notes, monkeypatch: pytest.MonkeyPatch) -> None:
    rests: list[float] = []
    monkeypatch.setattr(group_timer, "time", SimpleNamespace(sleep=rests.append))
    timer = GroupTimer(notes, 64, burst_ms=15, rest=3)  # type: ignore[arg-type]
    calls = [Stretch(lambda: None, busy_ms=10.0), Stretch(lambda: None, busy_ms=5.0)]
    assert timer.turns(calls, 2) == [(700.0, 700.0)] * 2
    assert rests == [0.045], "three times the burst, before the third of the four samples"
