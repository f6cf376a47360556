"""Databases that are only read: layers, and sources of a merge.

Older ones are read through a migrated copy.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import sqlite3
from pathlib import Path
from typing import cast

from sqlalchemy.engine import URL

from ..errors import DatabaseError, DatabaseVersionError
from .engine import faults, sqlite
from .engine.connection import parse_url
from .schema import migrate
from .schema import tables as schema
from .store import BUSY_SECONDS, Store, open_store


def open_readable(
    url: str | URL, what: str, way_out: str, cache_dir: Path, busy_seconds: float = BUSY_SECONDS
) -> Store:
    """Open a database for reading.

    A file of an older TileSight is not changed: a copy in `cache_dir` is migrated and read.

    Args:
        url: The database.
        what: What the database is, at the beginning of error messages.
        way_out: What the user can do, at the end of error messages.
        cache_dir: For migrated copies. A copy is used until its file changes.
        busy_seconds: How long calls wait for locks.

    Raises:
        DatabaseError: The database is missing, damaged, of a newer TileSight, or of an older one and on a
        server.
    """
    parsed = parse_url(url) if isinstance(url, str) else url
    name = faults.display_name(parsed)
    path = sqlite.file_of(parsed)
    if path is not None and not path.exists():
        raise DatabaseError(f"{what} '{name}' is not there; {way_out}")
    try:
        return open_store(parsed, read_only=True, busy_seconds=busy_seconds)
    except DatabaseVersionError as error:
        # a database of a newer TileSight cannot be migrated
        if path is None or _is_newer(parsed, name):
            raise DatabaseVersionError(f"{what}: {error}; {way_out}") from error
        try:
            return _open_copy(path, name, cache_dir, busy_seconds)
        except (OSError, DatabaseError) as cause:
            raise DatabaseVersionError(
                f"{what} '{name}' is of an older TileSight and no migrated copy of it can be made in "
                f"'{cache_dir}' ({cause}); "
                "give it a TILESIGHT_CACHE_DIR that can be written, or migrate the file itself: tilesight "
                f"db status --db '{name}'"
            ) from cause
    except DatabaseError as error:
        raise type(error)(f"{what}: {error}; {way_out}") from error


def _is_newer(url: URL, name: str) -> bool:
    with faults.translated(url):
        engine = sqlite.make_engine(url, read_only=True)
        try:
            with engine.connect() as connection:
                return migrate.revision(connection, name) not in schema.REVISIONS
        finally:
            engine.dispose()


def _open_copy(path: Path, name: str, cache_dir: Path, busy_seconds: float) -> Store:
    folder = cache_dir / "layers"
    of_path = hashlib.sha256(os.fsencode(path.absolute())).hexdigest()[:16]
    copy = folder / f"{of_path}-{_state_of(path)}-{schema.HEAD}.db"
    if not copy.exists():
        folder.mkdir(parents=True, exist_ok=True)
        _make_copy(path, copy, busy_seconds)
        for outdated in folder.glob(f"{of_path}-*.db"):
            if outdated != copy:
                outdated.unlink(missing_ok=True)
    store = open_store(str(copy), read_only=True, busy_seconds=busy_seconds)
    store.database.name = name  # messages and winners name the user's file
    return store


def _state_of(path: Path) -> str:
    """16 hex digits that change with the file or its log."""
    stats = [file.stat() for file in (path, path.with_name(path.name + "-wal")) if file.exists()]
    return hashlib.sha256(repr([(stat.st_size, stat.st_mtime_ns) for stat in stats]).encode()).hexdigest()[
        :16
    ]


def _make_copy(path: Path, copy: Path, busy_seconds: float) -> None:
    partial_path = copy.with_name(f"{copy.stem}.{os.getpid()}-{secrets.token_hex(4)}.db")
    url = URL.create("sqlite", database=str(path))
    try:
        copy_file(url, partial_path)
        open_store(str(partial_path), busy_seconds=busy_seconds).close()  # migrates
        os.replace(partial_path, copy)  # several processes may do this at once; their copies are equal
    finally:
        for suffix in ("", "-wal", "-shm", "-journal"):
            partial_path.with_name(partial_path.name + suffix).unlink(missing_ok=True)


def copy_file(url: URL, out: Path) -> None:
    """Copy an SQLite database as it is at one moment, while others may write.

    `out` must be missing or empty.
    """
    with faults.translated(url):
        engine = sqlite.make_engine(url, read_only=True)
        try:
            raw = engine.raw_connection()
            with faults.translated(URL.create("sqlite", database=str(out))):
                target = sqlite3.connect(out)
                try:
                    cast(sqlite3.Connection, raw.driver_connection).backup(target)
                finally:
                    target.close()
            raw.close()
        finally:
            engine.dispose()
