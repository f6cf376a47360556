"""An open database: its engine, and transactions that wait for locks, are retried, and raise TileSight's
errors."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any, TypeVar

from sqlalchemy import Connection, Table, exc, make_url
from sqlalchemy.engine import URL

from ...errors import DatabaseBusyError, DatabaseError, DatabaseVersionError, InputError
from ..schema import migrate
from ..schema.tables import HEAD, VERSION_TABLE
from . import faults, postgresql, sqlite
from .forking import Connections

T = TypeVar("T")

_BACKENDS: dict[str, ModuleType] = {"sqlite": sqlite, "postgresql": postgresql}
_FILE_ENDINGS = (".db", ".sqlite", ".sqlite3")


def parse_url(text: str) -> URL:
    """The URL in `text`, which may also be the path of an SQLite file (`runs/today.db`).

    Raises `InputError`.
    """
    if "://" not in text:
        if text.endswith(_FILE_ENDINGS) and "//" not in text and ":" not in text:
            return URL.create("sqlite", database=text)
        raise InputError(
            f"'{faults.without_password(text)}' is not a database URL; "
            f"write e.g. sqlite:///{faults.without_password(text) or 'performance'}.db or "
            "postgresql://user@host/name"
        )
    try:
        url = make_url(text)
    except (exc.ArgumentError, ValueError) as error:
        # not `from error`: its text may contain the password
        raise InputError(
            f"'{faults.without_password(text)}' is not a database URL "
            f"({faults.without_password(str(error))}); "
            "write e.g. sqlite:////home/me/performance.db or postgresql://user@host:5432/name"
        ) from None
    if url.get_backend_name() not in _BACKENDS:
        raise InputError(
            f"database '{faults.display_name(url)}': '{url.get_backend_name()}' is not supported; use one "
            f"of: {', '.join(_BACKENDS)}"
        )
    if url.drivername not in ("sqlite", "sqlite+pysqlite", "postgresql", "postgresql+psycopg"):
        raise InputError(
            f"database '{faults.display_name(url)}': driver '{url.drivername}' is not supported; write "
            f"{url.get_backend_name()}://"
        )
    return url


def _touch(connection: Connection) -> None:
    """Change no row, but need the right to write: a user who lacks it gets the error before tuning, not
    after."""
    connection.exec_driver_sql(f"UPDATE {VERSION_TABLE} SET version_num = version_num WHERE 1 = 0")


def exists(url: URL) -> bool:
    """False if `url` is an SQLite file that does not exist; no connection is made."""
    path = sqlite.file_of(url)
    return path is None or path.exists()


def is_made(url: URL) -> bool:
    """False if `url` is an SQLite file that does not exist, or has no table yet."""
    path = sqlite.file_of(url)
    return path is None or (path.exists() and not sqlite.is_blank(path))


class Database:
    """The database at `url`; its tables are made or migrated on opening.

    Threads and forks may use it (`forking.py`).
    """

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

    def read(self, work: Callable[[Connection], T], *, roll_back: bool = False) -> T:
        """Run `work(connection)` in one transaction that sees one state; it may be run more than once.

        `roll_back` is for SQL of the user's: whatever it changed in spite of all guards is undone. It costs
        the statements that psycopg keeps prepared.
        """
        return self.retrying(partial(self._transaction, work, writes=False, roll_back=roll_back))

    def write(self, work: Callable[[Connection], T], *, roll_back: bool = False) -> T:
        """Run `work(connection)` in one transaction; with `roll_back` none of its changes stay.

        `work` is run again after a lock was in the way, and after the connection was lost, even if the server
        committed the transaction and only its answer was lost. Running it twice must therefore leave the same
        rows as running it once.
        """
        if self.is_read_only:
            raise faults.read_only(self.name, "it was opened for reading only", self.url)
        lost: list[Any] = []  # sessions on the server whose connection was lost during an earlier attempt

        def attempt() -> T:
            while lost:  # the server may not have noticed, and their locks would block this attempt
                self._transaction(partial(self.backend.end_session, session=lost[-1]), writes=False)
                lost.pop()
            opened: list[Any] = []

            def noted(connection: Connection) -> T:
                opened.append(self.backend.session_of(connection))
                return work(connection)

            try:
                return self._transaction(noted, writes=True, roll_back=roll_back)
            except faults.ConnectionLostError:
                lost.extend(opened)
                raise

        return self.retrying(attempt)

    def insert(self, table: Table) -> Any:
        """An INSERT of the database's dialect, with `on_conflict_do_nothing` and `on_conflict_do_update`."""
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
            raise DatabaseError(
                f"database '{self.name}' holds no TileSight tables; `tilesight tune` makes them, or name "
                "another with --db"
            )
        if self.is_read_only:
            raise DatabaseVersionError(
                f"database '{self.name}' has the older schema {found}; open it for writing once to migrate it"
            )
        if self.backend is sqlite:
            self.retrying(self._use_wal)
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

    def _transaction(self, work: Callable[[Connection], T], *, writes: bool, roll_back: bool = False) -> T:
        with faults.translated(self.url), self._connections.connected() as connection:
            connection = connection.execution_options(tilesight_writes=writes)
            with connection.begin() as transaction:
                result = work(connection)
                if roll_back:
                    transaction.rollback()
                return result

    def retrying(self, attempt: Callable[[], T]) -> T:
        """`attempt()`, again while the database is locked or the server is away, for up to `busy_seconds`."""
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
                self._engine.dispose()  # the pool's other connections are lost, too
            # random: two waiting processes should not collide again and again
            time.sleep(pause * random.uniform(0.5, 1.0))
            pause = min(2 * pause, 0.1)
