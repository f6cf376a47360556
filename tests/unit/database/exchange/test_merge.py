"""Merging gives the union of databases, in any order and any number of times."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from datetime import timedelta
from pathlib import Path

import pytest

from tests.unit.database import samples
from tests.unit.database.stocked import add_session, miss, stock, stocked
from tilesight.database import Store, open_store, overview, query
from tilesight.database.exchange.json_lines import export_everything
from tilesight.database.exchange.merge import Merger, merge
from tilesight.database.maintenance.check import check
from tilesight.database.schema import tables as schema
from tilesight.errors import DatabaseCorruptError, InputError
from tilesight.problem.space import Census
from tilesight.records.session import Effort, SessionState


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(samples.empty_database(tmp_path / "here.db")) as opened:
        yield opened


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Store]:
    with open_store(stocked(tmp_path / "there.db"), read_only=True) as opened:
        yield opened


def dump(store: Store, file: Path) -> bytes:
    export_everything(store, file)
    return file.read_bytes()


def test_a_merge_into_nothing_is_a_copy_and_again_changes_nothing(
    store: Store, other: Store, tmp_path: Path
) -> None:
    first = merge(store, other)
    assert {name: count for name, count in first.items() if count} == {
        n: c for n, c in overview(other).tables.items() if c
    }
    assert dump(store, tmp_path / "a.jsonl") == dump(other, tmp_path / "b.jsonl")
    assert not sum(merge(store, other).values())
    assert check(store).faults == ()


def test_the_order_of_merges_does_not_matter(tmp_path: Path) -> None:
    urls = [stocked(tmp_path / f"{seed}.db", seed) for seed in (1, 2, 3)]
    dumps = []
    for name, order in (("x", (0, 1, 2)), ("y", (2, 0, 1))):
        with open_store(samples.empty_database(tmp_path / f"{name}.db")) as store:
            for number in order:
                with open_store(urls[number], read_only=True) as other:
                    merge(store, other)
            tables = overview(store).tables
            assert tables["sessions"] == 9
            # when a fact, a profile or a miss was first seen may differ: the first to come is kept
            dumps.append(
                {line for line in dump(store, tmp_path / f"{name}.jsonl").splitlines() if b"_at" not in line}
            )
            dumps[-1].add(repr(tables).encode())
    assert dumps[0] == dumps[1]


def test_facts_that_both_have_are_one_row(store: Store, other: Store) -> None:
    stock(store)
    before = overview(store).tables
    merge(store, other)
    after = overview(store).tables
    assert {name for name in after if after[name] != before[name]} == {"sessions", "trials", "baselines"}
    assert [row.latency_us for row in store.best(target="h200")] == [
        row.latency_us for row in other.best(target="h200")
    ]


def test_what_was_merged_is_recalled_and_answers(store: Store, other: Store) -> None:
    merge(store, other)
    context = samples.context()
    assert store.recall(context) == other.recall(context)
    assert store.find_complete(context, Effort.QUICK, {}) == other.find_complete(context, Effort.QUICK, {})


def test_a_session_that_came_further_over_there_is_brought_up_to_date(store: Store, tmp_path: Path) -> None:
    context = samples.context()
    with open_store(samples.empty_database(tmp_path / "x.db")) as running:
        session_id = running.begin(context, Effort.QUICK, 0, {}, Census(1, 1, {}))
        running.record(session_id, context, samples.predicted(1))
        merge(store, running)
        assert overview(store).sessions == {"interrupted": 1}  # no process runs it here
        running.record(session_id, context, samples.verified(1, 10.0))
        running.finish(session_id, SessionState.COMPLETE)
        merge(store, running)
        assert overview(store).sessions == {"complete": 1}
        assert overview(store).trials == {"verified": 1}
        found = store.find_complete(context, Effort.QUICK, {})
        assert found is not None
        assert found.best is not None
        assert found.best.measured_us == 10.0
        # and the other way round: the complete session stays
        behind = samples.empty_database(tmp_path / "behind.db")
        with open_store(behind) as late:
            merge(late, store)
            late.database.write(lambda c: c.exec_driver_sql("UPDATE sessions SET state = 'interrupted'"))
            late.database.write(
                lambda c: c.exec_driver_sql(
                    "UPDATE trials SET status = 'built', recorded_at = '2001-01-01 00:00:00.000000'"
                )
            )
            merge(store, late)
        assert (overview(store).sessions, overview(store).trials) == ({"complete": 1}, {"verified": 1})


def test_two_sessions_that_have_one_id_by_chance_both_stay(store: Store, tmp_path: Path) -> None:
    add_session(store, samples.context(), samples.verified(1, 10.0))
    (session_id,) = query(store, "SELECT id FROM sessions")[1][0]
    with open_store(samples.empty_database(tmp_path / "x.db")) as other:
        add_session(other, samples.context(device="other"), samples.verified(2, 20.0))
        add_session(other, samples.context(device="third"), samples.verified(2, 30.0))

        def same_id(connection: object) -> None:
            run = connection.exec_driver_sql  # type: ignore[attr-defined]
            run("PRAGMA defer_foreign_keys=ON")
            first = run("SELECT MIN(id) FROM sessions").scalar_one()
            run(f"UPDATE sessions SET id = {session_id} WHERE id = {first}")
            run(f"UPDATE trials SET session_id = {session_id} WHERE session_id = {first}")

        other.database.write(same_id)
        merge(store, other)
        assert overview(store).tables["sessions"] == 3
        assert sorted(us for (us,) in query(store, "SELECT measured_us FROM leaderboard")[1]) == [
            10.0,
            20.0,
            30.0,
        ]
        assert not sum(merge(store, other).values())  # the session is found under its new id
        moved = query(store, f"SELECT id FROM sessions WHERE id <> {session_id} ORDER BY id")[1]
        assert moved[0][0] >> 11 == session_id >> 11


def test_misses_keep_the_greater_count(store: Store, tmp_path: Path) -> None:
    store.record_misses([miss(count=5, day=2)])
    with open_store(samples.empty_database(tmp_path / "x.db")) as other:
        other.record_misses([miss(count=9, day=1)])
        for _ in range(2):
            merge(store, other)
        (found,) = store.misses()
        assert (found.count, found.first_at.day, found.last_at.day) == (9, 1, 2)
        assert found.last_at - found.first_at == timedelta(days=1)


def test_a_database_is_not_merged_into_itself(store: Store, tmp_path: Path) -> None:
    (tmp_path / "link.db").symlink_to(tmp_path / "here.db")
    for url in (f"sqlite:///{tmp_path}/here.db", str(tmp_path / "link.db")):
        with (
            open_store(url, read_only=True) as same,
            pytest.raises(InputError, match="is the database itself"),
        ):
            merge(store, same)


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE measurements SET samples_us = 'no json'",
        "UPDATE sessions SET seconds = 'x'",
        "UPDATE predictions SET latency_us = x'00'",
        "UPDATE trials SET session_id = -1 WHERE status = 'predicted'",
    ],
)
def test_a_merge_that_fails_leaves_nothing(store: Store, tmp_path: Path, damage: str) -> None:
    stocked(tmp_path / "bad.db")
    with closing(sqlite3.connect(tmp_path / "bad.db")) as other, other:
        other.execute(damage)
    with (
        open_store(str(tmp_path / "bad.db"), read_only=True) as bad,
        pytest.raises(DatabaseCorruptError, match=r"bad.db' holds a damaged record"),
    ):
        merge(store, bad)
    assert not sum(overview(store).tables.values())


def test_every_table_is_merged(store: Store, other: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    added: list[str] = []
    whole = Merger.add

    def noted(self: Merger, table: schema.Table, rows: object) -> None:
        added.append(table.name)
        whole(self, table, rows)  # type: ignore[arg-type]

    monkeypatch.setattr(Merger, "add", noted)
    merge(store, other)
    assert set(added) == set(schema.metadata.tables)
    assert all(overview(store).tables.values())
