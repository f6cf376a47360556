"""`query` only reads, whatever a statement tries, on each kind of database."""

from __future__ import annotations

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import Server
from tests.support.sessions import add_session, rows
from tests.unit.database import samples
from tilesight.database import Store, open_store, overview, query
from tilesight.errors import FailureKind, InputError

# of both kinds of database
WRITES = [
    "DELETE FROM trials",
    "UPDATE trials SET status = 'verified'",
    "INSERT INTO templates VALUES (1, 'a', 'b')",
    "INSERT INTO templates VALUES (1, 'a', 'b') RETURNING id",
    "WITH gone AS (SELECT 1 AS one) DELETE FROM trials",
    "DROP VIEW best",
    "DROP TABLE baselines",
    "ALTER TABLE trials ADD COLUMN mine text",
    "CREATE TABLE mine (a integer)",
    "CREATE TEMP TABLE mine (a integer)",
    "CREATE INDEX mine ON trials (status)",
    "ANALYZE",
    "VACUUM",
    "REINDEX",
    "COMMIT",
    "ROLLBACK",
    "BEGIN",
    "SAVEPOINT mine",
]
SQLITE_WRITES = [
    "ATTACH 'other.db' AS other",
    "DETACH main",
    "VACUUM INTO 'other.db'",
    "PRAGMA journal_mode = DELETE",
    "PRAGMA writable_schema = ON",
    "PRAGMA user_version = 7",
    "PRAGMA wal_checkpoint(TRUNCATE)",
    "PRAGMA optimize",
    "REPLACE INTO templates VALUES (1, 'a', 'b')",
    "SELECT load_extension('x')",
    "CREATE VIRTUAL TABLE mine USING fts5(a)",
    "CREATE TRIGGER mine AFTER INSERT ON trials BEGIN SELECT 1; END",
    "SELECT 1 FROM trials; DROP TABLE trials",
]
POSTGRES_WRITES = [
    "/* SELECT */ DROP TABLE trials",
    "-- SELECT\nDROP TABLE trials",
    "/* /* */ SELECT */ DROP TABLE trials",
    "; DROP TABLE trials",
    "SELECT 1; DROP TABLE trials",
    "SELECT 1; COMMIT; DROP TABLE trials",
    "COPY trials TO '/tmp/tilesight-copied'",
    "COPY trials FROM '/etc/passwd'",
    "COPY (SELECT 1) TO PROGRAM 'touch /tmp/tilesight-copied'",
    "WITH gone AS (DELETE FROM trials RETURNING 1) SELECT * FROM gone",
    "WITH new AS (INSERT INTO templates VALUES (1, 'a', 'b') RETURNING id) SELECT * FROM new",
    "EXPLAIN ANALYZE DELETE FROM trials",
    "EXPLAIN ANALYZE CREATE TABLE mine AS SELECT 1",
    "SELECT * INTO mine FROM trials",
    "SELECT * FROM sessions FOR UPDATE",
    "TRUNCATE trials",
    "GRANT ALL ON trials TO PUBLIC",
    "DO $$ BEGIN DELETE FROM trials; END $$",
    "CALL mine()",
    "SET ROLE none",
    "SET TRANSACTION READ WRITE",
    "RESET ALL",
    "NOTIFY mine",
    "LISTEN mine",
    "LOCK TABLE trials",
    "PREPARE mine AS DELETE FROM trials",
    "DECLARE mine CURSOR FOR SELECT 1",
    "SELECT set_config('transaction_read_only', 'off', false)",
    "SELECT pg_catalog.set_config('search_path', 'mine', false)",
    "SELECT pg_advisory_lock(7460131942)",
    "SELECT PG_TERMINATE_BACKEND(pid) FROM pg_stat_activity",
    'SELECT "pg_cancel_backend" (1)',
    "SELECT pg_reload_conf /* ( */ ()",
    'SELECT U&"pg_reload_con\\0066"()',
    "SELECT lo_create(4711)",
    "SELECT lo_export(lo_import('/etc/passwd'), '/tmp/tilesight-copied')",
    "SELECT nextval('mine')",
    "SELECT query_to_xml('DELETE FROM trials', true, true, '')",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_switch_wal()",
    "SELECT * FROM pg_logical_emit_message(false, 'a', 'b')",
    "SELECT 1 WHERE EXISTS (SELECT pg_create_restore_point('mine'))",
]
REFUSED = (
    r"query '.*' returns no rows; write one SELECT|"
    r"query refused: .*write one reading statement over records, leaderboard, best"
)


