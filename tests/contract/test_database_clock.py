"""The order of sessions and trials does not depend on the clock, which may be set back or stand still."""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest

from tests.support.sessions import add_session, rows
from tests.unit.database import samples
from tilesight.database import Store, query
from tilesight.problem.space import Census
from tilesight.records.session import Decision, Effort, SessionState
from tilesight.records.winners import Miss

START = datetime(2026, 6, 1, 12, 0, 0)
SetClock = Callable[[datetime], None]


@pytest.fixture
def set_clock(monkeypatch: pytest.MonkeyPatch) -> SetClock:
    """Sets the clock of the database, which then stands still."""

    def set_to(moment: datetime) -> None:
        for module in ("rows", "session_rows", "profile_rows"):
            monkeypatch.setattr(f"tilesight.database.tables.{module}.now", lambda: moment)
        monkeypatch.setattr(time, "time_ns", lambda: int(moment.replace(tzinfo=UTC).timestamp() * 1e9))

    set_to(START)
    return set_to


@pytest.mark.parametrize(
    "step", [timedelta(0), timedelta(milliseconds=-1), timedelta(hours=-2), timedelta(days=-4000)]
)
def test_the_later_session_counts_as_the_later(store: Store, set_clock: SetClock, step: timedelta) -> None:
    context = samples.context()
    ids = []
    for number in range(5):
        set_clock(START + number * step)
        decision = Decision(samples.config(1))
        ids.append(add_session(store, context, samples.verified(1, 20.0 - number), decision=decision))
    assert ids == sorted(set(ids))
    assert max(ids) < 2**53
    options: dict[str, str | int | float | bool | None] = {}
    result = store.find_complete(context, Effort.QUICK, options)
    assert result is not None
    assert result.trials[0].measured_us == 16.0
    assert [record.measured_us for record in store.recall(context).values()] == [16.0]
    assert rows(store, "SELECT measured_us FROM leaderboard") == [(16.0,)]
    winner = samples.winner(store, context)
    assert winner is not None
    assert winner.latency_us == 16.0


def test_a_trial_takes_its_own_place_whatever_the_clock_says(store: Store, set_clock: SetClock) -> None:
    context = samples.context()
    session_id = store.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {}))
    store.record(session_id, context, samples.predicted(1))
    set_clock(START - timedelta(days=1))
    store.record(session_id, context, samples.verified(1, 10.0))
    store.finish(session_id, SessionState.COMPLETE)
    assert [record.measured_us for record in store.recall(context).values()] == [10.0]
    ((begun, ended),) = query(store, "SELECT started_at, finished_at FROM sessions")[1]
    assert str(begun) > str(ended)  # as the clock said


def test_the_latest_interrupted_session_is_taken_over(store: Store, set_clock: SetClock) -> None:
    ids = []
    for days in (0, 1, 2):
        set_clock(START - timedelta(days=days))
        ids.append(store.begin(samples.context(), Effort.QUICK, 0, {}, Census(1, 1, {})))
        store.finish(ids[-1], SessionState.INTERRUPTED)
    assert store.find_interrupted(samples.context(), Effort.QUICK, {}) == ids[-1]


def test_misses_span_the_times_that_were_seen(store: Store) -> None:
    workload = samples.context().workload
    for first, last in ((10, 12), (11, 3), (20, 18)):
        seen = [datetime(2026, 1, day, tzinfo=UTC) for day in (first, last)]
        store.record_misses([Miss(workload, "h200", "", "matmul", 2, samples.config(1), "model", 3.0, *seen)])
    (found,) = store.misses()
    assert (found.count, found.first_at, found.last_at) == (6, datetime(2026, 1, 3), datetime(2026, 1, 20))
