"""Checks of a database, and backups: `tilesight db check` and `tilesight db backup`."""

from __future__ import annotations

import os
import sqlite3
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import JSON, Connection, Table, Text, cast, exc, select, text
from sqlalchemy.engine import URL

from ...errors import DatabaseCorruptError, DatabaseError, InputError
from ...files import replacing
from ..engine import sqlite
from ..engine.faults import UnsoundRecordError
from ..exchange.json_lines import plain
from ..exchange.row_fields import FieldError, read_row
from ..exchange.soundness import Soundness
from ..readable import copy_file
from ..schema import tables as schema
from ..schema.views import VIEWS
from ..store import Store
from ..tables.strict_json import StrictJsonError, parse, shown

MOST_SHOWN = 5  # faults that are listed for one table; the others are counted
_CHUNK = 500
_BESIDE = ("-wal", "-shm", "-journal")  # endings of files that SQLite keeps beside a database
_LOGS = ("-wal", "-journal")  # of these, the files that SQLite reads into the database
_FREE_S = 2.0  # how long a backup waits for readers of the old file


@dataclass(frozen=True, slots=True)
class Checked:
    """The result of a check.

    `faults` are sentences: for each table the first few, and the number of the others.
    """

    rows: dict[str, int]  # number of checked rows, by table
    faults: tuple[str, ...]


def check(store: Store) -> Checked:
    """Check the file, its views, and every row: JSON, references, ids and values that follow from others.

    Raises `DatabaseError` only if nothing can be read.
    """

    def work(connection: Connection) -> Checked:
        faults = list(_of_file(connection))
        faults += _of_views(connection)
        rows: Counter[str] = Counter()
        faults += _of_rows(connection, rows)
        return Checked(dict(rows), tuple(faults))

    return store.database.read(work, roll_back=True)


def backup(store: Store, path: str | Path) -> int:
    """Copy an SQLite database as it is at one moment, while others may write; returns the copy's size in
    bytes.

    An existing file is replaced once the new one is complete. Raises `InputError` for a database on a server,
    for a path that cannot be written, and for an existing database that a process has open.
    """
    path, url = Path(path), store.database.url
    file = sqlite.file_of(url)
    if file is None:
        ways = "pg_dump --format=custom" if url.get_backend_name() == "postgresql" else "open a file instead"
        raise InputError(
            f"backup copies SQLite files; '{store.name}' is not one: {ways}, or write all records: "
            "tilesight db export everything.jsonl --everything"
        )
    if path.exists() and file.exists() and path.samefile(file):
        raise InputError(f"backup to '{path}': that is the database itself; name another file")
    for ending in _BESIDE:
        if path.name.endswith(ending):
            of = path.name.removesuffix(ending)
            raise InputError(
                f"backup to '{path}': SQLite takes a file that ends in {ending} for a part of '{of}'; name "
                "another file"
            )
    # entered last and left last: the old file stays locked until the new one has replaced it
    with ExitStack() as held, replacing(path, f"backup to '{path}' failed") as partial_path:
        try:
            _copy(url, path, partial_path)
            _check_copy(store.name, path, partial_path)
        finally:
            for ending in _BESIDE:
                partial_path.with_name(partial_path.name + ending).unlink(missing_ok=True)
        size = partial_path.stat().st_size
        held.enter_context(_out_of_use(path))
    return size


def _copy(url: URL, path: Path, partial_path: Path) -> None:
    try:
        copy_file(url, partial_path)
    except DatabaseCorruptError:
        raise
    except DatabaseError as error:
        raise InputError(
            f"backup to '{path}' failed: {error}; name a file in a folder that exists and has space"
        ) from error


def _check_copy(name: str, path: Path, partial_path: Path) -> None:
    """Raise a `DatabaseError` if the copy is damaged or empty; SQLite takes an empty file for a valid
    database."""
    try:
        with closing(sqlite3.connect(partial_path)) as copy:
            found = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
            versions = copy.execute(f"SELECT COUNT(*) FROM {schema.VERSION_TABLE}").fetchone()[0]
    except sqlite3.Error as error:
        raise DatabaseError(
            f"backup to '{path}' failed: the copy cannot be read again ({error}); run it again, or name a "
            "file on another disk"
        ) from error
    if found != "ok" or versions != 1:
        reason = (
            shown(found)
            if found != "ok"
            else f"its table {schema.VERSION_TABLE} has {versions} rows, not one"
        )
        raise DatabaseCorruptError(
            f"database '{name}' is damaged ({reason}): its copy is no use; see tilesight db check"
        )


