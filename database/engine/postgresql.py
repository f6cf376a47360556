"""PostgreSQL: connecting, ending lost sessions, the guard of reading queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.engine import URL

from ...errors import DatabaseError
from . import faults, reading_sql
from .text_checks import json_text, refused_text

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


def start_query(connection: Connection, sql: str) -> tuple[Any, Sequence[Any]]:
    """Run one reading statement; returns the driver's cursor and its description.

    Other statements are refused by their first word, by the functions that they call, and by the server's
    read-only transaction.
    """
    if (reason := refused_text(sql) or reading_sql.refusal(connection, sql)) is not None:
        raise faults.RefusedStatementError(reason)
    from psycopg.types.numeric import FloatLoader
    from psycopg.types.string import TextLoader

    cursor: Any = connection.connection.cursor()
    # the types that SQLite returns: JSON as text, sums and means as numbers
    for name, loader in (("json", TextLoader), ("jsonb", TextLoader), ("numeric", FloatLoader)):
        cursor.adapters.register_loader(name, loader)
    # only a single statement can be prepared, so no second one can follow a COMMIT
    cursor.execute(sql, prepare=True)
    return cursor, cursor.description or ()


def end_query(connection: Connection) -> None:
    """Nothing to do: the settings end with the transaction."""


def _begin(connection: Connection) -> None:
    """Reading transactions see one state and cannot write; writing ones see what others commit meanwhile."""
    from psycopg import IsolationLevel

    driver: Any = connection.connection.driver_connection
    writes = connection.get_execution_options().get("tilesight_writes", False)
    level = IsolationLevel.READ_COMMITTED if writes else IsolationLevel.REPEATABLE_READ
    if driver.isolation_level is not level:
        driver.isolation_level = level
        driver.read_only = None if writes else True
