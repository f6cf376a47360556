"""PostgreSQL: connecting, ending lost sessions, reading statements of the user."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.engine import URL

from ...errors import DatabaseError
from .text_checks import json_of, json_text

insert = postgresql_insert

_SCHEMA_LOCK = 7_460_131_942  # any number, the same in all versions
_OLDEST = (13,)
_CONNECT_SECONDS = 10
# both ends give up a connection after half a minute without an answer
_KEEPALIVE = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": 30_000,
}
_SESSION = "tilesight_session"
# as the text of a number, which does not depend on the user's settings
_STARTED = "CAST(extract(epoch FROM backend_start) AS text)"
_CURSOR = "tilesight_query"
# predefined roles that only read tables, settings and statistics, or that a read-only transaction restrains
_HARMLESS_ROLES = (
    "pg_database_owner",
    "pg_monitor",
    "pg_read_all_data",
    "pg_read_all_settings",
    "pg_read_all_stats",
    "pg_stat_scan_tables",
    "pg_write_all_data",
)
_REACHED = f"""
pg_has_role(session_user, r.oid, 'MEMBER') AND r.rolname NOT IN ({", ".join(map(repr, _HARMLESS_ROLES))})
"""
_MIGHTY_ROLE = f"""
SELECT session_user, CASE WHEN r.rolsuper AND r.rolname = session_user THEN 'is a superuser'
                          WHEN r.rolreplication AND r.rolname = session_user THEN 'may replicate'
                          ELSE 'is a member of ' || r.rolname END
FROM pg_roles r WHERE {_REACHED} AND (r.rolsuper OR r.rolreplication OR starts_with(r.rolname, 'pg_'))
ORDER BY r.rolname <> session_user, r.rolname LIMIT 1
"""
# a shorter limit of the server or the role stays
_TIME_LIMIT = """
SELECT set_config('statement_timeout', '{milliseconds}', true)
FROM (SELECT setting FROM pg_settings WHERE name = 'statement_timeout' OFFSET 0) AS found
WHERE CAST(setting AS bigint) NOT BETWEEN 1 AND {milliseconds}
"""
# the server's own functions that not everyone may call, such as pg_read_file and lo_export
_GRANTED = f"""
SELECT session_user, 'may call ' || p.proname
FROM pg_proc p CROSS JOIN aclexplode(p.proacl) a JOIN pg_roles r ON r.oid = a.grantee
WHERE p.pronamespace = 'pg_catalog'::regnamespace AND {_REACHED} ORDER BY p.proname LIMIT 1
"""
_SERVER_KEEPALIVE = {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 4}


def make_engine(url: URL, *, read_only: bool, busy_seconds: float = 30.0) -> Engine:
    """An engine for a PostgreSQL database, whose connections wait for locks up to `busy_seconds`."""
    settings = {
        **_SERVER_KEEPALIVE,
        "lock_timeout": max(1, round(1000 * busy_seconds)),
        "extra_float_digits": 1,  # numbers with all digits, whatever the user's settings are
        **({"default_transaction_read_only": "on"} if read_only else {}),
    }

    def configure(driver: Any, record: Any) -> None:
        driver.autocommit = True
        driver.execute("; ".join(f"SET {name} = {value}" for name, value in settings.items()))
        own = f"SELECT pid, {_STARTED} FROM pg_stat_activity WHERE pid = pg_backend_pid()"
        record.info[_SESSION] = driver.execute(own).fetchone()
        driver.autocommit = False

    given = {name: value for name, value in _KEEPALIVE.items() if name not in url.query}
    engine = create_engine(
        url,
        connect_args={"connect_timeout": _CONNECT_SECONDS, "client_encoding": "utf8", **given},
        json_serializer=json_text,
        json_deserializer=json_of,
    )
    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", _begin)
    return engine


def check_server(connection: Connection, name: str) -> None:
    """Raise `DatabaseError` for a server that is too old, and for a database that is not in UTF-8."""
    version = connection.dialect.server_version_info or _OLDEST
    if version < _OLDEST:
        raise DatabaseError(
            f"database '{name}' is on PostgreSQL {'.'.join(map(str, version))}; TileSight needs {_OLDEST[0]} "
            "or later: upgrade the "
            "server, or use another database with --db"
        )
    driver: Any = connection.connection.driver_connection
    encoding = driver.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise DatabaseError(
            f"database '{name}' has the encoding {encoding}, which cannot hold every text; make one that "
            "can, "
            "CREATE DATABASE tilesight ENCODING 'UTF8' TEMPLATE template0, and name it with --db"
        )


def lock_schema(connection: Connection) -> None:
    """Keep other processes from migrating until the transaction ends."""
    connection.execute(text(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})"))


def session_of(connection: Connection) -> tuple[int, str]:
    """The server's process that serves `connection`, and when it started: process ids are used again."""
    found: tuple[int, str] = connection.info[_SESSION]
    return found