def refuse(store: Store, sql: str) -> None:
    add_session(store, samples.context(), samples.predicted(1))
    before = overview(store)
    with pytest.raises(InputError, match=REFUSED):
        query(store, sql)
    after = overview(store)
    assert (after.tables, after.trials, after.sessions) == (before.tables, before.trials, before.sessions)
    add_session(store, samples.context(), samples.predicted(2))  # the store itself goes on writing


@pytest.mark.parametrize("sql", WRITES)
def test_writes_are_refused(store: Store, sql: str) -> None:
    refuse(store, sql)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("sql", SQLITE_WRITES)
def test_writes_of_sqlite_are_refused(
    store: Store, sql: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    refuse(store, sql)
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("sql", POSTGRES_WRITES)
def test_writes_of_postgresql_are_refused(store: Store, sql: str) -> None:
    refuse(store, sql)
    assert not Path("/tmp/tilesight-copied").exists()
    assert rows(store, "SHOW transaction_read_only") == [("on",)]


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_functions_of_a_user_that_may_write_are_refused(store: Store, postgres: Server, tables: str) -> None:
    postgres.execute(
        "CREATE FUNCTION writes() RETURNS integer LANGUAGE sql AS 'SELECT 1'",
        "CREATE FUNCTION reads() RETURNS integer STABLE LANGUAGE sql AS 'SELECT 1'",
        database=tables,
    )
    try:
        with pytest.raises(InputError, match="the function writes may do more than read"):
            query(store, "SELECT writes()")
        assert rows(store, "SELECT reads()") == [(1,)]
    finally:
        postgres.execute("DROP FUNCTION writes()", "DROP FUNCTION reads()", database=tables)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    ("sql", "found"),
    [
        ("SELECT 'pg_reload_conf()' AS a", "pg_reload_conf()"),
        ("SELECT 'it''s set_config(' AS a", "it's set_config("),
        ("SELECT E'\\' set_config(' AS a", "' set_config("),
        ("SELECT $$set_config()$$ AS a", "set_config()"),
        ("SELECT $q$ $$set_config($q$ AS a", " $$set_config("),
        ('SELECT 1 AS "set_config()"', 1),
        ("SELECT 1 -- set_config()", 1),
        ("SELECT /* set_config() /* nested */ */ 1", 1),
        ("(SELECT 1)", 1),
        ("VALUES (1)", 1),
        ("SHOW transaction_isolation", "repeatable read"),
        ("SELECT COUNT(*) FROM trials WHERE random() < 2", 0),
        ("SELECT pg_total_relation_size('trials') > 0", True),
    ],
)
def test_what_only_looks_like_a_write_is_run(store: Store, sql: str, found: object) -> None:
    assert rows(store, sql) == [(found,)]


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    "options", ["", "ANALYZE VERBOSE", "(ANALYZE, COSTS off, FORMAT json)", "(analyze true)"]
)
def test_explanations_are_given(store: Store, options: str) -> None:
    assert rows(store, f"EXPLAIN {options} SELECT 1")
    assert rows(store, f"EXPLAIN {options} (SELECT 1)")
    refuse(store, f"EXPLAIN {options} DELETE FROM trials")


SYNTAX = {"sqlite": "syntax error", "postgresql": "SELEC is not a reading statement"}
UNKNOWN_TABLE = {"sqlite": "no such table: nowhere", "postgresql": 'relation "nowhere" does not exist'}
UNKNOWN_COLUMN = {"sqlite": "no such column: absent", "postgresql": 'column "absent" does not exist'}
SEVERAL = {"sqlite": "one statement at a time", "postgresql": "multiple commands"}
NO_TEXT = dict.fromkeys(SYNTAX, "it contains NUL or half a surrogate pair")
NO_ROWS = dict.fromkeys(SYNTAX, "returns no rows")


