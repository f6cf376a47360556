"""Adds the rows of another database. Equal facts have equal ids, so merging again changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, and_, case, exc, or_, select, text, update

from ...errors import InputError
from ...records.session import SessionState
from ..engine import faults, sqlite
from ..engine.connection import Database
from ..schema import tables as schema
from ..store import Store
from ..tables import session_rows as sessions
from ..tables.rows import Row

_CHUNK = 500
# columns by which a session is found again: one session may have different ids in two databases
_IDENTITY = (
    "context_key",
    "template_id",
    "workload_id",
    "target_id",
    "environment_id",
    "effort",
    "seed",
    "options_key",
    "started_at",
)


def merge(store: Store, other: Store) -> dict[str, int]:
    """Add all rows of `other` to `store`, in one transaction; returns the number of written rows by table.

    If both have a session, a complete one replaces an unfinished one. A session that still runs in `other` is
    added as interrupted.
    """
    if store.database.url == other.database.url or _same_file(store, other):
        raise InputError(f"'{other.name}' is the database itself; name another one to merge into it")

    def work(connection: Connection) -> dict[str, int]:
        merger = Merger(store.database, connection)
        other.database.read(lambda reading: _copy(reading, merger))
        return dict(merger.written)

    return store.database.write(work)


def whole_tables(connection: Connection) -> Iterator[tuple[Table, Sequence[Row]]]:
    """All rows of all tables as they are at one moment, referenced tables first."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
    for table in schema.metadata.sorted_tables:
        key = list(table.primary_key.columns)
        found = connection.execution_options(yield_per=_CHUNK).execute(select(table).order_by(*key))
        for part in found.mappings().partitions():
            yield table, [dict(row) for row in part]


def _copy(reading: Connection, merger: Merger) -> None:
    for table, rows in whole_tables(reading):
        try:
            with faults.translated(
                merger.database.url
            ):  # errors of writing must name the database that is written
                merger.add(table, rows)
        except exc.StatementError as error:  # a value of another type, which only a damaged file holds
            raise faults.UnsoundRecordError(f"of {table.name}: {error.orig}") from error
        except KeyError as error:
            raise faults.UnsoundRecordError(
                f"of {table.name}: it refers to session {error}, which is not there"
            ) from error


class Merger:
    """Adds rows within one transaction, tables in the order of `schema.metadata.sorted_tables`.

    `written` counts new and changed rows by table. With `own_ids`, new sessions get ids of this database;
    otherwise they keep their ids, which tell their order, unless an id is taken or lies in the future.
    """

    def __init__(self, database: Database, connection: Connection, *, own_ids: bool = False) -> None:
        self.database, self._connection, self._own_ids = database, connection, own_ids
        self.written: Counter[str] = Counter()
        self.sessions: dict[int, int] = {}  # id in the other database -> id here
        self._matched: set[int] = set()  # the ids here
        self._statements: dict[str, Any] = {}

    def add(self, table: Table, rows: Sequence[Row]) -> None:
        if table is schema.sessions:
            for row in rows:
                self.sessions[row["id"]] = self._add_session(row)
                self._matched.add(self.sessions[row["id"]])
            return
        if "session_id" in table.c:
            rows = [{**row, "session_id": self.sessions[row["session_id"]]} for row in rows]
        if rows:
            count = self._connection.execute(self._statement(table), list(rows)).rowcount
            self.written[table.name] += max(0, count)

    def _statement(self, table: Table) -> Any:
        if table.name not in self._statements:
            insert = self.database.insert(table)
            self._statements[table.name] = _on_conflict(table, insert)
        return self._statements[table.name]

    def _add_session(self, row: Row) -> int:
        columns = schema.sessions.c
        if row["state"] == SessionState.RUNNING.value:
            row = {**row, "state": SessionState.INTERRUPTED.value}  # no process runs it here
        found = self._found_session(row)
        if found is None:
            free = None if self._own_ids else self._free_id(row["id"])
            new = {**row, "id": free or sessions.new_session_id()}
            if free is None:
                sessions.add_last(self._connection, self.database.insert(schema.sessions), new)
            else:
                self._connection.execute(schema.sessions.insert(), new)
            self.written["sessions"] += 1
            return int(new["id"])
        if row["state"] == SessionState.COMPLETE.value and found.state != SessionState.COMPLETE.value:
            changes = {name: value for name, value in row.items() if name != "id"}
            self._connection.execute(update(schema.sessions).where(columns.id == found.id).values(changes))
            self.written["sessions"] += 1
        return int(found.id)

    def _found_session(self, row: Row) -> Any:
        """Id and state of the same session here: the one of the same id, or one that stands for no other."""
        columns = schema.sessions.c
        same = (
            select(columns.id, columns.state)
            .where(*(columns[name] == row[name] for name in _IDENTITY))
            .order_by(columns.id != row["id"], columns.id)
        )
        return next((row for row in self._connection.execute(same) if row.id not in self._matched), None)

    def _free_id(self, session_id: int) -> int | None:
        """The session's own id, or another one of its millisecond; None if there is none."""
        if not sessions.is_plausible(session_id):
            return None
        size = 1 << sessions.RANDOM_BITS
        time, own = divmod(session_id, size)
        column = schema.sessions.c.id
        of_its_time = select(column).where(column.between(time * size, time * size + size - 1))
        taken = set(self._connection.execute(of_its_time).scalars())
        possible = (time * size + (own + step) % size for step in range(size))
        return next((each for each in possible if each not in taken), None)


def _on_conflict(table: Table, insert: Any) -> Any:
    key = list(table.primary_key.columns)
    new = insert.excluded

    def update_where(condition: Any, columns: Mapping[str, Any] | None = None) -> Any:
        changes = columns or {column.name: new[column.name] for column in table.c if not column.primary_key}
        return insert.on_conflict_do_update(index_elements=key, set_=changes, where=condition)

    if table is schema.trials:
        return update_where(new.recorded_at > table.c.recorded_at)
    if table is schema.parametric_profiles:
        return update_where(new.created_at > table.c.created_at)
    if table is schema.dispatch_misses:
        # the greater count and not the sum: merging a database again must change nothing
        old = table.c
        widest = {
            "count": case((new["count"] > old["count"], new["count"]), else_=old["count"]),
            "first_at": case((new.first_at < old.first_at, new.first_at), else_=old.first_at),
            "last_at": case((new.last_at > old.last_at, new.last_at), else_=old.last_at),
        }
        return update_where(
            or_(new["count"] > old["count"], new.first_at < old.first_at, new.last_at > old.last_at), widest
        )
    if table is schema.workloads:
        return update_where(and_(table.c.name.is_(None), new.name.is_not(None)), {"name": new.name})
    return insert.on_conflict_do_nothing(index_elements=key)


def _same_file(store: Store, other: Store) -> bool:
    ours, theirs = sqlite.file_of(store.database.url), sqlite.file_of(other.database.url)
    return (
        ours is not None
        and theirs is not None
        and theirs.exists()
        and ours.exists()
        and ours.samefile(theirs)
    )
