"""Sessions that die at any moment go on with what was recorded; two that do the same at once do not disturb
each other.

The whole line but for its edges: tuner, recorder and database, with candidates that answer from a formula.
`experiments/crash_recovery` kills the processes of real sessions.
"""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

import pytest

from tests.support.fakes import AxpyTemplate, request, true_us
from tests.support.preloaded import PreloadedPython
from tilesight.database import open_store, query
from tilesight.records.session import SessionResult
from tilesight.records.trial import Status
from tilesight.tuner.recorded import find_answer

pytestmark = pytest.mark.full

ROOT = Path(__file__).resolve().parents[2]

# Tunes, and writes each candidate that it measures to a journal. At the given call of the given stage it
# kills itself: `finish` is the moment before the session is closed, `record` that after a trial was recorded.
SESSION = """
import json, os, signal, sys, time
from tests.support.fakes import FakeExecutor, FakeModel, request
from tilesight.database import open_store
from tilesight.tuner.observers import Observer
from tilesight.tuner.recorded import run_recorded

database, journal, stage = sys.argv[1:4]
count, pause_s = int(sys.argv[4]), float(sys.argv[5])
calls = 0

def on_stage(at, config=None):
    global calls
    if at == "measure":
        with open(journal, "a") as file:
            file.write(config.key + "\\n")
    calls += at == stage
    if at == stage and calls == count:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(pause_s)

class Watcher(Observer):
    def trial(self, record):
        on_stage("record")

    def finished(self, result):
        on_stage("finished")

sys.stdin.readline()
with open_store(database) as store:
    if stage == "finish":
        store.finish = lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL)
    result = run_recorded(request(), store, FakeModel(), lambda: FakeExecutor(on_stage), Watcher())
print(json.dumps({"state": result.state, "best": result.best.config.key, "known": result.from_database}))
"""

# (stage, call): one after another in one session
MOMENTS = (("lower", 20), ("build", 3), ("measure", 4), ("record", 9), ("compare", 1), ("finish", 1))


def start(folder: Path, stage: str = "never", count: int = 0, pause_s: float = 0.0) -> subprocess.Popen[str]:
    arguments = [str(folder / "x.db"), str(folder / "journal"), stage, str(count), str(pause_s)]
    return PreloadedPython(
        [sys.executable, "-c", SESSION, *arguments],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def recorded(folder: Path) -> dict[str, tuple[str, bool]]:
    """Status of each config, and whether it was measured; in plain SQL, without TileSight's code."""
    with open_store(str(folder / "x.db"), read_only=True) as store:
        return {
            config: (status, bool(samples))
            for config, status, samples in query(store, "SELECT config, status, samples_us FROM records")[1]
        }


def the_answer(folder: Path) -> SessionResult:
    with open_store(str(folder / "x.db")) as store:
        found = find_answer(store, request())
    assert found is not None
    return found


def fastest_us() -> float:
    asked = request()
    return min(true_us(config) for config in AxpyTemplate().space(asked.workload, asked.target).configs())


def test_a_session_killed_again_and_again_loses_nothing_and_measures_nothing_twice(tmp_path: Path) -> None:
    in_flight: list[str] = []
    known: dict[str, tuple[str, bool]] = {}
    for stage, count in MOMENTS:
        _, errors = (session := start(tmp_path, stage, count)).communicate("go\n", timeout=60)
        assert session.returncode == -signal.SIGKILL, (stage, count, errors)
        found = recorded(tmp_path)
        lost = {
            config
            for config, (_, was_measured) in known.items()
            if config not in found or (was_measured and not found[config][1])
        }
        assert not lost, (stage, count)
        if (tmp_path / "journal").exists():
            last = (tmp_path / "journal").read_text().split()[-1]
            in_flight += [] if found[last][1] else [last]
        known = found
    out, errors = (session := start(tmp_path)).communicate("go\n", timeout=60)
    assert session.returncode == 0, errors
    said = json.loads(out)
    assert (said["state"], said["known"]) == ("complete", False)

    measured = Counter((tmp_path / "journal").read_text().split())
    # what was measured when the kill came had no time to be recorded: that alone is measured again
    assert measured - Counter(set(measured)) == Counter(in_flight)
    assert len(in_flight) <= len([stage for stage, _ in MOMENTS if stage == "measure"])
    result = the_answer(tmp_path)
    assert {trial.config.key for trial in result.trials} >= set(known)
    assert result.best is not None
    assert (result.best.config.key, result.best.measured_us) == (said["best"], fastest_us())
    with open_store(str(tmp_path / "x.db")) as store:
        assert query(store, "SELECT state FROM sessions")[1] == [("complete",)]
    with closing(sqlite3.connect(tmp_path / "x.db")) as connection:
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        assert connection.execute("PRAGMA foreign_key_check").fetchall() == []


def test_two_equal_sessions_at_once_both_complete(tmp_path: Path) -> None:
    sessions = [start(tmp_path, pause_s=0.005) for _ in range(2)]
    for session in sessions:
        assert session.stdin is not None
        session.stdin.write("go\n")
        session.stdin.flush()
    for session in sessions:
        out, errors = session.communicate(timeout=60)
        assert session.returncode == 0, errors
        said = json.loads(out)
        assert (said["state"], said["known"]) == ("complete", False)
        assert true_us(the_answer(tmp_path).trials[0].config) == fastest_us()
    with open_store(str(tmp_path / "x.db")) as store:
        ids = [
            session_id
            for (session_id,) in query(store, "SELECT id FROM sessions WHERE state = 'complete'")[1]
        ]
        assert len(ids) == 2
        # each knows all that it tried, though the facts are shared
        tried = Counter(session_id for (session_id,) in query(store, "SELECT session_id FROM records")[1])
        assert set(tried) == set(ids)
        assert all(count > 100 for count in tried.values())
        best = store.best()
        assert [(row.status, row.latency_us) for row in best] == [(Status.VERIFIED, fastest_us())]
    # and whoever asks now gets an answer at once
    out, _ = start(tmp_path).communicate("go\n", timeout=60)
    assert json.loads(out)["known"] is True
