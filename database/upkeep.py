"""Is a database whole, and a copy of it that is: for `tilesight db check` and `backup`."""

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

from ..errors import DatabaseCorruptError, DatabaseError, InputError
from ..out_file import replacing
from . import schema, sqlite
from .faults import UnsoundRecordError
from .fields import FieldError, read_row
from .readable import copy_file
from .soundness import Soundness
from .store import Store
from .strict_json import StrictJsonError, parse, shown
from .transfer import plain
from .views import VIEWS

MOST_SHOWN = 5  # faults of one table that are told in full
_CHUNK = 500
_BESIDE = ("-wal", "-shm", "-journal")  # what SQLite keeps beside a file, and finds by the file's name alone
_LOGS = ("-wal", "-journal")  # of these, what is read into it
_FREE_S = 2.0  # others who only look at a file are done with it by then


@dataclass(frozen=True, slots=True)
class Checked:
    """What a check found. `faults` are sentences; of many alike in one table the first few, and then how many more."""

    rows: dict[str, int]  # that were looked at, by table
    faults: tuple[str, ...]


def check(store: Store) -> Checked:
    """Whether the file is whole, views exist, JSON can be read, references lead somewhere, ids are those of the content, and
    statuses agree with what they refer to. Raises a `DatabaseError` only where nothing can be read at all."""

    def work(connection: Connection) -> Checked:
        faults = list(_of_file(connection))
        faults += _of_views(connection)
        rows: Counter[str] = Counter()
        faults += _of_rows(connection, rows)
        return Checked(dict(rows), tuple(faults))

    return store.database.read(work, trusted=False)


def backup(store: Store, path: str | Path) -> int:
    """A consistent copy of an SQLite database, whoever writes meanwhile; returns its size in bytes.

    An existing file is replaced, and only once the new one is whole. Raises `InputError` for a server's database, which its
    own tools copy, for a path that will not do, and for an existing WAL database that some process has open.
    """
    path, url = Path(path), store.database.url
    file = sqlite.file_of(url)
    if file is None:
        ways = "pg_dump --format=custom" if url.get_backend_name() == "postgresql" else "open a file instead"
        raise InputError(
            f"backup copies SQLite files; '{store.name}' is none: {ways}, or write all records: "
            "tilesight db export everything.jsonl --everything"
        )
    if path.exists() and file.exists() and path.samefile(file):
        raise InputError(f"backup to '{path}': that is the database itself; name another file")
    for ending in _BESIDE:
        if path.name.endswith(ending):
            of = path.name.removesuffix(ending)
            raise InputError(f"backup to '{path}': SQLite takes a file that ends in {ending} for a part of '{of}'; name another file")
    # entered last and left last: it holds the old file until the new one is in its place
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
        raise InputError(f"backup to '{path}' failed: {error}; name a file in a folder that exists and has space") from error


def _check_copy(name: str, path: Path, partial_path: Path) -> None:
    """Raise a `DatabaseError` where the copy is damaged, or holds nothing: an empty file is a sound database to SQLite."""
    try:
        with closing(sqlite3.connect(partial_path)) as copy:
            found = copy.execute("PRAGMA quick_check(1)").fetchone()[0]
            versions = copy.execute(f"SELECT COUNT(*) FROM {schema.VERSION_TABLE}").fetchone()[0]
    except sqlite3.Error as error:
        raise DatabaseError(
            f"backup to '{path}' failed: the copy cannot be read again ({error}); run it again, or name a file on another disk"
        ) from error
    if found != "ok" or versions != 1:
        reason = shown(found) if found != "ok" else f"its table {schema.VERSION_TABLE} has {versions} rows, not one"
        raise DatabaseCorruptError(f"database '{name}' is damaged ({reason}): its copy is no use; see tilesight db check")