@pytest.mark.parametrize(
    ("sql", "reasons"),
    [
        ("", NO_ROWS),
        ("-- nothing", NO_ROWS),
        ("SELEC 1", SYNTAX),
        ("SELECT * FROM nowhere", UNKNOWN_TABLE),
        ("SELECT absent FROM best", UNKNOWN_COLUMN),
        ("SELECT 1; SELECT 2", SEVERAL),
        (
            "SELECT '",
            {"sqlite": "unrecognized token|unterminated", "postgresql": "unterminated quoted string"},
        ),
        ("SELECT 1 AS a \0 DROP", NO_TEXT),
        ("SELECT '\ud800'", NO_TEXT),
        (
            "SELECT " + "(" * 20_000 + "1" + ")" * 20_000,
            {"sqlite": "parser stack overflow", "postgresql": "stack depth|memory exhausted"},
        ),
    ],
)
def test_sql_that_is_wrong(store: Store, sql: str, reasons: dict[str, str]) -> None:
    with pytest.raises(InputError, match=reasons[store.database.url.get_backend_name()]):
        query(store, sql)
    add_session(store, samples.context(), samples.predicted(1))  # the store goes on


def test_reading_is_not_disturbed_by_what_looks_like_parameters(store: Store) -> None:
    assert query(store, "SELECT '%s ? :name {} %(a)s $1' AS a, 2 AS b -- %") == (
        ["a", "b"],
        [("%s ? :name {} %(a)s $1", 2)],
    )
    assert rows(store, "WITH one AS (SELECT 1 AS x) SELECT x FROM one") == [(1,)]
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 2500) SELECT i FROM n"
    assert [i for (i,) in rows(store, many)] == list(range(1, 2501))


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_pragmas_that_describe_are_run(store: Store) -> None:
    assert "recorded_at" in {row[1] for row in rows(store, "PRAGMA table_info(trials)")}


def test_values_come_alike(store: Store) -> None:
    """On each kind of database JSON is text, and sums are numbers."""
    add_session(
        store, samples.context(), samples.verified(1, 10.0, 11.5), samples.failed(2, FailureKind.RUN_ERROR)
    )
    assert rows(store, "SELECT samples_us, protocol_key FROM records WHERE status = 'verified'") == [
        ("[10.0, 11.5]", "cold")
    ]
    assert rows(store, "SELECT dims, attrs FROM workloads") == [
        ('{"m": 4096, "n": 1024, "k": 8192}', '{"transposed": true, "splits": 2}'),
    ]
    ((total, mean, text),) = rows(
        store, "SELECT SUM(sample_count), AVG(sample_count), MAX(status) FROM records WHERE sample_count > 0"
    )
    assert (total, mean, text) == (2, 2.0, "verified")
    assert (type(total), type(mean)) == (int, float)


def test_ctrl_c_ends_a_long_query(store: Store) -> None:
    timer = threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT))
    timer.start()
    with pytest.raises(KeyboardInterrupt):
        query(store, "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT COUNT(*) FROM n")
    timer.join()
    add_session(store, samples.context(), samples.predicted(1))  # the store goes on


def test_one_reading_sees_one_state(store: Store, url: str) -> None:
    """It continues while another store writes, and does not see the changes."""
    add_session(store, samples.context(), samples.predicted(1))
    with open_store(url, read_only=True) as reader:

        def count(connection: Any) -> tuple[int, int]:
            first = connection.exec_driver_sql("SELECT COUNT(*) FROM trials").scalar_one()
            add_session(store, samples.context(), samples.predicted(2))
            return first, connection.exec_driver_sql("SELECT COUNT(*) FROM trials").scalar_one()

        assert reader.database.read(count) == (1, 1)
        assert rows(reader, "SELECT COUNT(*) FROM trials") == [(2,)]
