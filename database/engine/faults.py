"""Translates the drivers' errors into `DatabaseError`s that name the database, the cause and what to do."""

from __future__ import annotations

import json
import re
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sqlalchemy import exc
from sqlalchemy.engine import URL

from ...errors import (
    DatabaseBusyError,
    DatabaseCorruptError,
    DatabaseError,
    DatabaseFullError,
    DatabaseReadOnlyError,
    TileSightError,
)
from ...extras import EXTRAS
from ...files import may_write

# 0A: not supported, 21: more rows than one, 22: data, 25: a write in a transaction that reads, 26/2F/P0:
# functions, 42: syntax or an unknown name, 54: too complex, 55: not in that state
_OF_THE_STATEMENT = ("0A", "21", "22", "25", "26", "2F", "42", "54", "55", "P0")
# 57: shut down, crashed, not up yet, idle too long; 25: idle too long in a transaction, one that lasted too
# long
_SESSION_ENDED = ("57P01", "57P02", "57P03", "57P04", "57P05", "25P03", "25P04")
_PARAMETER = "it has a parameter (?, :name or $1); write the value in its place"
_SMALL_BYTES = 1 << 20  # an I/O error is taken for a full disk if less space than this is free


class UnsoundRecordError(Exception):
    """Stored parts from which no value can be made: the database is damaged."""


class ConnectionLostError(DatabaseError):
    """The server does not answer. If it has answered before, the call is tried again."""

    def __init__(self, name: str, cause: str) -> None:
        self.cause = cause
        super().__init__(
            f"database '{name}' cannot be reached ({cause}); check that the server runs, and host, port, "
            "user, password and database "
            "in the URL"
        )


def display_name(url: URL) -> str:
    """The name of a database in messages: the path of an SQLite file, another URL without its password."""
    if url.get_backend_name() == "sqlite":
        return url.database or ":memory:"
    hidden = {name: "***" for name in url.query if "password" in name.lower()}
    return url.update_query_dict(hidden).render_as_string(hide_password=True)


def without_password(text: str) -> str:
    """An invalid URL without its password, for messages."""
    text = re.sub(r"((?:^|/)[^:/@]*:)[^/].*@", r"\1***@", text, flags=re.DOTALL)
    return re.sub(r"(password=)[^&\s]*", r"\1***", text, flags=re.IGNORECASE)


@contextmanager
def translated(url: URL) -> Iterator[None]:
    """Turn the driver's errors that are raised inside into `DatabaseError`s."""
    try:
        yield
    except TileSightError:
        raise
    except Exception as error:
        driver_error = (
            error.orig if isinstance(error, exc.StatementError) and error.orig is not None else error
        )
        if isinstance(driver_error, TileSightError):
            raise driver_error from None  # raised while a value was converted for the driver
        if isinstance(driver_error, sqlite3.Error) and _sqlite_code(driver_error) == "SQLITE_INTERRUPT":
            # SQLite replaces the interrupt that ended its statement by an error
            raise KeyboardInterrupt from error
        known = _translate(driver_error, url)
        if known is None:
            raise
        raise known from error


def is_stopped(error: BaseException) -> bool:
    """Whether a statement was ended from outside: by its time limit, or by Ctrl-C."""
    if isinstance(error, sqlite3.Error):
        return _sqlite_code(error) == "SQLITE_INTERRUPT"
    return _sqlstate(error) == "57014"


def statement_fault(error: BaseException) -> str | None:
    """What is wrong with an SQL statement; None if `error` has another cause."""
    if isinstance(error, exc.DBAPIError) and error.orig is not None:
        error = error.orig
    if isinstance(error, sqlite3.Warning | sqlite3.ProgrammingError):
        is_parameter = "binding" in str(error)
        return _PARAMETER if is_parameter else _first_line(error)  # more than one statement
    if isinstance(error, sqlite3.Error):
        if _sqlite_code(error) == "SQLITE_AUTH":
            return f"it does more than read ({error})"
        return (
            _first_line(error)
            if _sqlite_code(error) in ("SQLITE_ERROR", "SQLITE_MISMATCH", "SQLITE_RANGE", "SQLITE_TOOBIG")
            else None
        )
    state = _sqlstate(error)
    if state == "42P02" or (state == "08P01" and "parameter" in str(error)):
        return _PARAMETER
    if state is None and type(error).__name__ == "DataError":  # the driver has no value for it, e.g. infinity
        return _first_line(error)
    return _first_line(error) if (state or "")[:2] in _OF_THE_STATEMENT else None


def _translate(error: BaseException, url: URL) -> DatabaseError | None:
    name = display_name(url)
    if isinstance(error, sqlite3.Error):
        return _from_sqlite(error, name, url)
    if isinstance(error, UnicodeDecodeError):  # the driver's message is not UTF-8
        return _damaged(name, str(error))
    if isinstance(error, UnsoundRecordError | json.JSONDecodeError):
        return DatabaseCorruptError(
            f"database '{name}' holds a damaged record ({error}); restore a copy, or use another with --db"
        )
    if isinstance(error, exc.NoSuchModuleError | ModuleNotFoundError | ImportError):
        return DatabaseError(
            f"database '{name}': its driver is not installed ({error}); {EXTRAS['postgres'].install}"
        )
    if isinstance(error, exc.TimeoutError):
        return busy(name, f"by threads of this one: {_first_line(error)}")
    if isinstance(error, exc.SQLAlchemyError):
        return DatabaseError(
            f"database '{name}': {_first_line(error)}; use another with --db, or report this if it stays"
        )
    if type(error).__module__.partition(".")[0] == "psycopg":
        return _from_postgresql(error, name, url)
    return None


