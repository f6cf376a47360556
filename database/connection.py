"""One open database: its engine, and transactions that wait for a lock, retry, and speak in TileSight's errors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, exc, make_url
from sqlalchemy.engine import URL

from ..errors import DatabaseBusyError, DatabaseError, DatabaseVersionError, InputError
from . import faults, migrate, postgresql, sqlite
from .schema import HEAD, VERSION_TABLE

T = TypeVar("T")

_BACKENDS: dict[str, ModuleType] = {"sqlite": sqlite, "postgresql": postgresql}
_FILE_ENDINGS = (".db", ".sqlite", ".sqlite3")


def parse_url(text: str) -> URL:
    """A SQLAlchemy URL; the path of an SQLite file (`runs/today.db`) will do too. Raises `InputError`."""
    if "://" not in text:
        if text.endswith(_FILE_ENDINGS) and "//" not in text and ":" not in text:
            return URL.create("sqlite", database=text)
        raise InputError(f"'{text}' is not a database URL; write e.g. sqlite:///{text or 'performance'}.db or postgresql://user@host/name")
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        raise InputError(f"'{text}' is not a database URL ({error}); write e.g. sqlite:////home/me/performance.db") from error
    if url.get_backend_name() not in _BACKENDS:
        raise InputError(
            f"database '{faults.display_name(url)}': '{url.get_backend_name()}' is not supported; use one of: {', '.join(_BACKENDS)}"
        )
    if url.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg"):
        raise InputError(
            f"database '{faults.display_name(url)}': driver '{url.drivername}' is not supported; write {url.get_backend_name()}://"
        )
    return url


def _touch(connection: Connection) -> None:
    """Write nothing, but as a writer: a session should learn that it cannot write before its work, not after."""
    connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = version_num WHERE 1 = 0")


def exists(url: URL) -> bool:
    """False where `url` is an SQLite file that is not there yet; no connection is made."""
    path = sqlite.file_of(url)
    return path is None or path.exists()


class Database:
    """The tables of `url`, made or migrated on opening. Safe to use from several threads, not across a fork."""

    def __init__(self, url: URL, *, read_only: bool, busy_seconds: float) -> None:
        self.url, self.is_read_only, self.busy_seconds = url, read_only, busy_seconds
        self.name = faults.display_name(url)
        self.backend: Any = _BACKENDS[url.get_backend_name()]
        with faults.translated(url):
            self._engine = self.backend.make_engine(url, read_only=read_only)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise

    def read(self, work: Callable[[Connection], T]) -> T:
        """`work(connection)` in one transaction that sees one state."""
        return self._patiently(lambda: self._transaction(work, writes=False))

    def write(self, work: Callable[[Connection], T]) -> T:
        """`work(connection)` in one transaction of its own: all of it is kept or nothing. It may be run more than once."""
        if self.is_read_only:
            raise faults.read_only(self.name, "it was opened for reading only")
        return self._patiently(lambda: self._transaction(work, writes=True))

    def insert(self, table: Table) -> Any:
        """An INSERT that has `on_conflict_do_nothing` and `on_conflict_do_update`, which SQLAlchemy gives by dialect only."""
        return self.backend.insert(table)

    def close(self) -> None:
        with faults.translated(self.url):
            self._engine.dispose()

    def _prepare(self) -> None:
        found = self.read(lambda connection: migrate.revision(connection, self.name))
        migrate.check_revision(found, self.name)
        if found == HEAD:
            if not self.is_read_only:
                self.write(_touch)
            return
        if self.is_read_only and found is None:
            raise DatabaseError(f"database '{self.name}' holds no TileSight tables; `tilesight tune` makes them, or name another with --db")
        if self.is_read_only:
            raise DatabaseVersionError(f"database '{self.name}' has the older schema {found}; open it for writing once to migrate it")
        if self.backend is sqlite:
            self._patiently(self._use_wal)
        self.write(self._upgrade)

    def _use_wal(self) -> None:
        with faults.translated(self.url):
            sqlite.use_wal(self._engine)

    def _upgrade(self, connection: Connection) -> None:
        self.backend.lock_schema(connection)
        migrate.upgrade(connection, self.name)

    def _transaction(self, work: Callable[[Connection], T], *, writes: bool) -> T:
        with faults.translated(self.url), self._engine.connect() as connection:
            connection = connection.execution_options(tilesight_writes=writes)
            with connection.begin():
                return work(connection)

    def _patiently(self, attempt: Callable[[], T]) -> T:
        deadline = time.monotonic() + self.busy_seconds
        pause = 0.002
        while True:
            try:
                return attempt()
            except DatabaseBusyError as error:
                if time.monotonic() + pause > deadline:
                    raise faults.busy(self.name, f"waited {self.busy_seconds:g} s") from error
            # random, so that two waiting processes do not meet again and again
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, 0.1)