@contextmanager
def _out_of_use(path: Path) -> Iterator[None]:
    """Inside, the file may be replaced by another: no process has it open as a database, and no log of it lies beside it.

    A log that stayed would be read into the new file, and a process that has the old one open would write into such a log.
    Processes that were killed, or might only read, leave theirs behind: nobody has such a file open, so SQLite puts the log into
    it and removes it. Raises `InputError`.
    """
    beside = _log_of(path)
    if beside is None:
        yield
        return
    way_out = f"remove '{beside}' once no process has that database open, or name another file"
    if path.is_symlink() or not path.exists():
        raise InputError(f"backup to '{path}': the log '{beside}' of another database is there, and would be read into the copy; {way_out}")
    reason = "it is of another"
    with ExitStack() as opened:
        try:
            uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=rw"
            old = opened.enter_context(closing(sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None)))
            _take(old)
        except sqlite3.Error as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                raise InputError(
                    f"backup to '{path}': a process has that database open, and would write into the copy; end it, or name another file"
                ) from error
            reason = str(error)
        else:
            if _log_of(path) is None:
                yield
                return
    if _log_of(path) is not None:  # SQLite may have removed one that is worth nothing only now
        raise InputError(f"backup to '{path}': the log '{beside}' cannot be put into the file that is there ({reason}); {way_out}")
    yield


def _take(old: sqlite3.Connection) -> None:
    """Have the database alone, its log in it and gone. SQLite leaves the write-ahead log only where nobody else is connected."""
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
    """SQLite's own checks. A PostgreSQL server holds references and types itself."""
    if connection.dialect.name != "sqlite":
        return
    try:
        for (found,) in connection.exec_driver_sql("PRAGMA integrity_check(20)"):
            if found != "ok":
                yield f"the file is damaged: {shown(found)}"
        lost = Counter((table, parent) for table, _, parent, _ in connection.exec_driver_sql("PRAGMA foreign_key_check"))
    except exc.DatabaseError as error:
        yield f"the file is damaged: {_damage(error)}"
        return
    for (table, parent), count in sorted(lost.items()):
        yield f"{table}: {count} rows refer to rows of {parent} that are not there"


def _damage(error: exc.DatabaseError) -> str:
    """What SQLite says of damaged pages; raises what is no damage, e.g. a lock, again."""
    if type(error.orig) is not sqlite3.DatabaseError:
        raise error
    return str(error.orig)


def _of_views(connection: Connection) -> Iterator[str]:
    for view in VIEWS:
        try:
            with connection.begin_nested():
                connection.execute(text(f"SELECT * FROM {view} LIMIT 1")).all()
        except Exception as error:  # each driver has its own
            yield f"view {view} does not work: {shown(str(getattr(error, 'orig', error)))}"


def _of_rows(connection: Connection, rows: Counter[str]) -> Iterator[str]:
    known = Soundness()
    for table in schema.metadata.sorted_tables:
        found = _Faults(table)
        # JSON as text: one row that cannot be read must not keep the others from being looked at
        columns = [cast(column, Text).label(column.name) if isinstance(column.type, JSON) else column for column in table.c]
        names = {column.name for column in table.c if isinstance(column.type, JSON)}
        statement = select(*columns).order_by(*table.primary_key.columns)
        try:
            for row in connection.execution_options(yield_per=_CHUNK).execute(statement).mappings():
                rows[table.name] += 1
                fault = _fault_of(dict(row), names, known, table)
                if fault is not None:
                    found.add(fault, row)
        except (UnsoundRecordError, ValueError, TypeError) as error:  # a time that is none
            found.add(f"a value is of another type ({error}); the rows after it were not looked at", {})
        except exc.DatabaseError as error:
            found.add(f"rows cannot be read ({_damage(error)}); those after them were not looked at", {})
        yield from found.told()


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
    except KeyError as error:  # what it refers to was found to be wrong before
        return f"it refers to a row that is not sound: {error}"
    if table is schema.trials and stored["measured_us"] != read["measured_us"]:
        return f"trials.measured_us={stored['measured_us']} is not the time of its measurement ({read['measured_us']})"
    return None


class _Faults:
    """Those of one table: the first few, and how many more."""

    def __init__(self, table: Table) -> None:
        self._table, self._told, self._more = table.name, list[str](), 0
        self._key = [column.name for column in table.primary_key.columns]

    def add(self, fault: str, row: Any) -> None:
        if len(self._told) == MOST_SHOWN:
            self._more += 1
            return
        key = [f"{name}={row[name]}" for name in self._key if name in row]
        self._told.append(f"{' '.join([self._table, *key])}: {fault}")

    def told(self) -> list[str]:
        return [*self._told, *([f"{self._table}: {self._more} more rows like these"] if self._more else [])]
