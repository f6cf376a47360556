"""Another database's rows into this one. Facts are one row by their ids, so merging again changes nothing."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import Connection, Table, and_, case, or_, select, text, update

from ..errors import InputError
from ..session import State
from . import faults, schema, sqlite
from .connection import Database
from .rows import Row
from .store import Store

_CHUNK = 500
_RANDOM_BITS = 11  # of a session's id, below its time: see `sessions.new_session_id`
# what tells a session from another one that has its id by chance
_IDENTITY = ("context_key", "template_id", "workload_id", "target_id", "environment_id", "effort", "seed", "options_key", "started_at")


def merge(store: Store, other: Store) -> dict[str, int]:
    """Add all that `other` knows to `store`, in one transaction: all of it or nothing. Returns rows written, by table.

    A session that both have keeps the state that came further; one that still runs over there counts as interrupted here.
    """
    if store.database.url == other.database.url or _same_file(store, other):
        raise InputError(f"'{other.name}' is the database itself; name another one to merge into it")

    def work(connection: Connection) -> dict[str, int]:
        merger = Merger(store.database, connection)
        other.database.read(lambda reading: _copy(reading, merger))
        return dict(merger.written)

    return store.database.write(work)


def whole_tables(connection: Connection) -> Iterator[tuple[Table, Sequence[Row]]]:
    """All rows of all tables as they were at one moment, those first that others refer to."""
    if connection.dialect.name == "postgresql":
        connection.execute(text("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ"))
    for table in schema.metadata.sorted_tables:
        key = list(table.primary_key.columns)
        found = connection.execution_options(yield_per=_CHUNK).execute(select(table).order_by(*key))
        for part in found.mappings().partitions():
            yield table, [dict(row) for row in part]


def _copy(reading: Connection, merger: Merger) -> None:
    for table, rows in whole_tables(reading):
        with faults.translated(merger.database.url):  # errors of writing are not the other database's
            merger.add(table, rows)


class Merger:
    """Adds rows within one transaction. Rows come in the order of `schema.metadata.sorted_tables`. `written` counts rows that
    are new or were changed, by table."""

    def __init__(self, database: Database, connection: Connection) -> None:
        self.database, self._connection = database, connection
        self.written: Counter[str] = Counter()
        self.sessions: dict[int, int] = {}  # their id there -> here
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
        if row["state"] == State.RUNNING.value:
            row = {**row, "state": State.INTERRUPTED.value}  # nobody runs it here
        for session_id in _places(row["id"]):
            found = self._connection.execute(select(schema.sessions).where(columns.id == session_id)).mappings().first()
            if found is None:
                self._connection.execute(schema.sessions.insert(), {**row, "id": session_id})
                self.written["sessions"] += 1
                return session_id
            if all(found[name] == row[name] for name in _IDENTITY):
                if row["state"] == State.COMPLETE.value and found["state"] != State.COMPLETE.value:
                    changes = {name: value for name, value in row.items() if name != "id"}
                    self._connection.execute(update(schema.sessions).where(columns.id == session_id).values(changes))
                    self.written["sessions"] += 1
                return session_id
        raise InputError(f"session {row['id']}: all ids of its millisecond are taken; begin a session later and merge that one")


def _places(session_id: int) -> Iterator[int]:
    """Its own id, then the others of its millisecond: always in the same order, so that it is found again."""
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
    if table is schema.profile_families:
        return update_where(new.created_at > table.c.created_at)
    if table is schema.dispatch_misses:
        # not the sum: merging the same database again must change nothing
        old = table.c
        widest = {
            "count": case((new["count"] > old["count"], new["count"]), else_=old["count"]),
            "first_at": case((new.first_at < old.first_at, new.first_at), else_=old.first_at),
            "last_at": case((new.last_at > old.last_at, new.last_at), else_=old.last_at),
        }
        return update_where(or_(new["count"] > old["count"], new.first_at < old.first_at, new.last_at > old.last_at), widest)
    if table is schema.workloads:
        return update_where(and_(table.c.name.is_(None), new.name.is_not(None)), {"name": new.name})
    return insert.on_conflict_do_nothing(index_elements=key)


def _same_file(store: Store, other: Store) -> bool:
    ours, theirs = sqlite.file_of(store.database.url), sqlite.file_of(other.database.url)
    return ours is not None and theirs is not None and theirs.exists() and ours.exists() and ours.samefile(theirs)
