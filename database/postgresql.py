"""All that is particular to PostgreSQL."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Engine, create_engine, text
from sqlalchemy.dialects.postgresql import insert as postgresql_insert
from sqlalchemy.engine import URL

from ..errors import InputError

insert = postgresql_insert

_SCHEMA_LOCK = 7_460_131_942  # any number, the same in all versions
_CONNECT_SECONDS = 10
# read-only transactions still let a superuser COPY to files
_READING = ("SELECT", "WITH", "EXPLAIN", "SHOW", "VALUES", "TABLE")
_FIRST_WORD = re.compile(r"(?:\s|\(|--[^\n]*\n|/\*.*?\*/)*(\w+)", re.DOTALL)


def make_engine(url: URL, *, read_only: bool) -> Engine:
    return create_engine(
        url,
        connect_args={"connect_timeout": _CONNECT_SECONDS},
        execution_options={"postgresql_readonly": True} if read_only else {},
        pool_pre_ping=True,
    )


def lock_schema(connection: Connection) -> None:
    """Until the transaction ends, no other process migrates."""
    connection.execute(text(f"SELECT pg_advisory_xact_lock({_SCHEMA_LOCK})"))


def size_bytes(connection: Connection) -> int:
    return int(connection.execute(text("SELECT pg_database_size(current_database())")).scalar_one())


def start_query(connection: Connection, sql: str) -> tuple[Any, Sequence[Any]]:
    """Run one reading statement; return the driver's cursor and its description. The server refuses all else."""
    first_word = _FIRST_WORD.match(sql)
    if first_word and first_word[1].upper() not in _READING:
        raise InputError(f"query refused: {first_word[1]} is not a reading statement; begin with one of: {', '.join(_READING)}")
    cursor: Any = connection.connection.cursor()
    cursor.execute("SET TRANSACTION READ ONLY")
    # a prepared statement is a single one: nothing can follow a COMMIT smuggled into it
    cursor.execute(sql, prepare=True)
    return _JsonAsText(cursor), cursor.description or ()


def end_query(connection: Connection) -> None:
    """Nothing to do: read-only ends with the transaction."""


class _JsonAsText:
    """JSON columns as text, as SQLite gives them."""

    def __init__(self, cursor: Any) -> None:
        self._cursor = cursor

    def fetchmany(self, count: int) -> list[tuple[Any, ...]]:
        return [tuple(_plain(value) for value in row) for row in self._cursor.fetchmany(count)]


def _plain(value: Any) -> Any:
    return json.dumps(value) if isinstance(value, dict | list) else value
