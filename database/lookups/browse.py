"""Pages of rows of a table or view, for people who look around. Each page is read by a key or within a limit
of time, however many rows there are.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from sqlalchemy import BigInteger, Connection, Integer, bindparam, exc, func, select, text

from ...errors import InputError, UnknownNameError
from ..engine import faults
from ..schema import tables as schema
from ..schema.views import VIEWS, best_of

T = TypeVar("T")
SECONDS = 10.0  # that one page may take; views that look at all rows may take longer in a large database
# the view whose rows are those of trials: it can be read by their key
_OF_TRIALS = "records"
# the view that can be read by workloads
_OF_WORKLOADS = "best"
_BEST_OF_SOME = best_of("s.workload_id IN :ids")


@dataclass(frozen=True, slots=True)
class RowPage:
    """Some rows of a table or view. `after` is the place after which the next page begins; "" at the end."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    after: str


@dataclass(frozen=True, slots=True)
class DatabaseContents:
    """The kernels, targets, and numbers of sessions and of records of a database."""

    kernels: tuple[str, ...]
    targets: tuple[str, ...]
    sessions: int
    records: int


def contents(connection: Connection) -> DatabaseContents:
    def names(column: Any) -> tuple[str, ...]:
        # SQLite may hold any value
        return tuple(map(str, connection.execute(select(column).distinct().order_by(column)).scalars()))

    def count(column: Any) -> int:
        return int(connection.execute(select(func.count()).select_from(column)).scalar_one())

    return DatabaseContents(
        names(schema.workloads.c.operator),
        names(schema.targets.c.name),
        count(schema.sessions),
        count(schema.trials),
    )


def table_sizes(connection: Connection) -> dict[str, int]:
    """Number of rows of each table."""
    return {
        table.name: int(connection.execute(select(func.count()).select_from(table)).scalar_one())
        for table in schema.metadata.sorted_tables
    }


def row_page(
    connection: Connection, name: str, after: str = "", limit: int = 50, session_id: int | None = None
) -> RowPage:
    """Up to `limit` rows of a table or view, the last ones by their key first.

    Of `best` the rows of up to `limit` workloads, those that were tuned last first.

    Args:
        connection: In a transaction that reads.
        name: Of the table or view.
        after: `RowPage.after` of the page before; "": the first page.
        limit: Largest number of rows.
        session_id: Of `records`: only rows of this session.

    Raises:
        InputError: There is no such table or view, `after` is no place in it, or the view takes too long.
    """
    if name not in VIEWS and name not in schema.metadata.tables:
        raise UnknownNameError("view or table", name, [*VIEWS, *schema.metadata.tables])
    key = _key(name)
    place = _read_place(name, after, key)
    if name == _OF_WORKLOADS:
        return within(connection, f"view '{name}'", lambda: _best_page(connection, place, limit))
    begin = int(place[0]) if place and not key else 0
    statement, values = _statement(name, key, place, session_id)
    values |= {"limit": limit + 1} if key else {"limit": limit + 1, "begin": begin}
    bound = [bindparam(each, type_=BigInteger()) for each, value in values.items() if isinstance(value, int)]

    def read() -> tuple[tuple[str, ...], list[tuple[Any, ...]]]:
        found = connection.execute(text(statement).bindparams(*bound), values)
        return tuple(found.keys()), [tuple(row) for row in found]

    names, rows = within(connection, f"{'view' if name in VIEWS else 'table'} '{name}'", read)
    following = ""
    if len(rows) > limit:
        last = rows[limit - 1]
        next_place = [last[names.index(column)] for column in key] if key else [begin + limit]
        following = json.dumps(next_place, separators=(",", ":"))
    return RowPage(name, names, tuple(rows[:limit]), following)


def _best_page(connection: Connection, place: Sequence[Any] | None, limit: int) -> RowPage:
    """The best configs of the workloads whose latest sessions come next."""
    sessions = schema.sessions.c
    last = func.max(sessions.id).label("last")
    chosen = select(sessions.workload_id, last).group_by(sessions.workload_id)
    if place:
        chosen = chosen.having(last < place[0])
    found = connection.execute(chosen.order_by(last.desc()).limit(limit + 1)).all()
    statement = text(f"SELECT * FROM ({_BEST_OF_SOME}) AS best ORDER BY session_id DESC")
    ids = bindparam("ids", [row.workload_id for row in found[:limit]], expanding=True, type_=BigInteger())
    rows = connection.execute(statement.bindparams(ids))
    following = json.dumps([found[limit - 1].last]) if len(found) > limit else ""
    return RowPage(_OF_WORKLOADS, tuple(rows.keys()), tuple(tuple(row) for row in rows), following)


def _statement(
    name: str, key: Sequence[str], place: Sequence[Any] | None, session_id: int | None
) -> tuple[str, dict[str, Any]]:
    """The statement of a page, and its parameters beside `limit` and `begin`."""
    if not key:
        return f"SELECT * FROM {name} LIMIT :limit OFFSET :begin", {}
    values = {f"key{number}": value for number, value in enumerate(place or ())}
    conditions = []
    if values:
        conditions.append(f"({', '.join(key)}) < ({', '.join(f':{each}' for each in values)})")
    if session_id is not None and name == _OF_TRIALS:
        conditions.append("session_id = :session")
        values["session"] = session_id
    where = f"WHERE {' AND '.join(conditions)} " if conditions else ""
    order = ", ".join(f"{column} DESC" for column in key)
    return f"SELECT * FROM {name} {where}ORDER BY {order} LIMIT :limit", values


def within(connection: Connection, what: str, work: Callable[[], T], seconds: float = SECONDS) -> T:
    """`work()`, which executes statements of `connection`, within a limit of time. Raises `InputError` if
    that is not enough.
    """
    from ..engine import postgresql, sqlite

    backend = sqlite if connection.dialect.name == "sqlite" else postgresql
    try:
        with backend.limited(connection, seconds):
            return work()
    except exc.DBAPIError as error:
        if error.orig is not None and faults.is_stopped(error.orig):
            raise InputError(
                f"{what} takes longer than {seconds:g} s in this database; ask for less with `tilesight db "
                "query`, or write it to a file: `tilesight db export`"
            ) from error
        raise


def _key(name: str) -> tuple[str, ...]:
    """The columns by which rows are found; none for views that look at all rows."""
    if name == _OF_TRIALS:
        return "session_id", "candidate_id"
    return tuple(c.name for c in schema.metadata.tables[name].primary_key) if name not in VIEWS else ()


def _read_place(name: str, text: str, key: Sequence[str]) -> list[Any] | None:
    if not text:
        return None
    try:
        place = json.loads(text)
    except (ValueError, RecursionError):
        place = None
    types = [_type(name, column) for column in key] or [int]
    is_sound = (
        isinstance(place, list)
        and len(place) == len(types)
        and all(type(value) is wanted for value, wanted in zip(place, types, strict=True))
        and all(not isinstance(value, int) or 0 <= value < 2**63 for value in place)
    )
    if not is_sound:
        raise InputError(f"'{text[:60]}' is no place in '{name}'; begin with its first page")
    return list(place)


def _type(name: str, column: str) -> type:
    table = schema.trials if name == _OF_TRIALS else schema.metadata.tables[name]
    return int if isinstance(table.c[column].type, Integer | BigInteger) else str
