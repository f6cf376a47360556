"""Adds the rows of another database. Equal facts have equal ids, so merging again changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, and_, case, or_, select, text, update

from ...errors import InputError
from ...records.session import SessionState
from ..engine import faults, sqlite
from ..engine.connection import Database
from ..schema import tables as schema
from ..store import Store
from ..tables.rows import Row

_CHUNK = 500
_RANDOM_BITS = 11  # lowest bits of a session's id; the others are its time: `new_session_id`
# columns that differ between sessions that have the same id by chance
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
        with faults.translated(
            merger.database.url
        ):  # errors of writing must name the database that is written
            merger.add(table, rows)


class Merger:
    """Adds rows within one transaction, tables in the order of `schema.metadata.sorted_tables`.

    `written` counts new and changed rows by table.
    """

    def __init__(self, database: Database, connection: Connection) -> None:
        self.database, self._connection = database, connection
        self.written: Counter[str] = Counter()
        self.sessions: dict[int, int] = {}  # id in the other database -> id here
        self._statements: dict[str, Any] = {}

    def add(self, table: Table, rows: Sequence[Row]) -> None:
        if table is schema.sessions:
            for row in rows:
                self.sessions[row["id"]] = self._add_session(row)
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
        for session_id in _possible_ids(row["id"]):
            found = (
                self._connection.execute(select(schema.sessions).where(columns.id == session_id))
                .mappings()
                .first()
            )
            if found is None:
                self._connection.execute(schema.sessions.insert(), {**row, "id": session_id})
                self.written["sessions"] += 1
                return session_id
            if all(found[name] == row[name] for name in _IDENTITY):
                if (
                    row["state"] == SessionState.COMPLETE.value
                    and found["state"] != SessionState.COMPLETE.value
                ):
                    changes = {name: value for name, value in row.items() if name != "id"}
                    self._connection.execute(
                        update(schema.sessions).where(columns.id == session_id).values(changes)
                    )
                    self.written["sessions"] += 1
                return session_id
        raise InputError(
            f"session {row['id']}: all ids of its millisecond are taken; begin a session later and merge "
            "that one"
        )


def _possible_ids(session_id: int) -> Iterator[int]:
    """The session's own id, then the other ids of its millisecond, always in the same order: a second merge
    finds the session again."""
    size = 1 << _RANDOM_BITS
    time, own = divmod(session_id, size)
    return (time * size + (own + step) % size for step in range(size))


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