def _from_sqlite(error: sqlite3.Error, name: str, url: URL) -> DatabaseError:
    cause = _first_line(error)
    match _sqlite_code(error):
        case "SQLITE_BUSY" | "SQLITE_LOCKED" | "SQLITE_PROTOCOL":
            return busy(name, cause)
        case "SQLITE_READONLY" | "SQLITE_PERM":
            return read_only(name, cause, url)
        case "SQLITE_CORRUPT" | "SQLITE_NOTADB" | "SQLITE_FORMAT":
            return _damaged(name, cause)
        case "" if cause.startswith("Could not decode to UTF-8"):
            return _damaged(name, cause)
        case "SQLITE_FULL":
            return full(name, cause)
        case "SQLITE_IOERR" if _is_full(name):
            return full(name, cause)
        case "SQLITE_IOERR":
            return DatabaseError(
                f"database '{name}' cannot be read or written ({cause}: "
                f"{getattr(error, 'sqlite_errorname', '')}); a quota or a limit of "
                "file sizes may be reached, or the disk fails: correct that, or use another disk with --db. "
                "What was recorded before is kept"
            )
        case "SQLITE_CANTOPEN" if not may_write(Path(name).parent):
            return read_only(name, f"{cause}: nothing can be written in its folder", url)
        case "SQLITE_CANTOPEN":
            return DatabaseError(
                f"database '{name}' cannot be opened ({cause}); check that its folder exists and may be read "
                "and written"
            )
        case "SQLITE_CONSTRAINT":
            return _refused_row(name, cause)
        case _:
            return DatabaseError(
                f"database '{name}': {cause}; use another with --db, or report this if it stays"
            )


def _from_postgresql(error: BaseException, name: str, url: URL) -> DatabaseError:
    cause, state = _first_line(error), _sqlstate(error)
    if state is None:  # the driver's own
        lost = type(error).__name__ in ("OperationalError", "InterfaceError", "ConnectionTimeout")
        return (
            ConnectionLostError(name, cause)
            if lost
            else DatabaseError(
                f"database '{name}': {cause}; use another with --db, or report this if it stays"
            )
        )
    if state[:2] == "08" or state in _SESSION_ENDED:
        return ConnectionLostError(name, cause)
    if state[:2] in ("28", "3D"):
        return DatabaseError(
            f"database '{name}' refuses the connection ({cause}); check user, password and database name in "
            "the URL"
        )
    if state in ("40001", "40P01", "55P03", "53300"):
        return busy(name, cause)
    if state in ("25006", "42501") or "during recovery" in cause:
        return read_only(name, cause, url)
    if state == "53100":
        return full(name, cause)
    if state in ("XX001", "XX002"):
        return DatabaseCorruptError(
            f"database '{name}' is damaged ({cause}); see the server's log, restore a copy, or use another "
            "with --db"
        )
    if state[:2] == "23":
        return _refused_row(name, cause)
    if state == "57014":
        return DatabaseError(
            f"database '{name}' ended a statement ({cause}); raise the server's statement_timeout, or ask "
            "for less"
        )
    return DatabaseError(
        f"database '{name}': {cause} ({state}); see the server's log, use another with --db, or report this "
        "if it stays"
    )


def _damaged(name: str, cause: str) -> DatabaseCorruptError:
    return DatabaseCorruptError(
        f"database '{name}' is damaged or is not a database ({cause}); move it away and start anew, restore "
        "a copy, "
        f"or save what can be read: sqlite3 '{name}' .recover | sqlite3 saved.db"
    )


def _refused_row(name: str, cause: str) -> DatabaseError:
    return DatabaseError(
        f"database '{name}' refuses a row ({cause}); it refers to a missing row, e.g. of a deleted session: "
        "run the command again, or use another with --db"
    )


def busy(name: str, cause: str) -> DatabaseBusyError:
    return DatabaseBusyError(
        f"database '{name}' is locked by another process ({cause}); let it finish, or use another database "
        "with --db"
    )


def lost(name: str, cause: str, waited_seconds: float) -> DatabaseError:
    """The error after a lost connection could not be made again."""
    return DatabaseError(
        f"database '{name}' was lost and did not come back in {waited_seconds:g} s ({cause}); start its "
        "server or repair the network, and "
        "run the command again. What was recorded before is kept"
    )


def read_only(name: str, cause: str, url: URL | None = None) -> DatabaseReadOnlyError:
    """The error for a database that cannot be written; `url` tells whether it is a file."""
    way_out = "make the file and its folder writable"
    if url is not None and url.get_backend_name() != "sqlite":
        way_out = "let its owner grant the right (GRANT ALL ON SCHEMA public, ON ALL TABLES IN SCHEMA public)"
    return DatabaseReadOnlyError(
        f"database '{name}' cannot be written ({cause}); {way_out}, or use another with --db"
    )


def full(name: str, cause: str) -> DatabaseFullError:
    return DatabaseFullError(
        f"no space left for database '{name}' ({cause}); free some, or use another disk with --db. What was "
        "recorded before is kept"
    )


def _sqlite_code(error: sqlite3.Error) -> str:
    """The name of the primary result code, e.g. SQLITE_BUSY for SQLITE_BUSY_SNAPSHOT."""
    name: str = getattr(error, "sqlite_errorname", "")
    return "_".join(name.split("_")[:2])


def _sqlstate(error: BaseException) -> str | None:
    state = getattr(error, "sqlstate", None)
    return state if isinstance(state, str) else None


def _first_line(error: BaseException) -> str:
    return str(error).strip().partition("\n")[0] or type(error).__name__


def _is_full(path: str) -> bool:
    try:
        return shutil.disk_usage(Path(path).parent).free < _SMALL_BYTES
    except OSError:
        return False
