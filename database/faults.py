"""From what the drivers raise to `DatabaseError`s that name the database, the cause and the way out."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import exc
from sqlalchemy.engine import URL

from ..errors import (
    DatabaseBusyError,
    DatabaseCorruptError,
    DatabaseError,
    DatabaseFullError,
    DatabaseReadOnlyError,
    TileSightError,
)

_SMALL_BYTES = 1 << 20  # less free space than this, and an I/O error is taken for a full disk


class UnsoundRecordError(Exception):
    """Stored parts that make no value: damage, not an error of the caller."""


def display_name(url: URL) -> str:
    """For messages: the path of an SQLite file, any other URL without its password."""
    if url.get_backend_name() == "sqlite":
        return url.database or ":memory:"
    return url.render_as_string(hide_password=True)


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turn the driver's errors raised inside into `DatabaseError`s."""
    try:
        yield
    except TileSightError:
        raise
    except Exception as error:
        driver_error = error.orig if isinstance(error, exc.DBAPIError) and error.orig is not None else error
        if isinstance(driver_error, sqlite3.Error) and _sqlite_code(driver_error) == "SQLITE_INTERRUPT":
            raise KeyboardInterrupt from error  # SQLite swallows the one that ended its statement
        known = _translate(driver_error, url)
        if known is None:
            raise
        raise known from error


def statement_fault(error: BaseException) -> str | None:
    """What is wrong with the SQL text, or with what it tries to do; None where `error` blames something else."""
    if isinstance(error, sqlite3.Warning | sqlite3.ProgrammingError):  # more than one statement
        return _first_line(error)
    if isinstance(error, sqlite3.Error):
        if _sqlite_code(error) == "SQLITE_AUTH":
            return f"it does more than read ({error})"
        return _first_line(error) if _sqlite_code(error) in ("SQLITE_ERROR", "SQLITE_MISMATCH", "SQLITE_RANGE", "SQLITE_TOOBIG") else None
    # 42: syntax or unknown name, 22: data, 25: write in a read-only transaction, 0A: not supported, 2F/26: functions
    return _first_line(error) if (_sqlstate(error) or "")[:2] in ("42", "22", "25", "0A", "2F", "26") else None


def _translate(error: BaseException, url: URL) -> DatabaseError | None:
    name = display_name(url)
    if isinstance(error, sqlite3.Error):
        return _from_sqlite(error, name)
    if isinstance(error, UnsoundRecordError | json.JSONDecodeError):
        return DatabaseCorruptError(
            f"database '{name}' holds a record that makes no sense ({error}); restore a copy, or use another with --db"
        )
    if isinstance(error, exc.NoSuchModuleError | ModuleNotFoundError | ImportError):
        return DatabaseError(f"database '{name}': its driver is not installed ({error}); pip install 'psycopg[binary]'")
    if isinstance(error, exc.SQLAlchemyError):
        return DatabaseError(f"database '{name}': {_first_line(error)}")
    if type(error).__module__.partition(".")[0] == "psycopg":
        return _from_postgresql(error, name)
    return None


def _from_sqlite(error: sqlite3.Error, name: str) -> DatabaseError:
    cause = _first_line(error)
    match _sqlite_code(error):
        case "SQLITE_BUSY" | "SQLITE_LOCKED":
            return busy(name, cause)
        case "SQLITE_READONLY" | "SQLITE_PERM":
            return read_only(name, cause)
        case "SQLITE_CORRUPT" | "SQLITE_NOTADB":
            return DatabaseCorruptError(
                f"database '{name}' is damaged or no database at all ({cause}); move it away and start anew, restore a copy, "
                f"or save what can be read: sqlite3 '{name}' .recover | sqlite3 saved.db"
            )
        case "SQLITE_FULL":
            return full(name, cause)
        case "SQLITE_IOERR" if _is_full(name):
            return full(name, cause)
        case "SQLITE_CANTOPEN":
            return DatabaseError(f"database '{name}' cannot be opened ({cause}); check that its folder exists and may be read and written")
        case "SQLITE_CONSTRAINT":
            return DatabaseError(
                f"database '{name}' refuses a row ({cause}); it refers to something that is not there, e.g. a deleted session"
            )
        case _:
            return DatabaseError(f"database '{name}': {cause}; use another with --db, or report this if it stays")


def _from_postgresql(error: BaseException, name: str) -> DatabaseError:
    cause = _first_line(error)
    state = _sqlstate(error)
    if state is None or state[:2] in ("08", "57"):
        return DatabaseError(
            f"database '{name}' cannot be reached ({cause}); check that the server runs, and host, port, user and database in the URL"
        )
    if state[:2] in ("28", "3D"):
        return DatabaseError(f"database '{name}' refuses the connection ({cause}); check user, password and database name in the URL")
    if state in ("40001", "40P01", "55P03", "53300"):
        return busy(name, cause)
    if state in ("25006", "42501"):
        return read_only(name, cause)
    if state == "53100":
        return full(name, cause)
    if state[:2] == "XX":
        return DatabaseCorruptError(f"database '{name}' reports damage ({cause}); see the server's log, restore a copy")
    return DatabaseError(f"database '{name}': {cause}")


def busy(name: str, cause: str) -> DatabaseBusyError:
    return DatabaseBusyError(f"database '{name}' is locked by another process ({cause}); let it finish, or use another database with --db")


def read_only(name: str, cause: str) -> DatabaseReadOnlyError:
    return DatabaseReadOnlyError(
        f"database '{name}' cannot be written ({cause}); make the file and its folder writable, or use another with --db"
    )


def full(name: str, cause: str) -> DatabaseFullError:
    return DatabaseFullError(
        f"no space left for database '{name}' ({cause}); free some, or use another disk with --db. What was recorded before is kept"
    )


def _sqlite_code(error: sqlite3.Error) -> str:
    """Primary result code by name, e.g. SQLITE_BUSY also for SQLITE_BUSY_SNAPSHOT."""
    name: str = getattr(error, "sqlite_errorname", "")
    return "_".join(name.split("_")[:2])


def _sqlstate(error: BaseException) -> str | None:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _is_full(path: str) -> bool:
    from pathlib import Path

    try:
        return shutil.disk_usage(Path(path).parent).free < _SMALL_BYTES
    except OSError:
        return False
