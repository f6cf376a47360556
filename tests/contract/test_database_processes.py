"""Several processes at once on one database, and several writers on one row."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from tests.support import crowd
from tests.support.preloaded import run_python
from tests.unit.database import samples
from tilesight.database import Store, open_store, overview, query
from tilesight.database.engine import forking
from tilesight.errors import DatabaseError
from tilesight.problem.space import Census
from tilesight.records.session import Baseline, Effort, SessionState

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX processes")


def at_once(url: str, scene: str, processes: int, session_id: int = 0) -> list[Any]:
    arguments = url, scene, str(processes), str(session_id)
    ended = run_python("-m", "tests.support.crowd", *arguments, cwd=ROOT, timeout=300)
    assert ended.returncode == 0, ended.stderr
    found = json.loads(ended.stdout)
    assert not [answer for answer in found if isinstance(answer, dict)], found
    assert isinstance(found, list)
    return found


def test_processes_make_and_fill_one_database(new_url: str) -> None:
    """All processes write the same facts, in different orders."""
    at_once(new_url, "fill", 4)
    with open_store(new_url) as store:
        assert store.recall(samples.context()) == {
            samples.config(n).key: samples.verified(n, 10.0 + n) for n in range(crowd.CANDIDATES)
        }
        tables = overview(store).tables
        counted = (tables["sessions"], tables["trials"], tables["candidates"], tables["measurements"])
        assert counted == (4, 4 * crowd.CANDIDATES, crowd.CANDIDATES, crowd.CANDIDATES)
        assert [miss.count for miss in store.misses()] == [4 * crowd.MISSES] * 2
        assert overview(store).sessions == {"complete": 4}


def test_an_interrupted_session_is_taken_over_by_one_process_alone(store: Store, url: str) -> None:
    for _ in range(2):
        session_id = store.begin(samples.context(), Effort.QUICK, 0, crowd.OPTIONS, Census(1, 1, {}))
        store.finish(session_id, SessionState.INTERRUPTED)
        assert sorted(at_once(url, "take_over", 6), key=str) == [session_id] + [None] * 5
        store.finish(session_id, SessionState.COMPLETE)


def test_writers_of_one_row_leave_what_one_of_them_wrote(store: Store, url: str) -> None:
    context = samples.context()
    session_id = store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {}))
    at_once(url, "one_row", 4, session_id)
    result = store.find_complete(context, Effort.QUICK, {})
    assert result is not None
    (trial,) = result.trials
    assert trial in [samples.verified(1, 10.0 + number) for number in range(4)]
    assert result.baselines in [
        (Baseline(f"first of {n}", (1.0,)), Baseline(f"second of {n}", (2.0,))) for n in range(4)
    ]
    assert (result.messages, result.seconds) in [((f"said by {n}",), float(n)) for n in range(4)]


def test_sessions_that_begin_in_one_moment_are_as_many(store: Store, url: str) -> None:
    found = at_once(url, "begin", 8)
    ids = [session_id for answer in found for session_id in answer]
    assert len(set(ids)) == len(ids) == 80
    assert all(answer == sorted(answer) for answer in found)  # later ones have higher ids
    assert query(store, "SELECT COUNT(*) FROM sessions")[1] == [(80,)]


def forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        try:
            work()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{type(error).__name__}: {error}\n".encode())
            os._exit(1)
    return child


def ended(child: int) -> int:
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def test_forks_write_through_the_store_that_their_parent_opened(url: str) -> None:
    """Also after the parent closed it, which for SQLite ends the write-ahead log where nobody seems to use
    it."""
    context = samples.context()
    is_closed, close = os.pipe()
    with open_store(url, busy_seconds=20) as store:
        session_id = store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {}))

        def write(first: int) -> None:
            for number in range(first, first + 10):
                store.record(session_id, context, samples.verified(number, 10.0 + number))

        def write_twice(first: int) -> None:
            os.close(close)
            write(first)
            assert os.read(is_closed, 1) == b""
            write(first + 10)

        children = [forked(partial(write_twice, first)) for first in (10, 30, 50)]
        write(0)
    os.close(close)
    assert [ended(child) for child in children] == [0, 0, 0]
    os.close(is_closed)
    with open_store(url) as again:
        assert again.recall(context) == {
            samples.config(n).key: samples.verified(n, 10.0 + n) for n in range(70)
        }


def test_a_fork_in_the_midst_of_a_transaction_loses_nothing(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fork waits for a transaction of another thread; if that takes too long, the database raises an error
    in the fork."""
    monkeypatch.setattr(forking, "WAIT_S", 0.3)
    is_file = url.startswith("sqlite")
    with open_store(url, busy_seconds=20) as store:
        context = samples.context()
        session_id = store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {}))
        started, may_end = threading.Event(), threading.Event()

        def hold(_connection: object) -> None:
            started.set()
            may_end.wait(20)

        def write(number: int) -> None:
            store.record(session_id, context, samples.verified(number, 10.0))

        def refused() -> None:
            with pytest.raises(DatabaseError, match="was in use when this process was forked"):
                write(1)

        thread = threading.Thread(target=store.database.read, args=(hold,))
        thread.start()
        assert started.wait(20)
        assert ended(forked(refused if is_file else partial(write, 1))) == 0
        threading.Timer(0.05, may_end.set).start()
        monkeypatch.setattr(forking, "WAIT_S", 20.0)
        assert ended(forked(partial(write, 2))) == 0
        thread.join()
        assert len(store.recall(context)) == (1 if is_file else 2)
