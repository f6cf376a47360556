"""Reading SQL over the database, and export of views to files."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from sqlalchemy import Connection, func, select

from ...errors import InputError, UnknownNameError
from ...extras import require_extra
from ...files import replacing
from ...settings import load_settings
from ..engine import faults
from ..engine.connection import Database
from ..schema import migrate
from ..schema import tables as schema
from ..schema.views import JSON_COLUMNS, VIEWS
from ..store import Store, open_store

if TYPE_CHECKING:
    import pandas as pd

FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
_CHUNK = 1000


@dataclass(frozen=True, slots=True)
class Overview:
    """The contents of a database: rows by table, trials by status, sessions by state."""

    name: str
    revision: str
    size_bytes: int
    tables: dict[str, int]
    trials: dict[str, int]
    sessions: dict[str, int]


def overview(store: Store) -> Overview:
    def work(connection: Connection) -> Overview:
        return Overview(
            name=store.name,
            revision=migrate.revision(connection, store.name) or "",
            size_bytes=store.database.backend.size_bytes(connection),
            tables={
                table.name: connection.execute(select(func.count()).select_from(table)).scalar_one()
                for table in schema.metadata.sorted_tables
            },
            trials=_count_by(connection, schema.trials.c.status),
            sessions=_count_by(connection, schema.sessions.c.state),
        )

    return store.database.read(work)


def query(store: Store, sql: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The columns and rows of one reading statement; JSON is text.

    Raises `InputError` for SQL that is invalid or writes.
    """

    def work(connection: Connection) -> tuple[list[str], list[tuple[Any, ...]]]:
        with _running(store.database, connection, sql) as (columns, batches):
            return columns, [row for batch in batches for row in batch]

    return store.database.read(work, roll_back=True)


@overload
def frame(source: str, view_or_sql: None = None) -> pd.DataFrame: ...
@overload
def frame(source: Store | Path | str | None, view_or_sql: str) -> pd.DataFrame: ...
def frame(source: Store | Path | str | None, view_or_sql: str | None = None) -> pd.DataFrame:
    """A view, a table or the result of a reading statement as a pandas DataFrame.

    `source` is an open store, the URL or file of a database, or None for the user's own database.
    `frame("best")` is the view `best` of the user's own database.
    """
    import pandas as pd

    if view_or_sql is None:
        source, view_or_sql = None, str(source)
    statement = _statement(view_or_sql)
    if isinstance(source, Store):
        columns, rows = query(source, statement)
    else:
        with open_store(
            str(source) if source is not None else load_settings().database_url, read_only=True
        ) as store:
            columns, rows = query(store, statement)
    return pd.DataFrame.from_records(rows, columns=columns)


def export(store: Store, path: str | Path, format: str | None = None, view: str = "records") -> int:
    """Write a view or table to a file; returns the number of rows.

    An existing file is replaced once the new one is complete.

    Args:
        store: The database.
        path: The file.
        format: `csv`, `jsonl` (JSON lines) or `parquet`; by default the one of the file's ending.
        view: A view or table.

    Raises:
        InputError: The ending is unknown, or the path cannot be written.
        ToolchainError: The package for Parquet is missing.
    """
    path = Path(path)
    chosen = format or FORMATS.get(path.suffix.lower())
    if chosen is None or chosen not in FORMATS.values():
        raise InputError(
            f"export to '{path}': '{format or path.suffix}' is no known format; name a file that ends in "
            f"{', '.join(FORMATS)}"
        )
    if not _is_name(view):
        raise UnknownNameError("view or table", view, _names())
    with replacing(path, f"export to '{path}' failed") as partial_path:
        return (
            _write_parquet(store, partial_path, view)
            if chosen == "parquet"
            else _write_text(store, partial_path, view, chosen)
        )


def _write_text(store: Store, path: Path, view: str, format: str) -> int:
    def work(connection: Connection) -> int:
        with (
            path.open("w", encoding="utf-8", newline="") as file,
            _running(store.database, connection, f"SELECT * FROM {view}") as (columns, batches),
        ):
            writer = csv.writer(file)
            if format == "csv":
                writer.writerow(columns)
            count = 0
            for batch in batches:
                count += len(batch)
                if format == "csv":
                    writer.writerows(batch)
                else:
                    file.writelines(json.dumps(_as_object(columns, row)) + "\n" for row in batch)
            return count

    return store.database.read(work, roll_back=True)


def _write_parquet(store: Store, path: Path, view: str) -> int:
    require_extra("parquet", "an export to .parquet (.csv and .jsonl need no package)")
    table = frame(store, view)
    table.to_parquet(path, index=False)
    return len(table)


def _as_object(columns: Sequence[str], row: Sequence[Any]) -> dict[str, Any]:
    """A row for JSON: columns of JSON are decoded, times become text."""
    values = dict(zip(columns, row, strict=True))
    for name, value in values.items():
        if name in JSON_COLUMNS and isinstance(value, str):
            values[name] = json.loads(value)
        elif isinstance(value, datetime):
            values[name] = value.isoformat(" ")
    return values


@contextmanager
def _running(
    database: Database, connection: Connection, sql: str
) -> Iterator[tuple[list[str], Iterator[list[tuple[Any, ...]]]]]:
    """Run `sql`; yields its columns and an iterator over batches of rows."""
    try:
        cursor, description = database.backend.start_query(connection, sql)
        if not description:
            raise InputError(f"query '{sql.strip()[:60]}' returns no rows; write one SELECT")
        yield [column[0] for column in description], iter(lambda: cursor.fetchmany(_CHUNK), [])
    except Exception as error:
        reason = faults.statement_fault(error)
        if reason is None:
            raise
        raise InputError(
            f"query refused: {reason}; write one reading statement over {', '.join(VIEWS)} or the tables"
        ) from error
    finally:
        database.backend.end_query(connection)


def _statement(view_or_sql: str) -> str:
    if _is_name(view_or_sql):
        return f"SELECT * FROM {view_or_sql}"
    if view_or_sql.strip().isidentifier():
        raise UnknownNameError("view or table", view_or_sql.strip(), _names())
    return view_or_sql


def _names() -> list[str]:
    return [*VIEWS, *schema.metadata.tables]


def _is_name(name: str) -> bool:
    return name in _names()


def _count_by(connection: Connection, column: Any) -> dict[str, int]:
    rows = connection.execute(select(column, func.count()).group_by(column).order_by(column))
    return {str(name): int(count) for name, count in rows}
