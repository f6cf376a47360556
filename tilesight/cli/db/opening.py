"""How the database commands open what they are asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...errors import DatabaseVersionError
from ...settings import load_settings

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from ...database import LayeredStore, Store


def url_of(database: str | None) -> URL:
    from ...database.connection import parse_url

    return parse_url(database or load_settings().database_url)


def place_of(url: URL) -> str:
    """The file, or the URL without the password."""
    from ...database.faults import display_name
    from ...database.sqlite import file_of

    file = file_of(url)
    return display_name(url) if file is None else str(file.absolute())


def open_for_reading(url: URL) -> Store:
    """The database alone."""
    from ...database import open_store

    try:
        return open_store(url, read_only=True)
    except DatabaseVersionError:
        return open_store(url)  # an older one is migrated; for a newer one this says so


def open_with_layers(url: URL) -> LayeredStore:
    """The database for reading, and the layers below it."""
    from ...database import open_layers

    open_for_reading(url).close()  # an older one is migrated
    return open_layers(url, read_only=True)


def counts(found: dict[str, int]) -> str:
    """For people: what is there of each."""
    return ", ".join(f"{count} {name}" for name, count in found.items() if count) or "none"
