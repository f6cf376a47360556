"""What is served: an open database, if there is one, and dispatch tables in files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, TypeVar

from ..dispatch.table.dispatch_table import DispatchTable
from ..dispatch.table.table_file import read_table
from ..errors import DatabaseError, InputError
from ..settings import load_settings

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from ..database.store import Store

T = TypeVar("T")
MOST_TABLES = 1000  # in one folder


@dataclass(frozen=True, slots=True)
class ServedData:
    """The database and the paths of dispatch tables. Both are read anew for each page.

    Attributes:
        location: of the database, as text.
        find_store: opens the database once it exists.
        paths: files with dispatch tables, and folders that have such files.
    """

    location: str
    find_store: Callable[[], Store | None]
    paths: Sequence[Path] = ()

    @property
    def store(self) -> Store | None:
        """The database; None if it does not exist yet."""
        return self.find_store()

    @property
    def opened(self) -> Store:
        """The database. Raises `DatabaseError` if there is none."""
        store = self.store
        if store is None:
            raise DatabaseError(f"there is no database at '{self.location}'; `tilesight tune` makes it")
        return store

    def read(self, work: Callable[[Connection], T]) -> T:
        """`work(connection)` in one transaction that reads."""
        return self.opened.database.read(work)

    def tables(self) -> dict[str, Path | InputError]:
        """The dispatch tables by name: the file, or why it is none."""
        found: dict[str, Path | InputError] = {}
        for name, path in _named(self.paths):
            try:
                read_table(path)
                found[name] = path
            except InputError as error:
                found[name] = error
        return found

    def table(self, name: str) -> DispatchTable:
        """The dispatch table of that name. Raises `InputError` if there is none."""
        path = dict(_named(self.paths)).get(name)
        if path is None:
            raise InputError(f"there is no dispatch table '{name}' here")
        return read_table(path)


@contextmanager
def opened_source(database: str | None, paths: Sequence[Path] = ()) -> Iterator[ServedData]:
    """The database, for reading, and dispatch tables.

    Args:
        database: As for `tune`. If there are paths, it may be made later.
        paths: Dispatch tables and folders of them.

    Raises:
        InputError: A path is neither a dispatch table nor a folder.
        DatabaseError: The database cannot be read, or was made by another version.
    """
    from ..database import open_store
    from ..database.engine.connection import exists, parse_url
    from ..database.engine.faults import display_name

    for path in paths:
        if not path.is_dir():
            read_table(path)
    url = parse_url(database or load_settings().database_url)
    with ExitStack() as stack:
        opened: list[Store] = []
        lock = Lock()  # of the threads that answer requests

        def find_store() -> Store | None:
            with lock:
                if not opened and (exists(url) or not paths):
                    opened.append(stack.enter_context(open_store(url, read_only=True)))
                return opened[0] if opened else None

        find_store()
        yield ServedData(display_name(url), find_store, paths)


def _named(paths: Iterable[Path]) -> list[tuple[str, Path]]:
    """The files, with names that differ: as far as possible those of the files alone."""
    files: dict[Path, None] = {}
    for path in paths:
        if path.is_dir():
            try:
                inside = sorted(each for each in path.glob("*.json") if each.is_file())[:MOST_TABLES]
            except OSError:  # it is gone, or may not be read
                inside = []
            files |= dict.fromkeys(inside)
        else:
            files[path] = None
    names = [file.name for file in files]
    return [(file.name if names.count(file.name) == 1 else str(file), file) for file in files]
