"""Several processes on one database, and processes that die."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.preloaded import PreloadedPython, run_python
from tests.unit.database import samples
from tilesight.database import open_store, overview, query
from tilesight.machine.owner import is_alive, this_process
from tilesight.problem.space import Census
from tilesight.records.session import Effort, SessionState

ROOT = Path(__file__).resolve().parents[4]

# Opens the database (all processes at the same moment), records trials first .. first + count - 1, and prints
# each number once it is recorded. With a count of 0 it never ends.
WRITER = """
import itertools, sys
from tests.unit.database import samples
from tilesight.database import open_store
from tilesight.records.session import Effort
from tilesight.problem.space import Census

url, first, count = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
sys.stdin.readline()
store, context = open_store(url), samples.context()
session_id = store.begin(context, Effort.QUICK, 0, {"first": first}, Census(1, 1, {}))
for number in itertools.islice(itertools.count(first), count or None):
    store.record(session_id, context, samples.verified(number, 10.0 + number))
    print(number, flush=True)
"""


def start_writer(url: str, first: int, count: int) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", WRITER, url, str(first), str(count)]
    return PreloadedPython(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def test_four_processes_make_and_fill_one_database(tmp_path: Path) -> None:
    url, context = f"sqlite:///{tmp_path}/x.db", samples.context()
    # the second pair writes the same candidates as the first: the same facts, in four sessions
    writers = [start_writer(url, first, 40) for first in (0, 20, 0, 20)]
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    for writer in writers:
        _, errors = writer.communicate(timeout=120)
        assert writer.returncode == 0, errors
    with open_store(url) as store:
        assert store.recall(context) == {
            samples.config(n).key: samples.verified(n, 10.0 + n) for n in range(60)
        }
        tables = overview(store).tables
        assert (tables["trials"], tables["candidates"], tables["measurements"], tables["sessions"]) == (
            160,
            60,
            60,
            4,
        )


def test_kill_loses_nothing_that_was_recorded(tmp_path: Path) -> None:
    url, context = f"sqlite:///{tmp_path}/x.db", samples.context()
    with start_writer(url, 0, 0) as writer:
        assert writer.stdin is not None
        assert writer.stdout is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
        while int(writer.stdout.readline() or "-1") < 25:
            assert writer.poll() is None, "the writer died by itself"
        writer.send_signal(signal.SIGKILL)
        rest = writer.stdout.read().split()
    last = int(rest[-1]) if rest else 25
    with open_store(url) as store:
        recalled = store.recall(context)
        # everything that it printed is recorded, and at most one trial more
        assert set(recalled) - {samples.config(last + 1).key} == {
            samples.config(n).key for n in range(last + 1)
        }
        for number in range(last + 1):
            assert recalled[samples.config(number).key] == samples.verified(number, 10.0 + number)
        # its session is found, marked as interrupted and taken over
        ((session_id, state),) = query(store, "SELECT id, state FROM sessions")[1]
        assert state == "running"
        assert store.find_interrupted(context, Effort.QUICK, {"first": 0}) == session_id
        store.finish(session_id, SessionState.COMPLETE)
        assert store.find_complete(context, Effort.QUICK, {"first": 0}) is not None


def test_of_several_dead_sessions_the_latest_is_taken_over_and_the_rest_marked(tmp_path: Path) -> None:
    context = samples.context()
    with open_store(f"sqlite:///{tmp_path}/x.db") as store:
        ids = [store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {})) for _ in range(3)]
        dead = dead_owner()
        store.database.write(
            lambda c: c.exec_driver_sql(f"UPDATE sessions SET owner = '{dead}' WHERE id != {max(ids)}")
        )
        assert store.find_interrupted(context, Effort.QUICK, {}) == sorted(ids)[1]
        states = dict(query(store, "SELECT id, state FROM sessions")[1])
        assert [states[i] for i in sorted(ids)] == ["interrupted", "running", "running"]


def test_a_session_of_another_host_is_left_alone(tmp_path: Path) -> None:
    context = samples.context()
    with open_store(f"sqlite:///{tmp_path}/x.db") as store:
        store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {}))
        store.database.write(lambda c: c.exec_driver_sql("UPDATE sessions SET owner = 'elsewhere|1|1'"))
        assert store.find_interrupted(context, Effort.QUICK, {}) is None


def test_owner_tells_the_living_from_the_dead() -> None:
    me = this_process()
    assert is_alive(me)
    assert not is_alive(dead_owner())
    host, pid, start = me.rsplit("|", 2)
    assert is_alive(f"{host}|1|{_start_of_init()}")  # a process of another user, except for root
    if start:
        assert not is_alive(f"{host}|{pid}|{int(start) + 1}")  # the process id was used again


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs a /proc file system")
def test_a_dead_process_that_its_parent_has_not_buried_is_dead() -> None:
    code = "from tilesight.machine.owner import this_process as p; print(p(), flush=True)"
    with PreloadedPython([sys.executable, "-c", code], stdout=subprocess.PIPE, cwd=ROOT, text=True) as child:
        assert child.stdout is not None
        owner = child.stdout.read().strip()  # to its end: the child has exited or is about to
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        assert not is_alive(owner)


def dead_owner() -> str:
    program = "from tilesight.machine.owner import this_process as p; print(p())"
    return str(run_python("-c", program, cwd=ROOT).stdout).strip()


def _start_of_init() -> str:
    try:
        return Path("/proc/1/stat").read_text(encoding="utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs POSIX processes")
def test_ctrl_c_while_waiting_for_a_lock_ends_the_wait_soon(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/x.db"
    with open_store(url, busy_seconds=60) as store:

        def interrupt(_connection: object) -> None:
            blocked = start_writer(url, 0, 1)
            assert blocked.stdin is not None
            blocked.stdin.write("go\n")
            blocked.stdin.flush()
            with pytest.raises(subprocess.TimeoutExpired):
                blocked.wait(1.5)  # it waits for this transaction
            blocked.send_signal(signal.SIGINT)
            _, errors = blocked.communicate(timeout=20)
            assert "KeyboardInterrupt" in errors

        store.database.write(interrupt)
