"""Reading SQL over the database, and export of views to files."""

from __future__ import annotations

import csv
import json
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
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
from ..engine.text_checks import refused_text
from ..schema import migrate
from ..schema import tables as schema
from ..schema.views import JSON_COLUMNS, VIEWS
from ..store import Store, open_store
from ..tables.trial_rows import sound

if TYPE_CHECKING:
    import pandas as pd

FORMATS = {".csv": "csv", ".jsonl": "jsonl", ".ndjson": "jsonl", ".parquet": "parquet"}
QUERY_SECONDS = 60.0
_MOST_SECONDS = 1e6
_MOST_BYTES = 256 << 20  # of the values of an answer


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


def query(
    store: Store, sql: str, *, seconds: float = QUERY_SECONDS
) -> tuple[list[str], list[tuple[Any, ...]]]:
    """The columns and rows of one reading statement; JSON is text.

    The database itself keeps the statement from writing and ends it after `seconds`; see `selecting` of its
    module in `engine`.

    Raises:
        InputError: The SQL is invalid, writes, takes too long, or its answer is larger than 256 MB.
        DatabaseError: The role of a PostgreSQL server has rights that no transaction restrains.
    """
    if (reason := refused_text(sql)) is not None:
        raise _refused(reason)
    if not 0 < seconds <= _MOST_SECONDS:
        raise InputError(
            f"query: a time limit of {seconds:g} s must be above 0 and at most {_MOST_SECONDS:g} s"
        )
    end = time.monotonic() + seconds

    def work(connection: Connection) -> tuple[list[str], list[tuple[Any, ...]]]:
        try:
            with store.database.backend.selecting(connection, sql, seconds) as (columns, rows):
                if not columns:
                    raise InputError(f"query '{sql.strip()[:60]}' returns no rows; write one SELECT")
                return columns, list(_bounded(rows))
        except Exception as error:
            if faults.is_stopped(error) and time.monotonic() >= end:
                raise InputError(
                    f"query '{sql.strip()[:60]}' took longer than {seconds:g} s and was ended; ask for less, "
                    "e.g. with WHERE, or give it more time: --timeout SECONDS"
                ) from error
            if (reason := faults.statement_fault(error)) is not None:
                raise _refused(reason) from error
            raise

    return store.database.read(work, roll_back=True)


def _bounded(rows: Iterable[tuple[Any, ...]]) -> Iterator[tuple[Any, ...]]:
    size = 0
    for row in rows:
        size += sum(map(sys.getsizeof, row), sys.getsizeof(row))
        if size > _MOST_BYTES:
            raise InputError(
                f"query: its answer has more than {_MOST_BYTES >> 20} MB; ask for less with WHERE or LIMIT, "
                "or write a view or table to a file: tilesight db export FILE --view NAME"
            )
        yield row


def _refused(reason: str) -> InputError:
    return InputError(
        f"query refused: {reason}; write one reading statement over {', '.join(VIEWS)} or the tables"
    )


def _all_of(store: Store, view: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """A view or table, without the limits of a query: its statement is our own."""

    def work(connection: Connection) -> tuple[list[str], list[tuple[Any, ...]]]:
        with _selecting_all(store, connection, view) as (columns, rows):
            return columns, list(rows)

    return store.database.read(work)


def _selecting_all(store: Store, connection: Connection, view: str) -> Any:
    return store.database.backend.selecting(connection, f"SELECT * FROM {view}", None)


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
    read = _all_of if _is_name(view_or_sql) else query
    if view_or_sql.strip().isidentifier() and not _is_name(view_or_sql):
        raise UnknownNameError("view or table", view_or_sql.strip(), _names())
    if isinstance(source, Store):
        columns, rows = read(source, view_or_sql)
    else:
        with open_store(
            str(source) if source is not None else load_settings().database_url, read_only=True
        ) as store:
            columns, rows = read(store, view_or_sql)
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
            _selecting_all(store, connection, view) as (columns, rows),
        ):
            writer = csv.writer(file)
            if format == "csv":
                writer.writerow(columns)
            count = 0
            for count, row in enumerate(rows, 1):
                if format == "csv":
                    writer.writerow(row)
                else:
                    with sound(f"row {count} of {view}"):
                        line = json.dumps(_as_object(columns, row), allow_nan=False)
                    file.write(line + "\n")
            return count

    return store.database.read(work)


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


def _names() -> list[str]:
    return [*VIEWS, *schema.metadata.tables]


def _is_name(name: str) -> bool:
    return name in _names()


def _count_by(connection: Connection, column: Any) -> dict[str, int]:
    rows = connection.execute(select(column, func.count()).group_by(column).order_by(column))
    return {str(name): int(count) for name, count in rows}
