"""Several processes at once on one database, and several writers on one row."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.contract import crowd
from tests.unit.database import samples
from tilesight.database import Store, open_store, overview, query
from tilesight.session import Baseline, Effort, State
from tilesight.space import Census

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX processes")


def at_once(url: str, scene: str, processes: int, session_id: int = 0) -> list[Any]:
    command = [sys.executable, "-m", "tests.contract.crowd", url, scene, str(processes), str(session_id)]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert not [told for told in found if isinstance(told, dict)], found
    assert isinstance(found, list)
    return found


def test_processes_make_and_fill_one_database(new_url: str) -> None:
    """All write the same facts, in different orders."""
    at_once(new_url, "fill", 4)
    with open_store(new_url) as store:
        assert store.recall(samples.context()) == {samples.config(n).key: samples.verified(n, 10.0 + n) for n in range(crowd.CANDIDATES)}
        tables = overview(store).tables
        counted = (tables["sessions"], tables["trials"], tables["candidates"], tables["measurements"])
        assert counted == (4, 4 * crowd.CANDIDATES, crowd.CANDIDATES, crowd.CANDIDATES)
        assert [miss.count for miss in store.misses()] == [4 * crowd.MISSES] * 2
        assert overview(store).sessions == {"complete": 4}


def test_an_interrupted_session_is_taken_over_by_one_process_alone(store: Store, url: str) -> None:
    for _ in range(2):
        session_id = store.begin(samples.context(), Effort.QUICK, 0, crowd.OPTIONS, Census(1, 1, {}))
        store.finish(session_id, State.INTERRUPTED)
        assert sorted(at_once(url, "take_over", 6), key=str) == [session_id] + [None] * 5
        store.finish(session_id, State.COMPLETE)


def test_writers_of_one_row_leave_what_one_of_them_wrote(store: Store, url: str) -> None:
    context = samples.context()
    session_id = store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {}))
    at_once(url, "one_row", 4, session_id)
    result = store.find_complete(context, Effort.QUICK, {})
    assert result is not None
    (trial,) = result.trials
    assert trial in [samples.verified(1, 10.0 + number) for number in range(4)]
    assert result.baselines in [(Baseline(f"first of {n}", (1.0,)), Baseline(f"second of {n}", (2.0,))) for n in range(4)]
    assert (result.messages, result.seconds) in [((f"said by {n}",), float(n)) for n in range(4)]


def test_sessions_that_begin_in_one_moment_are_as_many(store: Store, url: str) -> None:
    found = at_once(url, "begin", 8)
    ids = [session_id for told in found for session_id in told]
    assert len(set(ids)) == len(ids) == 80
    assert all(told == sorted(told) for told in found)  # later ones have higher ids
    assert query(store, "SELECT COUNT(*) FROM sessions")[1] == [(80,)]


def test_forks_write_through_the_store_that_their_parent_opened(store: Store) -> None:
    context = samples.context()
    session_id = store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {}))

    def write(first: int) -> None:
        for number in range(first, first + 10):
            store.record(session_id, context, samples.verified(number, 10.0 + number))

    children = []
    for first in (10, 20, 30):
        child = os.fork()
        if child == 0:
            try:
                write(first)
                os._exit(0)
            except BaseException as error:
                os.write(2, f"{error}\n".encode())
                os._exit(1)
        children.append(child)
    write(0)
    assert [os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children] == [0, 0, 0]
    assert store.recall(context) == {samples.config(n).key: samples.verified(n, 10.0 + n) for n in range(40)}
