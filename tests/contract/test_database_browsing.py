"""Looking around in a database, on each kind of database: pages of rows, running sessions, vendors' times."""

from __future__ import annotations

import pytest

from tests.support.page_sessions import recorded_session
from tests.support.sessions import add_session
from tests.unit.database import samples
from tilesight.database import Store
from tilesight.database.lookups import browse
from tilesight.database.schema import tables as schema
from tilesight.database.schema.views import VIEWS
from tilesight.errors import InputError
from tilesight.problem.workload import Workload
from tilesight.records.session import Baseline, Effort, SessionState

FOUND = recorded_session(30, 8)
CONTEXT, TRIALS = FOUND.summary.context, FOUND.result.trials


def recorded(store: Store, state: SessionState | None = SessionState.COMPLETE) -> int:
    made = store.begin(CONTEXT, Effort.QUICK, 0, {}, FOUND.result.census)
    store.record_many(made, CONTEXT, TRIALS)
    store.record_baselines(made, FOUND.result.baselines)
    if state is not None:
        store.finish(made, state)
    return made


def pages(store: Store, name: str, limit: int, session_id: int | None = None) -> list[browse.RowPage]:
    found, after = [], ""
    while not found or after:
        page = store.database.read(
            lambda connection, after=after: browse.row_page(connection, name, after, limit, session_id)  # type: ignore[misc]
        )
        found.append(page)
        after = page.after
    return found


def test_every_row_of_every_table_and_view_is_on_one_page(store: Store) -> None:
    recorded(store)
    sizes = store.database.read(browse.table_sizes)
    for name in [*VIEWS, *schema.metadata.tables]:
        whole = pages(store, name, 1000)
        assert len(whole) == 1
        rows = [row for page in pages(store, name, 7) for row in page.rows]
        assert len(rows) == len(whole[0].rows) == sizes.get(name, len(rows)), name
        if name not in VIEWS or name == "records":
            assert list(map(str, rows)) == list(map(str, whole[0].rows)), name


def test_records_of_one_session_are_read_by_the_key(store: Store) -> None:
    first, second = recorded(store), recorded(store)
    for session_id in (first, second):
        rows = [row for page in pages(store, "records", 7, session_id) for row in page.rows]
        assert {row[0] for row in rows} == {session_id}
        assert len(rows) == len(TRIALS)
    [page] = pages(store, "records", 100)
    key = [page.columns.index(name) for name in ("session_id", "candidate_id")]
    places = [tuple(row[place] for place in key) for row in page.rows]
    assert places == sorted(places, reverse=True)


def test_best_is_read_by_workloads_the_latest_tuned_first(store: Store) -> None:
    workloads = [Workload("matmul", {"m": size, "n": 64, "k": 64}, "float16") for size in (64, 128, 256)]
    made = [
        add_session(store, samples.context(workload=workload), samples.verified(1, 5.0), samples.predicted(2))
        for workload in (*workloads, workloads[0])
    ]
    found = pages(store, "best", 2)
    places = [found[0].columns.index(name) for name in ("session_id", "workload", "status")]
    rows = [[tuple(row[place] for place in places) for row in page.rows] for page in found]
    assert rows == [
        [(made[3], workloads[0].key, "verified"), (made[2], workloads[2].key, "verified")],
        [(made[1], workloads[1].key, "verified")],
    ]
    assert found[1].after == ""
    with pytest.raises(InputError, match="is no place in 'best'"):
        store.database.read(lambda connection: browse.row_page(connection, "best", '["x"]'))


def test_contents_and_sessions_before_one(store: Store) -> None:
    empty = store.database.read(browse.contents)
    assert (empty.kernels, empty.targets, empty.sessions, empty.records) == ((), (), 0, 0)
    first, second = recorded(store), recorded(store)
    found = store.database.read(browse.contents)
    assert (found.kernels, found.targets, found.sessions, found.records) == (
        ("matmul",), ("h200",), 2, 2 * len(TRIALS),
    )  # fmt: skip
    assert [each.id for each in store.session_summaries(before=second)] == [first]
    assert [each.id for each in store.session_summaries(workload=CONTEXT.workload.key)] == [second, first]
    assert store.session_summaries(workload="another") == []


def test_a_statement_that_takes_too_long_is_ended_and_later_ones_run(store: Store) -> None:
    recorded(store)
    slow = "SELECT COUNT(*) FROM trials a, trials b, trials c, trials d, trials e, trials f"
    with pytest.raises(InputError, match=r"this takes longer than 0\.2 s in this database"):
        store.database.read(
            lambda connection: browse.within(
                connection, "this", lambda: connection.exec_driver_sql(slow).all(), 0.2
            )
        )
    assert (
        store.database.read(
            lambda connection: connection.exec_driver_sql(
                "SELECT COUNT(*) FROM trials, trials t"
            ).scalar_one()
        )
        == len(TRIALS) ** 2
    )


def test_running_sessions_and_how_far_one_has_come(store: Store) -> None:
    recorded(store)
    assert store.running_sessions() == []
    made = recorded(store, state=None)
    assert store.running_sessions() == [made]
    progress, pace = store.session_progress(made)
    assert progress.state is SessionState.RUNNING
    assert sum(progress.counts.values()) == len(TRIALS)
    assert progress.best is not None
    assert progress.best.measured_us == min(trial.measured_us for trial in TRIALS if trial.measured_us)
    assert progress.vendor_us == FOUND.result.baselines[0].latency_us
    assert pace.measured == sum(trial.measurement is not None for trial in TRIALS)
    assert len(pace.measured_at) <= pace.measured
    with pytest.raises(InputError, match="session 7 is not in this database"):
        store.session_progress(7)


def test_vendor_times_are_those_of_the_latest_session_under_the_same_conditions(store: Store) -> None:
    context = samples.context()
    add_session(store, context, samples.verified(1, 10.0), vendor_us=12.0)
    later = add_session(store, context, samples.verified(1, 10.0), vendor_us=14.0)
    add_session(store, context, samples.verified(1, 10.0))  # measured no other implementation
    key, place = context.workload.key, (context.target, context.device, context.protocol)
    assert store.vendor_times([key, "another"], *place) == {key: 14.0}
    store.record_baselines(later, [Baseline("a", (16.0,)), Baseline("b", (15.0,))])
    assert store.vendor_times([key], *place) == {key: 15.0}
    assert store.vendor_times([key], context.target, "another device", context.protocol) == {}
    assert store.vendor_times([key], context.target, context.device, "another protocol") == {}
    assert store.vendor_times([], *place) == {}
