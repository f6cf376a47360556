"""All that is particular to SQLite: opening, pragmas, locking, reading statements of the user."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import time
import weakref
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from sqlalchemy import Connection, DateTime, Dialect, Engine, create_engine, event
from sqlalchemy.dialects.sqlite import DATETIME
from sqlalchemy.dialects.sqlite import insert as sqlite_insert
from sqlalchemy.engine import URL
from sqlalchemy.pool import NullPool, StaticPool

from ...errors import DatabaseError, DatabaseReadOnlyError
from . import faults
from .text_checks import json_of, json_text

insert = sqlite_insert

STEPS = 10_000  # of SQLite's machine between two looks at the time
# The driver waits in C, where Ctrl-C has to wait too: so it waits briefly, and the caller tries again.
_WAIT_MS = 250
_CACHE_KIB = 32 * 1024
_LONGEST_VALUE = 16 << 20  # bytes of a value in a query of the user's
_QUERY_PRAGMAS = ("table_info", "table_xinfo", "table_list", "index_list", "index_info", "foreign_key_list")


def file_of(url: URL) -> Path | None:
    """The database file; None for a server, a database in memory and a `file:` URI."""
    name = url.database or ":memory:"
    if url.get_backend_name() != "sqlite" or name == ":memory:" or name.startswith("file:"):
        return None
    return Path(name)


def is_blank(path: Path) -> bool:
    """Whether the database has no table yet, as one that a process is just making."""
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True)) as probe:
            return probe.execute("SELECT 1 FROM sqlite_master").fetchone() is None
    except sqlite3.Error:
        return False  # its first use raises an error


def make_engine(url: URL, *, read_only: bool, busy_seconds: float = 30.0) -> Engine:
    """An engine for an SQLite database.

    Creates the folder of a new file unless `read_only`. Statements wait for a lock only briefly; callers must
    try again.
    """
    path = file_of(url)
    options: dict[str, Any] = {}
    copy: Path | None = None
    if path is not None:
        _check_place(path, read_only=read_only)
        if read_only and _needs_index_file(path):
            copy = _copied_log(path)
            url = _read_only_url(copy or path, is_immutable=copy is None)
            # SQLite looks for no changes of an immutable file: each transaction opens it anew
            options = {"poolclass": NullPool}
        elif read_only:
            url = _read_only_url(path)
    elif not url.database or url.database == ":memory:":
        # one connection: each further one would open another empty database
        options = {"poolclass": StaticPool, "connect_args": {"check_same_thread": False}}
    engine = create_engine(url, json_serializer=json_text, json_deserializer=json_of, **options)
    engine.dialect.colspecs = {**engine.dialect.colspecs, DateTime: _Moment}
    event.listen(engine, "connect", partial(_configure, min(_WAIT_MS, round(1000 * busy_seconds))))
    event.listen(engine, "begin", _begin)
    if copy is not None:
        weakref.finalize(engine, _remove_copy, copy.parent, os.getpid())
    return engine


def use_wal(engine: Engine) -> None:
    """Switch to a write-ahead log, which lets others read during a write.

    File systems that cannot do that keep the journal.
    """
    raw = engine.raw_connection()
    try:
        cursor = raw.cursor()
        if cursor.execute("PRAGMA journal_mode").fetchone()[0] not in ("wal", "memory"):
            cursor.execute("PRAGMA journal_mode=WAL")
    finally:
        raw.close()


def check_server(connection: Connection, name: str) -> None:
    """Nothing to check: there is no server."""


def lock_schema(connection: Connection) -> None:
    """Nothing to do: BEGIN IMMEDIATE locks the whole database."""


def session_of(connection: Connection) -> None:
    """None: there is no server whose sessions could outlive their connections."""


def end_session(connection: Connection, session: None) -> None:
    """Nothing to do."""


def size_bytes(connection: Connection) -> int:
    pages = connection.exec_driver_sql("PRAGMA page_count").scalar_one()
    return int(pages) * int(connection.exec_driver_sql("PRAGMA page_size").scalar_one())


@contextmanager
def selecting(
    connection: Connection, sql: str, seconds: float | None
) -> Iterator[tuple[list[str], Iterator[tuple[Any, ...]]]]:
    """The columns and rows of one statement that reads.

    SQLite holds every limit: its authorizer refuses all other statements, the connection writes nothing
    meanwhile, and the statement is ended when its time is over. The time is looked at between the steps of a
    statement, and one step handles one value, so values are short.

    Args:
        connection: In a transaction.
        sql: The statement.
        seconds: The time limit; None for a trusted statement, which has no limits.
    """
    driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment]
    limits = nullcontext() if seconds is None else _limited(driver, seconds)
    with limits, closing(driver.execute(sql)) as cursor:
        yield [column[0] for column in cursor.description or ()], cursor


@contextmanager
def limited(connection: Connection, seconds: float) -> Iterator[None]:
    """End statements of the block once it has taken `seconds`; for our own statements, which are trusted."""
    driver: sqlite3.Connection = connection.connection.driver_connection  # type: ignore[assignment]
    end = time.monotonic() + seconds
    driver.set_progress_handler(lambda: time.monotonic() > end, STEPS)
    try:
        yield
    finally:
        driver.set_progress_handler(None, 0)


@contextmanager
def _limited(driver: sqlite3.Connection, seconds: float) -> Iterator[None]:
    end = time.monotonic() + seconds
    longest = driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE)
    driver.execute("PRAGMA query_only=ON")
    driver.set_authorizer(_authorize)
    # the callback also lets Python handle Ctrl-C, which ends the statement
    driver.set_progress_handler(lambda: time.monotonic() > end, STEPS)
    try:
        yield
    finally:
        driver.set_authorizer(None)
        driver.set_progress_handler(None, 0)
        driver.execute("PRAGMA query_only=OFF")
        driver.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, longest)


class _Moment(DATETIME):
    """A column of times; SQLite may return any value."""

    def result_processor(self, dialect: Dialect, coltype: object) -> Any:
        read: Any = super().result_processor(dialect, coltype)

        def process(value: Any) -> Any:
            try:
                return read(value)
            except (ValueError, TypeError) as error:
                raise faults.UnsoundRecordError(f"a time: {error}") from error

        return process


def _configure(wait_ms: int, driver: sqlite3.Connection, _record: object) -> None:
    driver.isolation_level = None  # only `_begin` begins transactions
    driver.execute(f"PRAGMA busy_timeout={wait_ms}")
    driver.execute("PRAGMA foreign_keys=ON")
    # a commit survives a crash of the process at once, a power cut after the next checkpoint; the file stays
    # intact
    driver.execute("PRAGMA synchronous=NORMAL")
    # ids of facts are hashes, so each commit changes many pages: rare checkpoints write a page once for many
    # commits
    driver.execute("PRAGMA wal_autocheckpoint=4000")
    driver.execute(f"PRAGMA cache_size=-{_CACHE_KIB}")


def _begin(connection: Connection) -> None:
    # a transaction that reads before it writes cannot wait for another writer: lock at once
    writes = connection.get_execution_options().get("tilesight_writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _authorize(
    action: int, first: str | None, second: str | None, _database: str | None, _source: str | None
) -> int:
    if action in (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE):
        return sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_FUNCTION:
        return sqlite3.SQLITE_DENY if second == "load_extension" else sqlite3.SQLITE_OK
    if action == sqlite3.SQLITE_PRAGMA and first in _QUERY_PRAGMAS:
        return sqlite3.SQLITE_OK
    return sqlite3.SQLITE_DENY


def _check_place(path: Path, *, read_only: bool) -> None:
    """Raise errors that name the fault of a path; SQLite has the same message for all of them."""
    try:
        if path.is_dir():
            raise DatabaseError(
                f"database '{path}' is a folder; name a file in it, e.g. --db sqlite:///{path}/performance.db"
            )
        if path.exists():
            with path.open("rb"):
                return
        if read_only:
            raise DatabaseError(
                f"there is no database at '{path}' yet; `tilesight tune` makes it, or name another with --db"
            )
        path.parent.mkdir(parents=True, exist_ok=True)
    except PermissionError as error:
        raise DatabaseReadOnlyError(
            f"database '{path}' is not accessible ({error.strerror}); change its permissions, or use --db"
        ) from error
    except (FileExistsError, NotADirectoryError) as error:
        raise DatabaseError(
            f"database '{path}' cannot be made: '{error.filename}' is a file, not a folder; use another path"
        ) from error
    except (OSError, ValueError) as error:
        if getattr(error, "strerror", "") == "No space left on device":
            raise faults.full(str(path), str(error)) from error
        if getattr(error, "strerror", "") == "Read-only file system":
            raise faults.read_only(str(path), str(error)) from error
        raise DatabaseError(
            f"database '{path}' cannot be made ({error}); use another path with --db"
        ) from error


def _read_only_url(path: Path, *, is_immutable: bool = False) -> URL:
    query = {"mode": "ro", "uri": "true", **({"immutable": "1"} if is_immutable else {})}
    return URL.create("sqlite", database=f"file:{quote(os.fsencode(path.absolute()))}", query=query)


def _needs_index_file(path: Path) -> bool:
    """Whether a database with a write-ahead log lies in a folder where its index file cannot be made."""
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=ro"
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=0)) as probe:
            probe.execute("SELECT 1 FROM sqlite_master")
    except sqlite3.OperationalError as error:
        return getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY"))
    except (sqlite3.DatabaseError, UnicodeDecodeError):
        pass  # damaged: its first use raises an error
    return False


def _copied_log(path: Path) -> Path | None:
    """A temporary copy of the database with the log that a killed process left; None if it left none.

    SQLite reads a log by its index file only.
    """
    log = path.with_name(path.name + "-wal")
    if not (log.exists() and log.stat().st_size):
        return None
    folder = Path(tempfile.mkdtemp(prefix="tilesight-"))
    try:
        for file in (path, log):
            shutil.copyfile(file, folder / file.name)
    except OSError as error:
        shutil.rmtree(folder, ignore_errors=True)
        raise DatabaseError(
            f"database '{path}' has the log of a killed process, which can be read here in a copy only, and "
            f"none can be made in '{folder}' ({error.strerror}); make the database's folder writable, or set "
            "TMPDIR"
        ) from error
    return folder / path.name


def _remove_copy(folder: Path, process: int) -> None:
    if os.getpid() == process:  # not at the end of a forked child
        shutil.rmtree(folder, ignore_errors=True)