def end_session(connection: Connection, session: tuple[int, str]) -> None:
    """End a session whose connection was lost, if the server still has it."""
    found = (
        f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid = :pid AND {_STARTED} = :started"
    )
    connection.execute(text(found), dict(zip(("pid", "started"), session, strict=True)))


def size_bytes(connection: Connection) -> int:
    return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


@contextmanager
def selecting(
    connection: Connection, sql: str, seconds: float | None
) -> Iterator[tuple[list[str], Iterator[tuple[Any, ...]]]]:
    """The columns and rows of one SELECT, VALUES or TABLE statement, in a transaction that only reads.

    The server holds every limit; nothing here reads the text. Its grammar takes nothing but such a statement
    after DECLARE CURSOR FOR, its extended protocol takes one statement, a transaction that reads cannot
    become one that writes once a query has run in it, and a statement's time limit is fixed when the
    statement begins. What these do not stop needs rights that `_check_role` finds.

    Args:
        connection: In a transaction that reads. It is closed at the end, with whatever the statement locked
            or set.
        sql: The statement.
        seconds: The time limit; None for a trusted statement, which has no limits.
    """
    cursor = _cursor(connection)
    if seconds is not None:
        connection.detach()
        _check_role(connection)
        cursor.execute(_TIME_LIMIT.format(milliseconds=max(1, round(1000 * seconds))))
        cursor.execute("SET LOCAL cursor_tuple_fraction = 1")  # all rows are wanted, not the first ones
    cursor.execute(f"DECLARE {_CURSOR} NO SCROLL CURSOR FOR\n{sql}", prepare=True)  # by the extended protocol
    cursor.execute(f"FETCH 0 FROM {_CURSOR}")
    names = [column.name for column in cursor.description]
    with closing(cursor.stream(f"FETCH ALL FROM {_CURSOR}")) as rows:  # row by row; closing it ends the rest
        yield names, rows


@contextmanager
def limited(connection: Connection, seconds: float) -> Iterator[None]:
    """End each statement of the block, and later ones of its transaction, once it has taken `seconds`; for
    our own statements, which are trusted.
    """
    connection.exec_driver_sql(_TIME_LIMIT.format(milliseconds=max(1, round(1000 * seconds))))
    yield


def _cursor(connection: Connection) -> Any:
    """A cursor that returns the types that SQLite returns: JSON as text, sums and means as numbers."""
    from psycopg.types.numeric import FloatLoader
    from psycopg.types.string import TextLoader

    cursor: Any = connection.connection.cursor()
    for name, loader in (("json", TextLoader), ("jsonb", TextLoader), ("numeric", FloatLoader)):
        cursor.adapters.register_loader(name, loader)
    return cursor


def _check_role(connection: Connection) -> None:
    """Raise `DatabaseError` if a query of this connection's role could do what no transaction stops.

    Files and programs of the server, replication slots and other users' sessions need such rights, and a
    query can change its role to each one that the connected role is a member of.
    """
    found = connection.exec_driver_sql(_MIGHTY_ROLE).first() or connection.exec_driver_sql(_GRANTED).first()
    if found is None:
        return
    role, right = found
    raise DatabaseError(
        f"database role '{role}' {right}, so a query could act beyond this database and no transaction would "
        "stop it; query as a role without such rights: CREATE ROLE reader LOGIN PASSWORD '...'; GRANT SELECT "
        "ON ALL TABLES IN SCHEMA public TO reader; then --db postgresql://reader@HOST/NAME"
    )


def _begin(connection: Connection) -> None:
    """Reading transactions see one state and cannot write; writing ones see what others commit meanwhile."""
    from psycopg import IsolationLevel

    driver: Any = connection.connection.driver_connection
    writes = connection.get_execution_options().get("tilesight_writes", False)
    level = IsolationLevel.READ_COMMITTED if writes else IsolationLevel.REPEATABLE_READ
    if driver.isolation_level is not level:
        driver.isolation_level = level
        driver.read_only = None if writes else True
