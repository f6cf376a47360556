"""One open database: its engine, and transactions that wait for a lock, retry, and speak in TileSight's errors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, Generic, TypeVar

from sqlalchemy import Connection, Table, exc, make_url
from sqlalchemy.engine import URL

from ..errors import DatabaseBusyError, DatabaseError, DatabaseVersionError, InputError
from . import faults, migrate, postgresql, sqlite
from .forking import Connections
from .schema import HEAD, VERSION_TABLE

T = TypeVar("T")

_BACKENDS: dict[str, ModuleType] = {"sqlite": sqlite, "postgresql": postgresql}
_FILE_ENDINGS = (".db", ".sqlite", ".sqlite3")


def parse_url(text: str) -> URL:
    """A SQLAlchemy URL; the path of an SQLite file (`runs/today.db`) will do too. Raises `InputError`."""
    if "://" not in text:
        if text.endswith(_FILE_ENDINGS) and "//" not in text and ":" not in text:
            return URL.create("sqlite", database=text)
        raise InputError(
            f"'{faults.without_password(text)}' is not a database URL; "
            f"write e.g. sqlite:///{faults.without_password(text) or 'performance'}.db or postgresql://user@host/name"
        )
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        # not `from error`: its text may have the password
        raise InputError(
            f"'{faults.without_password(text)}' is not a database URL ({faults.without_password(str(error))}); "
            "write e.g. sqlite:////home/me/performance.db or postgresql://user@host:5432/name"
        ) from None
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
    """The tables of `url`, made or migrated on opening. Safe to use from several threads, and in forks (`forking.py`)."""

    def __init__(self, url: URL, *, read_only: bool, busy_seconds: float) -> None:
        self.url, self.is_read_only, self.busy_seconds = url, read_only, busy_seconds
        self.name = faults.display_name(url)
        self.backend: Any = _BACKENDS[url.get_backend_name()]
        self._was_reached = False
        with faults.translated(url):
            self._engine = self.backend.make_engine(url, read_only=read_only, busy_seconds=busy_seconds)
        self._connections = Connections(self._engine, self.name)
        try:
            self._prepare()
        except BaseException:
            self.close()
            raise
        self._was_reached = True

    def read(self, work: Callable[[Connection], T], *, trusted: bool = True) -> T:
        """`work(connection)` in one transaction that sees one state. It may be run more than once. What is not `trusted` to change
        nothing is rolled back at its end; not so else, since psycopg forgets then which statements are prepared."""
        return self._patiently(partial(self._transaction, work, writes=False, trusted=trusted))

    def write(self, work: Callable[[Connection], T]) -> T:
        """`work(connection)` in one transaction of its own: all of it is kept, and once, or nothing. It may be run more than
        once: where a lock is in the way, and where the server is lost before the transaction is committed."""
        if self.is_read_only:
            raise faults.read_only(self.name, "it was opened for reading only", self.url)
        return self._patiently(_Write(self, work).attempt)

    def insert(self, table: Table) -> Any:
        """An INSERT that has `on_conflict_do_nothing` and `on_conflict_do_update`, which SQLAlchemy gives by dialect only."""
        return self.backend.insert(table)

    def close(self) -> None:
        with faults.translated(self.url):
            self._engine.dispose()

    def _prepare(self) -> None:
        found = self.read(self._find_revision)
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

    def _find_revision(self, connection: Connection) -> str | None:
        self.backend.check_server(connection, self.name)
        return migrate.revision(connection, self.name)

    def _use_wal(self) -> None:
        with faults.translated(self.url):
            sqlite.use_wal(self._engine)

    def _upgrade(self, connection: Connection) -> None:
        self.backend.lock_schema(connection)
        migrate.upgrade(connection, self.name)

    def _transaction(self, work: Callable[[Connection], T], *, writes: bool, trusted: bool = True) -> T:
        with faults.translated(self.url), self._connections.connected() as connection:
            connection = connection.execution_options(tilesight_writes=writes)
            with connection.begin() as transaction:
                result = work(connection)
                if not trusted:
                    transaction.rollback()  # of what a query may have changed all the same nothing stays
                return result

    def _patiently(self, attempt: Callable[[], T]) -> T:
        deadline = time.monotonic() + self.busy_seconds
        pause = 0.002
        while True:
            try:
                return attempt()
            except DatabaseBusyError as error:
                if time.monotonic() + pause > deadline:
                    raise faults.busy(self.name, f"waited {self.busy_seconds:g} s") from error
            except faults.ConnectionLostError as error:
                if not self._was_reached:
                    raise
                if time.monotonic() + pause > deadline:
                    raise faults.lost(self.name, error.cause, self.busy_seconds) from error
                self._engine.dispose()  # other connections of the pool were lost with it
            # random, so that two waiting processes do not meet again and again
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, 0.1)


class _Write(Generic[T]):
    """One write, tried until it is known to be done: where the server is lost while it commits, it is asked afterwards."""

    def __init__(self, database: Database, work: Callable[[Connection], T]) -> None:
        self._database, self._work = database, work
        self._mark: Any = None  # of the last transaction, where it is not known how that ended
        self._result: list[T] = []  # its result, once there was nothing left but to commit

    def attempt(self) -> T:
        # asked even where it cannot have been committed: the server may not have noticed, and hold its locks
        if self._mark is not None and self._was_committed() and self._result:
            return self._result[0]
        self._mark = None
        try:
            return self._database._transaction(self._marked, writes=True)
        except faults.ConnectionLostError:
            raise  # and it may have been committed
        except BaseException:
            self._mark = None
            raise

    def _marked(self, connection: Connection) -> T:
        self._result = []
        self._mark = self._database.backend.mark(connection)
        result = self._work(connection)
        self._result = [result]
        return result

    def _was_committed(self) -> bool:
        was_committed = self._database.backend.was_committed
        return self._database._transaction(lambda connection: bool(was_committed(connection, self._mark)), writes=False)
