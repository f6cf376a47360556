"""Inserts of rows.

Each table's INSERT is compiled once: recording a trial takes about seven inserts, and compiling them would
take longer than running them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Dialect, Table, func

from ...machine.fork_locks import ForkLock
from ..engine.connection import Database
from ..schema import tables as schema
from .rows import Row, Rows

_MOST_KNOWN = 200_000  # ids of written facts that are remembered, about 20 MB
_TABLES = tuple(schema.metadata.sorted_tables)  # referenced tables first
_REPLACED = frozenset(
    (schema.trials, schema.parametric_profiles)
)  # a new row replaces the row of the same key
_CHANGING = _REPLACED | {schema.workloads}


class Writer:
    """Writes rows of facts, skipping those that exist, and rows that replace others."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: set[int] = set()  # ids of facts that are in the database
        self._inserts: dict[Table, _Insert] = {}
        self._making = ForkLock()

    def write(self, connection: Connection, prepared: Rows) -> None:
        """Write `prepared`, referenced tables first; facts that are known to exist are skipped."""
        by_table: dict[Table, dict[object, Row]] = {}
        for table, row in prepared:
            if row.get("id") not in self._known:
                by_table.setdefault(table, {})[row.get("id", len(by_table.get(table, ())))] = row
        for table in _TABLES:
            if table in by_table:
                insert = self._insert_into(table, connection.dialect)
                connection.exec_driver_sql(insert.sql, insert.parameters(list(by_table[table].values())))

    def remember(self, prepared: Rows) -> None:
        """Remember that the facts of `prepared` exist: their transaction was committed."""
        if len(self._known) > _MOST_KNOWN:
            self._known = set()
        self._known.update(row["id"] for table, row in prepared if table not in _CHANGING and "id" in row)

    def forget(self) -> bool:
        """Forget which facts exist; returns whether any were remembered."""
        known, self._known = self._known, set()
        return bool(known)

    def _insert_into(self, table: Table, dialect: Dialect) -> _Insert:
        found = self._inserts.get(table)
        if found is None:
            with self._making:
                found = self._inserts[table] = _Insert(table, self._statement(table), dialect)
        return found

    def _statement(self, table: Table) -> Any:
        insert = self._database.insert(table)
        key = list(table.primary_key.columns)
        if table in _REPLACED:
            changes = {
                column.name: insert.excluded[column.name] for column in table.c if not column.primary_key
            }
            return insert.on_conflict_do_update(index_elements=key, set_=changes)
        if table is schema.workloads:
            # a workload that was recorded without its published name gets the name
            name = func.coalesce(insert.excluded.name, table.c.name)
            return insert.on_conflict_do_update(index_elements=key, set_={"name": name})
        return insert.on_conflict_do_nothing(index_elements=key)


class _Insert:
    """One compiled INSERT."""

    def __init__(self, table: Table, statement: Any, dialect: Dialect) -> None:
        names = [column.name for column in table.c]
        compiled = statement.compile(dialect=dialect, column_keys=names)
        self.sql = str(compiled)
        self._order: list[str] | None = list(compiled.positiontup) if compiled.positional else None
        self._names = names
        self._processors: list[tuple[str, Callable[[Any], Any]]] = []
        for column in table.c:
            processor = column.type.dialect_impl(dialect).bind_processor(dialect)
            if processor is not None:
                self._processors.append((column.name, processor))

    def parameters(self, rows: Sequence[Row]) -> Any:
        """The driver's parameters of one row, or a list of them."""
        found = [self._of(row) for row in rows]
        return found[0] if len(found) == 1 else found

    def _of(self, row: Row) -> tuple[Any, ...] | dict[str, Any]:
        values = {name: row[name] for name in self._names}
        for name, processor in self._processors:
            values[name] = processor(values[name])
        return values if self._order is None else tuple(values[name] for name in self._order)
