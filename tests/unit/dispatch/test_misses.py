"""Misses are counted by calls and written by another thread."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.unit.dispatch.harness import config, make_harness
from tilesight.dispatch import misses as module
from tilesight.errors import DatabaseBusyError


def test_calls_of_shapes_without_a_record_are_counted(tmp_path: Path) -> None:
    made = make_harness(tmp_path, winners=lambda s: [s.winner(64, 16)])
    for _ in range(5):
        made.d(torch.randn(100, 4))
    made.d(torch.randn(20, 4))
    made.d(torch.randn(64, 4))  # recorded: no miss
    made.d.choose(m=300)  # chosen, not called
    found = {miss.workload.dims["m"]: miss for miss in made.d.misses}
    assert {m: miss.count for m, miss in found.items()} == {100: 5, 20: 1}
    assert found[100].config == config(16)
    assert (found[100].source, found[100].target, found[100].template) == ("neighbour", "cpu", "scaling")
    assert found[100].first_at <= found[100].last_at
    made.d.close()
    assert sorted((miss.workload.dims["m"], miss.count) for miss in made.store.misses) == [(20, 1), (100, 5)]


def test_each_write_adds_the_calls_since_the_last_one(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    counted = made.shapes.misses
    assert counted is not None
    made.d(torch.randn(100, 4))
    assert counted.write()
    assert counted.write()
    assert made.d.misses == []
    made.d(torch.randn(100, 4))
    made.d(torch.randn(100, 4))
    assert counted.write()
    assert [miss.count for miss in made.store.misses] == [1, 2]
    made.d.close()


def test_a_failing_database_fails_no_call_and_loses_no_count(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    made.store.failure = DatabaseBusyError("another process holds it")
    x = torch.randn(100, 4)
    made.d(x)
    counted = made.shapes.misses
    assert counted is not None
    assert not counted.write()
    assert "another process holds it" in made.d.explain()
    assert torch.equal(made.d(x), 3 * x)
    made.store.failure = None
    assert counted.write()
    assert [miss.count for miss in made.store.misses] == [2]
    made.d.close()


def test_a_database_that_hangs_does_not_delay_close(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CLOSE_WAIT_S", 0.05)
    made = make_harness(tmp_path)
    made.d(torch.randn(100, 4))

    def hangs(_: Any) -> None:
        time.sleep(3)

    monkeypatch.setattr(made.store, "record_misses", hangs)
    begin = time.monotonic()
    made.d.close()
    assert time.monotonic() - begin < 2


def test_misses_are_written_at_intervals(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WRITE_EVERY_S", 0.02)
    made = make_harness(tmp_path)
    made.d(torch.randn(100, 4))
    end = time.monotonic() + 10
    while not made.store.misses and time.monotonic() < end:
        time.sleep(0.01)
    assert [miss.count for miss in made.store.misses] == [1]
    made.d.close()


def test_the_number_of_counted_shapes_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHAPE_LIMIT", 5)
    made = make_harness(tmp_path, dynamic=("m",))
    counted = made.shapes.misses
    assert counted is not None
    for m in range(1, 20):
        made.d(torch.randn(m, 4))
    assert len(counted._missed) == 5
    assert counted.write()
    assert len(counted._missed) == 0  # room for others
    made.d(torch.randn(50, 4))
    assert [miss.workload.dims["m"] for miss in made.d.misses] == [50]
    made.d.close()


def test_a_forked_child_writes_only_its_own_misses(tmp_path: Path) -> None:
    made = make_harness(tmp_path)
    made.d(torch.randn(100, 4))
    child = os.fork()
    if child == 0:
        try:
            counted = made.shapes.misses
            assert counted is not None
            assert counted.write()
            assert made.store.misses == []
            calls = next(iter(counted._missed.values())).calls
            calls.count += 2
            assert counted.write()
            os._exit(0 if [miss.count for miss in made.store.misses] == [2] else 3)
        except BaseException:
            os._exit(4)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    made.d.close()
    assert [miss.count for miss in made.store.misses] == [1]
