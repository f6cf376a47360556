"""The space of a database: its size, and giving back what deleted rows left."""

from __future__ import annotations

from contextlib import closing
from typing import Any

from ...errors import DatabaseBusyError, DatabaseFullError
from ..engine import faults
from ..store import Store


def size(store: Store) -> int:
    """Bytes of the database."""
    return int(store.database.read(store.database.backend.size_bytes))


def give_back(store: Store) -> str:
    """Give the space of deleted rows back; returns why that was not possible, else ""."""
    try:
        store.database.retrying(lambda: _vacuum(store))
        with faults.translated(store.database.url):
            is_shorter = _shorten(store)
    except (DatabaseBusyError, DatabaseFullError) as error:
        return str(error)
    return "" if is_shorter else str(faults.busy(store.name, "others read it"))


def _vacuum(store: Store) -> None:
    with faults.translated(store.database.url), closing(store.database._engine.raw_connection()) as raw:
        driver: Any = raw.driver_connection
        if store.database._engine.dialect.name != "postgresql":
            driver.execute("VACUUM")
            return
        driver.rollback()
        driver.autocommit = True
        try:
            driver.execute("VACUUM")
        finally:
            if not driver.closed:
                driver.autocommit = False


def _shorten(store: Store) -> bool:
    """Move SQLite's log into its file; False if others still read an earlier state."""
    if store.database._engine.dialect.name == "postgresql":
        return True
    with closing(store.database._engine.raw_connection()) as raw:
        driver: Any = raw.driver_connection
        return not driver.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]
