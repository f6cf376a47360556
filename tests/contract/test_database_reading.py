"""`query` only reads, whatever a statement tries, on each kind of database."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgres import ADMIN, PASSWORD, USER, Server
from tests.support.sessions import add_session, rows
from tests.unit.database import samples
from tilesight.database import Store, frame, open_store, overview, query
from tilesight.database.exchange import queries
from tilesight.errors import DatabaseError, FailureKind, InputError

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
    "PREPARE TRANSACTION 'mine'",
    "DECLARE mine CURSOR FOR SELECT 1",
    "EXPLAIN SELECT 1",
    "SHOW transaction_read_only",
    "SELECT set_config('transaction_read_only', 'off', false)",
    "SELECT set_config('role', 'admin', false)",
    "SELECT set_config('session_authorization', 'admin', false)",
    "SELECT query_to_xml('DELETE FROM trials', true, true, '')",
    "SELECT query_to_xml('COPY trials TO ''/tmp/tilesight-copied''', true, true, '')",
    "SELECT nextval('mine')",
    "SELECT setval('mine', 7)",
    "SELECT lo_export(4711, '/tmp/tilesight-copied')",
    "SELECT lo_import('/etc/passwd')",
    "SELECT pg_read_file('/etc/passwd')",
    "SELECT pg_read_binary_file('/etc/passwd')",
    "SELECT pg_ls_dir('/')",
    "SELECT pg_reload_conf()",
    'SELECT U&"pg_reload_con\\0066"()',
    "SELECT pg_switch_wal()",
    "SELECT pg_create_physical_replication_slot('mine')",
    "SELECT pg_create_restore_point('mine')",
    # where a reader of the text may disagree with the server on what is a comment or a text
    "-- comment\rSELECT 1; COPY trials TO '/tmp/tilesight-copied'",
    "SELECT 1 --\r, pg_read_file('/etc/passwd')\n FROM pg_read_file('/etc/passwd')",
    "SELECT E'\\'' --'\n, pg_read_file('/etc/passwd') --'",
    "SELECT 'a'\n'b\\', pg_read_file('/etc/passwd')::text || ' '",
    "SELECT E'a'\n'\\'', pg_read_file('/etc/passwd') --'",
    "SELECT 1 $a$ pg_read_file('/etc/passwd') $a$",
    "SELECT 1 AS a$$, pg_read_file('/etc/passwd') AS b$$",
    "SELECT $é$ $e$, $é$, pg_read_file('/etc/passwd')",
    "/* /* */ SELECT 1 */ COPY (SELECT 1) TO PROGRAM 'touch /tmp/tilesight-copied'",
]
REFUSED = (
    r"query '.*' returns no rows; write one SELECT|"
    r"query refused: .*write one reading statement over records, leaderboard, best"
)


def refuse(store: Store, statements: Sequence[str]) -> None:
    """Each of `statements` is refused and changes nothing, and the store itself goes on writing."""
    add_session(store, samples.context(), samples.predicted(1))
    before = overview(store)
    for sql in statements:
        with pytest.raises(InputError, match=REFUSED):
            query(store, sql)
        after = overview(store)
        assert (after.tables, after.trials, after.sessions) == (
            before.tables,
            before.trials,
            before.sessions,
        ), sql
    add_session(store, samples.context(), samples.predicted(2))


def test_writes_are_refused(store: Store) -> None:
    refuse(store, WRITES)


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_writes_of_sqlite_are_refused(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    refuse(store, SQLITE_WRITES)
    assert not (tmp_path / "other.db").exists()


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_writes_of_postgresql_are_refused(store: Store) -> None:
    store.database.write(lambda connection: connection.exec_driver_sql("CREATE SEQUENCE IF NOT EXISTS mine"))
    refuse(store, POSTGRES_WRITES)
    assert not Path("/tmp/tilesight-copied").exists()
    assert rows(store, "SELECT current_setting('transaction_read_only')") == [("on",)]


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize(
    "sql",
    [
        "SELECT pg_advisory_lock(4711)",
        "SELECT set_config('search_path', 'nowhere', false)",
        "SELECT set_config('statement_timeout', '1', false)",
        "SELECT pg_notify('mine', 'x')",
        "SELECT lo_create(4711)",  # servers from version 16 on refuse it
        "SELECT pg_export_snapshot()",
    ],
)
def test_nothing_stays_of_what_a_query_did(store: Store, postgres: Server, tables: str, sql: str) -> None:
    """Its transaction is rolled back, and its connection is closed."""
    with contextlib.suppress(InputError):
        query(store, sql)
    left = (
        "SELECT COUNT(*) FROM pg_locks WHERE locktype = 'advisory'",
        "SELECT COUNT(*) FROM pg_largeobject_metadata",
    )
    with postgres.connect(tables) as connection:
        assert [connection.execute(statement).fetchone() for statement in left] == [(0,), (0,)]
    assert rows(store, "SELECT COUNT(*) FROM trials WHERE pg_sleep(0.05) IS NOT NULL") == [(0,)]


MIGHTY = {
    "ALTER ROLE mighty SUPERUSER": "'mighty' is a superuser",
    "ALTER ROLE mighty REPLICATION": "'mighty' may replicate",
    "GRANT pg_read_server_files TO mighty": "'mighty' is a member of pg_read_server_files",
    "GRANT pg_write_server_files TO mighty": "'mighty' is a member of pg_write_server_files",
    "GRANT pg_execute_server_program TO mighty": "'mighty' is a member of pg_execute_server_program",
    "GRANT pg_signal_backend TO mighty": "'mighty' is a member of pg_signal_backend",
    "GRANT EXECUTE ON FUNCTION lo_export(oid, text) TO mighty": "'mighty' may call lo_export",
    "GRANT EXECUTE ON FUNCTION pg_read_file(text) TO middle; GRANT middle TO mighty": "may call pg_read_file",
    "GRANT admin TO middle; GRANT middle TO mighty": "'mighty' is a member of admin",
    "ALTER ROLE mighty NOINHERIT; GRANT pg_write_server_files TO mighty": "member of pg_write_server_files",
}


@pytest.mark.full
@pytest.mark.parametrize("grant", MIGHTY)
def test_a_role_that_no_transaction_restrains_runs_no_query(
    postgres_url: str, postgres: Server, tables: str, grant: str
) -> None:
    assert postgres_url
    make = f"CREATE ROLE middle; CREATE ROLE mighty LOGIN PASSWORD '{PASSWORD}' IN ROLE {USER}"
    read = "GRANT SELECT ON ALL TABLES IN SCHEMA public TO mighty"
    postgres.execute(*make.split("; "), *grant.split("; "), read, database=tables)
    try:
        with open_store(postgres.url(tables, user="mighty"), read_only=True) as store:
            with pytest.raises(DatabaseError, match=rf"{MIGHTY[grant]}.*CREATE ROLE reader LOGIN.*--db"):
                query(store, "SELECT 1")
            assert len(frame(store, "best")) == 0  # statements of our own are run
    finally:
        postgres.execute("DROP OWNED BY middle, mighty", "DROP ROLE middle, mighty", database=tables)


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("role", ["pg_monitor", "pg_read_all_settings"])
def test_a_role_that_may_read_more_runs_queries(store: Store, postgres: Server, role: str) -> None:
    postgres.execute(f"GRANT {role} TO {USER}")
    try:
        assert rows(store, "SELECT 1") == [(1,)]
    finally:
        postgres.execute(f"REVOKE {role} FROM {USER}")


@pytest.mark.full
def test_the_message_on_a_mighty_role_tells_how_a_query_can_be_run(
    postgres_url: str, postgres: Server, tables: str
) -> None:
    """What the message asks for is enough, and such a role cannot end the sessions of others."""
    assert postgres_url
    with open_store(postgres.url(tables, user=ADMIN)) as store, pytest.raises(DatabaseError) as caught:
        query(store, "SELECT 1")
    made, granted = re.findall(r"(CREATE ROLE [^;]*|GRANT SELECT [^;]*);", str(caught.value))
    postgres.execute(made.replace("...", PASSWORD), granted, database=tables)
    others = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = '{USER}'"
    try:
        with (
            open_store(postgres_url),
            open_store(postgres.url(tables, user="reader"), read_only=True) as store,
        ):
            assert rows(store, "SELECT COUNT(*) FROM best") == [(0,)]
            with pytest.raises(InputError, match=r"query refused: (must be|permission denied)"):
                query(store, others)
    finally:
        postgres.execute("DROP OWNED BY reader", "DROP ROLE reader", database=tables)


ENDLESS = {
    "recursion": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT 1 - i FROM n) SELECT COUNT(*) FROM n",
    "no row": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT 1 - i FROM n) SELECT i FROM n WHERE i > 1",
    "cross joins": "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000) "
    "SELECT COUNT(*) FROM n a, n b, n c, n d",
}
ENDLESS_POSTGRES = {
    "series": "SELECT COUNT(*) FROM generate_series(1, 100000) a, generate_series(1, 100000) b",
    "sleep": "SELECT pg_sleep(600)",
    "lifted": "SELECT set_config('statement_timeout', '0', false), pg_sleep(600)",
    "lifted within": "SELECT query_to_xml('SELECT set_config(''statement_timeout'', ''0'', false), "
    "pg_sleep(600)', true, true, '')",
    "lifted by a row": "SELECT set_config('statement_timeout', '0', false) FROM generate_series(1, 3000) "
    "UNION ALL SELECT pg_sleep(600)::text",
    "slow rows": "SELECT pg_sleep(0.1) FROM generate_series(1, 100000)",
}
ENDED = r"query '.*' took longer than 0.5 s and was ended; ask for less"


@pytest.mark.parametrize("name", ENDLESS)
def test_an_endless_query_ends(store: Store, name: str) -> None:
    with pytest.raises(InputError, match=ENDED):
        query(store, ENDLESS[name], seconds=0.5)
    add_session(store, samples.context(), samples.predicted(1))  # the store goes on


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
@pytest.mark.parametrize("name", ENDLESS_POSTGRES)
def test_an_endless_query_ends_on_a_server(store: Store, name: str) -> None:
    with pytest.raises(InputError, match=ENDED):
        query(store, ENDLESS_POSTGRES[name], seconds=0.5)
    add_session(store, samples.context(), samples.predicted(1))


def test_an_answer_has_a_greatest_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queries, "_MOST_BYTES", 1 << 20)
    many = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {}) SELECT i FROM n"
    assert len(rows(store, many.format(5000))) == 5000
    with pytest.raises(InputError, match=r"its answer has more than 1 MB; ask for less with WHERE or LIMIT"):
        query(store, many.format(200_000))
    add_session(store, samples.context(), samples.predicted(1))  # the store goes on


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("sql", ["SELECT zeroblob(1000000000)", "SELECT hex(zeroblob(9000000))"])
def test_a_value_has_a_greatest_size(store: Store, sql: str) -> None:
    with pytest.raises(InputError, match="query refused: string or blob too big"):
        query(store, sql)


@pytest.mark.parametrize("sql", ["SELECT ?", "SELECT :name", "SELECT $1", "SELECT $name", "SELECT @name"])
def test_parameters_are_refused_in_one_line(store: Store, sql: str) -> None:
    with pytest.raises(InputError, match=r"query refused: .*") as caught:
        query(store, sql)
    assert "\n" not in str(caught.value)
    if store.database.url.get_backend_name() == "sqlite" or sql == "SELECT $1":
        assert "it has a parameter (?, :name or $1); write the value in its place" in str(caught.value)
    add_session(store, samples.context(), samples.predicted(1))  # the store goes on


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_a_value_that_the_driver_cannot_hold(store: Store) -> None:
    with pytest.raises(InputError, match="query refused: timestamp too large"):
        query(store, "SELECT 'infinity'::timestamp")


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
        ("SELECT current_setting('transaction_isolation')", "repeatable read"),
        ("SELECT COUNT(*) FROM trials WHERE random() < 2", 0),
        ("SELECT pg_total_relation_size('trials') > 0", True),
    ],
)
def test_what_only_looks_like_a_write_is_run(store: Store, sql: str, found: object) -> None:
    assert rows(store, sql) == [(found,)]


SYNTAX = {"sqlite": "syntax error", "postgresql": 'syntax error at or near "SELEC"'}
UNKNOWN_TABLE = {"sqlite": "no such table: nowhere", "postgresql": 'relation "nowhere" does not exist'}
UNKNOWN_COLUMN = {"sqlite": "no such column: absent", "postgresql": 'column "absent" does not exist'}
SEVERAL = {"sqlite": "one statement at a time", "postgresql": "multiple commands"}
NO_TEXT = dict.fromkeys(SYNTAX, "it contains NUL or half a surrogate pair")
NO_ROWS = {"sqlite": "returns no rows", "postgresql": "syntax error at end of input"}


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