@contextmanager
def _out_of_use(path: Path) -> Iterator[None]:
    """Lock the file so that it can be replaced: no process has it open, and no log is beside it.

    Raises `InputError`.

    SQLite would read a remaining log into the new file, and a process that has the old file open would write
    into the log. A log that a killed or read-only process left behind is first moved into the old file.
    """
    beside = _log_of(path)
    if beside is None:
        yield
        return
    way_out = f"remove '{beside}' once no process has that database open, or name another file"
    if path.is_symlink() or not path.exists():
        raise InputError(
            f"backup to '{path}': the log '{beside}' of another database is there, and would be read into "
            f"the copy; {way_out}"
        )
    reason = "it is of another"
    with ExitStack() as opened:
        try:
            uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=rw"
            old = opened.enter_context(
                closing(sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None))
            )
            _take(old)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise InputError(
                    f"backup to '{path}': a process has that database open, and would write into the copy; "
                    "end it, or name another file"
                ) from error
            reason = str(error)
        else:
            if _log_of(path) is None:
                yield
                return
    if _log_of(path) is not None:  # SQLite may have removed an empty one
        raise InputError(
            f"backup to '{path}': the log '{beside}' cannot be put into the file that is there ({reason}); "
            f"{way_out}"
        )
    yield


def _take(old: sqlite3.Connection) -> None:
    """Lock the database and move its log into it, which SQLite does only if no other process is connected."""
    until = time.monotonic() + _FREE_S
    while True:
        try:
            old.execute("PRAGMA journal_mode=DELETE")
            old.execute("BEGIN EXCLUSIVE")
            return
        except sqlite3.OperationalError:
            if time.monotonic() > until:
                raise
            time.sleep(0.05)


def _log_of(path: Path) -> Path | None:
    logs = (path.with_name(path.name + ending) for ending in _LOGS)
    return next((log for log in logs if os.path.lexists(log)), None)


def _of_file(connection: Connection) -> Iterator[str]:
    """SQLite's own checks. A PostgreSQL server enforces references and types."""
    if connection.dialect.name != "sqlite":
        return
    try:
        for (found,) in connection.exec_driver_sql("PRAGMA integrity_check(20)"):
            if found != "ok":
                yield f"the file is damaged: {shown(found)}"
        lost = Counter(
            (table, parent) for table, _, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check")
        )
    except exc.DatabaseError as error:
        yield f"the file is damaged: {_damage(error)}"
        return
    for (table, parent), count in sorted(lost.items()):
        yield f"{table}: {count} rows refer to rows of {parent} that are not there"


def _damage(error: exc.DatabaseError) -> str:
    """SQLite's message on damaged pages; other errors, such as a lock, are raised again."""
    if type(error.orig) is not sqlite3.DatabaseError:
        raise error
    return str(error.orig)


def _of_views(connection: Connection) -> Iterator[str]:
    for view in VIEWS:
        try:
            with connection.begin_nested():
                connection.execute(text(f"SELECT * FROM {view} LIMIT 1")).all()
        except Exception as error:  # each driver has its own errors
            yield f"view {view} does not work: {shown(str(getattr(error, 'orig', error)))}"


def _of_rows(connection: Connection, rows: Counter[str]) -> Iterator[str]:
    known = Soundness()
    for table in schema.metadata.sorted_tables:
        found = _Faults(table)
        # JSON as text, so that rows after an invalid one are still checked
        columns = [
            cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column
            for column in table.c
        ]
        names = {column.name for column in table.c if isinstance(column.type, JSON)}
        statement = select(*columns).order_by(*table.primary_key.columns)
        try:
            for row in connection.execution_options(yield_per=_CHUNK).execute(statement).mappings():
                rows[table.name] += 1
                fault = _fault_of(dict(row), names, known, table)
                if fault is not None:
                    found.add(fault, row)
        except (UnsoundRecordError, ValueError, TypeError) as error:  # an invalid time
            found.add(f"a value is of another type ({error}); the rows after it were not looked at", {})
        except exc.DatabaseError as error:
            found.add(f"rows cannot be read ({_damage(error)}); those after them were not looked at", {})
        yield from found.sentences()


def _fault_of(row: dict[str, Any], json_names: set[str], known: Soundness, table: Table) -> str | None:
    try:
        for name in json_names:
            if row[name] is not None:
                row[name] = parse(row[name].encode("utf-8", "surrogatepass"))
        stored = dict(row)
        read = read_row(table, plain(row))
        known.check(table, read)
    except StrictJsonError as error:
        return f"JSON cannot be read: {error}"
    except FieldError as error:
        return str(error)
    except KeyError as error:  # it refers to a row that was found to be invalid
        return f"it refers to a row that is not sound: {error}"
    if table is schema.trials and stored["measured_us"] != read["measured_us"]:
        return (
            f"trials.measured_us={stored['measured_us']} is not the time of its measurement "
            f"({read['measured_us']})"
        )
    return None


class _Faults:
    """The faults of one table: the first few, and the number of the others."""

    def __init__(self, table: Table) -> None:
        self._table, self._listed, self._more = table.name, list[str](), 0
        self._key = [column.name for column in table.primary_key.columns]

    def add(self, fault: str, row: Any) -> None:
        if len(self._listed) == MOST_SHOWN:
            self._more += 1
            return
        key = [f"{name}={row[name]}" for name in self._key if name in row]
        self._listed.append(f"{' '.join([self._table, *key])}: {fault}")

    def sentences(self) -> list[str]:
        return [*self._listed, *([f"{self._table}: {self._more} more rows like these"] if self._more else [])]
