"""Opens the databases of the `db` commands."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import DatabaseVersionError
from ...settings import load_settings

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from ...database import LayeredStore, Store


def url_of(database: str | None) -> URL:
    from ...database.engine.connection import parse_url

    return parse_url(database or load_settings().database_url)


def location_of(url: URL) -> str:
    """The file's path, or the URL without its password."""
    from ...database.engine.faults import display_name
    from ...database.engine.sqlite import file_of

    file = file_of(url)
    return display_name(url) if file is None else str(file.absolute())


def open_for_reading(url: URL) -> Store:
    """The database without layers, for reading."""
    from ...database import open_store

    try:
        return open_store(url, read_only=True)
    except DatabaseVersionError:
        return open_store(url)  # migrates a database of an older version, raises for a newer one


def open_with_layers(url: URL) -> LayeredStore:
    """The database with its layers, for reading."""
    from ...database import open_layers

    open_for_reading(url).close()  # migrates a database of an older version
    return open_layers(url, read_only=True)


def counts(found: dict[str, int]) -> str:
    """Counts as a text, e.g. `3 sessions, 5 trials`."""
    return ", ".join(f"{count} {name}" for name, count in found.items() if count) or "none"
