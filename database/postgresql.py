"""All that is particular to PostgreSQL: connecting, what became of a commit, the guard of reading queries."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.engine import URL

from ..errors import DatabaseError
from . import faults, reading_sql
from .checks import json_text, refused_text

insert = postgresql_insert

_SCHEMA_LOCK = 7_460_131_942  # any number, the same in all versions
_OLDEST = (13,)  # the first that tells what became of a transaction by its full number
_CONNECT_SECONDS = 10
# a connection whose other end is gone without a word is given up after half a minute, by both ends
_KEEPALIVE = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}
# statistics begin anew where the server was not shut down in order
_EPOCH, _LAST_CRASH = "tilesight_epoch", "pg_stat_get_bgwriter_stat_reset_time()"
_SERVER_KEEPALIVE = {"tcp_keepalives_idle": 10, "tcp_keepalives_interval": 5, "tcp_keepalives_count": 4}


def make_engine(url: URL, *, read_only: bool, busy_seconds: float = 30.0) -> Engine:
    """An engine whose connections wait for a lock for up to `busy_seconds`. Only transactions for writing may write."""
    settings = {
        **_SERVER_KEEPALIVE,
        "lock_timeout": max(1, round(1000 * busy_seconds)),
        "extra_float_digits": 1,  # numbers as they are, whatever was set for this user
        **({"default_transaction_read_only": "on"} if read_only else {}),
    }

    def configure(driver: Any, record: Any) -> None:
        driver.autocommit = True
        driver.execute("; ".join(f"SET {name} = {value}" for name, value in settings.items()))
        record.info[_EPOCH] = driver.execute(f"SELECT CAST({_LAST_CRASH} AS text)").fetchone()[0]
        driver.autocommit = False

    given = {name: value for name, value in _KEEPALIVE.items() if name not in url.query}
    engine = create_engine(
        url, connect_args={"connect_timeout": _CONNECT_SECONDS, "client_encoding": "utf8", **given}, json_serializer=json_text
    )
    event.listen(engine, "connect", configure)
    event.listen(engine, "begin", _begin)
    return engine


def check_server(connection: Connection, name: str) -> None:
    """Raise `DatabaseError` for a server that is too old, and for a database that cannot hold every text."""
    version = connection.dialect.server_version_info or _OLDEST
    if version < _OLDEST:
        raise DatabaseError(
            f"database '{name}' is on PostgreSQL {'.'.join(map(str, version))}; TileSight needs {_OLDEST[0]} or later: upgrade the "
            "server, or use another database with --db"
        )
    driver: Any = connection.connection.driver_connection
    encoding = driver.info.parameter_status("server_encoding")
    if encoding != "UTF8":
        raise DatabaseError(
            f"database '{name}' has the encoding {encoding}, which cannot hold every text; make one that can, "
            "CREATE DATABASE tilesight ENCODING 'UTF8' TEMPLATE template0, and name it with --db"
        )


def lock_schema(connection: Connection) -> None:
    """Until the transaction ends, no other process migrates."""
    connection.execute(text(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})"))


def mark(connection: Connection) -> tuple[str, str]:
    """The transaction that is being made, as `was_committed` finds it again: its number, and since when the server counts.
    Fails at once where the connection is gone, so that nothing else need look."""
    number = connection.exec_driver_sql("SELECT CAST(pg_current_xact_id() AS text)").scalar_one()
    return str(number), connection.info[_EPOCH]


def was_committed(connection: Connection, marked: tuple[str, str]) -> bool:
    """What became of a transaction whose connection was lost. One that the server still holds open, since it has not
    noticed, is ended: its locks would stand in the way of doing it again.

    False, too, where the server crashed meanwhile: it gives numbers again, so nobody can tell, and it is safer to write twice.
    """
    number, epoch = marked
    if connection.info[_EPOCH] != epoch:
        return False
    state = connection.execute(text("SELECT pg_xact_status(CAST(:number AS xid8))"), {"number": number}).scalar_one()
    if state != "in progress":
        return bool(state == "committed")
    connection.execute(
        text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE backend_xid = CAST(CAST(:number AS xid8) AS xid)"),
        {"number": number},
    )
    raise faults.ConnectionLostError(
        faults.display_name(connection.engine.url), "the server is about to end a write that it lost touch with"
    )


def size_bytes(connection: Connection) -> int:
    return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def start_query(connection: Connection, sql: str) -> tuple[Any, Sequence[Any]]:
    """Run one reading statement; return the driver's cursor and its description. All else is refused: by its first word, by
    the functions that it calls, and by the server, whose transaction only reads."""
    if (reason := refused_text(sql) or reading_sql.refusal(connection, sql)) is not None:
        raise faults.RefusedStatementError(reason)
    from psycopg.types.numeric import FloatLoader
    from psycopg.types.string import TextLoader

    cursor: Any = connection.connection.cursor()
    # as SQLite gives them: JSON as text, sums and means as numbers
    for name, loader in (("json", TextLoader), ("jsonb", TextLoader), ("numeric", FloatLoader)):
        cursor.adapters.register_loader(name, loader)
    # a prepared statement is a single one: nothing can follow a COMMIT smuggled into it
    cursor.execute(sql, prepare=True)
    return cursor, cursor.description or ()


def end_query(connection: Connection) -> None:
    """Nothing to do: what was set ends with the transaction."""


def _begin(connection: Connection) -> None:
    """Reading sees one state and cannot write. Writing sees what others commit meanwhile: it waits for their rows."""
    from psycopg import IsolationLevel

    driver: Any = connection.connection.driver_connection
    writes = connection.get_execution_options().get("tilesight_writes", False)
    level = IsolationLevel.READ_COMMITTED if writes else IsolationLevel.REPEATABLE_READ
    if driver.isolation_level is not level:
        driver.isolation_level = level
        driver.read_only = None if writes else True
