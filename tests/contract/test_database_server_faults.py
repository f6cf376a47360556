"""A PostgreSQL server with a full or damaged disk: the errors that a user gets, and what is kept."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.postgres import PASSWORD, Server
from tests.unit.database import samples
from tilesight.database import Store, open_store, query
from tilesight.errors import DatabaseCorruptError, DatabaseError, DatabaseFullError
from tilesight.problem.space import Census
from tilesight.records.session import Baseline, Effort

pytestmark = pytest.mark.full

CONTEXT = samples.context()


@pytest.fixture
def own_url(postgres: Server) -> Iterator[str]:
    """A database of this test's own, with one trial."""
    with postgres.database() as name:
        with open_store(postgres.url(name)) as store:
            fill(store, 1)
        yield postgres.url(name)


def fill(store: Store, number: int) -> None:
    session_id = store.begin(CONTEXT, Effort.QUICK, 0, {}, Census(1, 1, {}))
    store.record(session_id, CONTEXT, samples.verified(number, 10.0))


def file_of(postgres: Server, store: Store, relation: str) -> Path:
    """The file of a table, after all of it is written and no connection uses it."""
    ((path,),) = query(store, f"SELECT pg_relation_filepath('{relation}')")[1]
    store.close()
    postgres.execute("CHECKPOINT")
    return postgres.data / str(path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_of_the_server(postgres: Server, own_url: str) -> None:
    """The table that a baseline goes to lies on a device that is always full."""
    with open_store(own_url) as store:
        session_id = store.begin(CONTEXT, Effort.QUICK, 0, {}, Census(1, 1, {}))
        table = file_of(postgres, store, "baselines")
    postgres.stop()
    assert table.stat().st_size == 0
    table.unlink()
    table.symlink_to("/dev/full")
    postgres.start()
    try:
        with open_store(own_url) as store:
            with pytest.raises(
                DatabaseFullError,
                match=r"no space left for database 'postgresql://.*No space left on device.*free some",
            ) as caught:
                store.record_baselines(session_id, [Baseline("vendor", (1.0,))])
            assert PASSWORD not in str(caught.value)
            fill(store, 2)  # what goes elsewhere is kept
            assert len(store.recall(CONTEXT)) == 2
    finally:
        table.unlink()
        table.touch()
        if os.geteuid() == 0:
            owner = table.parent.stat()
            os.chown(table, owner.st_uid, owner.st_gid)


@pytest.mark.parametrize("damage", ["garbage", "half of it", "gone"])
def test_a_damaged_table_of_the_server(postgres: Server, own_url: str, damage: str) -> None:
    with open_store(own_url) as store:
        table = file_of(postgres, store, "trials")
    postgres.stop()
    content = table.read_bytes()
    if damage == "gone":
        table.unlink()
    else:
        table.write_bytes(b"\xa5" * len(content) if damage == "garbage" else content[: len(content) // 2])
    postgres.start()
    kind = DatabaseError if damage == "gone" else DatabaseCorruptError
    with open_store(own_url) as store:
        if damage == "half of it":
            assert store.recall(CONTEXT) == {}  # the server ignores half a page
            return
        with pytest.raises(kind, match=r"database 'postgresql://.*server's log") as caught:
            store.recall(CONTEXT)
        assert PASSWORD not in str(caught.value)
        assert query(store, "SELECT COUNT(*) FROM sessions")[1] == [(1,)]  # the rest can be read


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE trials SET status = 'splendid'",
        "UPDATE predictions SET latency_us = -1",
        "UPDATE candidates SET config = '[]'",
        "UPDATE candidates SET config = 'no json'",
    ],
)
def test_rows_that_make_no_value(postgres: Server, own_url: str, damage: str) -> None:
    name = own_url.rpartition("/")[2].partition("?")[0]
    postgres.execute(damage, database=name)
    with open_store(own_url) as store:
        with pytest.raises(
            DatabaseCorruptError, match=r"postgresql://.*holds a damaged record .*restore a copy"
        ) as caught:
            store.recall(CONTEXT)
        assert PASSWORD not in str(caught.value)


def test_a_statement_that_takes_too_long_for_the_server(
    postgres: Server, postgres_url: str, tables: str
) -> None:
    postgres.execute(f"ALTER DATABASE {tables} SET statement_timeout = '50ms'")
    try:
        with (
            open_store(postgres_url) as store,
            pytest.raises(DatabaseError, match=r"ended a statement .*statement_timeout"),
        ):
            query(store, "SELECT pg_sleep(5)")
    finally:
        postgres.execute(f"ALTER DATABASE {tables} RESET statement_timeout")


def test_settings_of_the_server_do_not_change_what_is_recorded(
    postgres: Server, postgres_url: str, tables: str
) -> None:
    settings = {
        "extra_float_digits": "-10",
        "DateStyle": "'SQL, DMY'",
        "TimeZone": "'Asia/Tokyo'",
        "bytea_output": "escape",
    }
    settings |= {
        "default_transaction_isolation": "serializable",
        "IntervalStyle": "sql_standard",
        "statement_timeout": "0",
    }
    postgres.execute(*(f"ALTER DATABASE {tables} SET {name} = {value}" for name, value in settings.items()))
    try:
        with open_store(postgres_url) as store:
            session_id = store.begin(CONTEXT, Effort.QUICK, 0, {}, Census(1, 1, {}))
            trial = samples.verified(1, 1 / 3)
            store.record(session_id, CONTEXT, trial)
            assert store.recall(CONTEXT) == {trial.config.key: trial}
            ((samples_us, begun),) = query(store, "SELECT samples_us, recorded_at FROM records")[1]
            assert json.loads(samples_us) == [1 / 3]
            assert begun.year >= 2025
    finally:
        postgres.execute(*(f"ALTER DATABASE {tables} RESET {name}" for name in settings))
