"""Rows into their tables. What is compiled for a table is kept, and the driver keeps the statement prepared: recording a trial
is some seven inserts in a transaction of its own, and compiling them would take longer than they do."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Connection, Dialect, Table, func

from . import schema
from .connection import Database
from .rows import Row, Rows

_MOST_KNOWN = 200_000  # ids remembered as written, about 20 MB
_TABLES = tuple(schema.metadata.sorted_tables)  # those first that others refer to
_REPLACED = frozenset((schema.trials, schema.profile_families))  # a row of the same key takes the place of what was there
_CHANGING = _REPLACED | {schema.workloads}


class Writer:
    """Writes rows of facts, which are there already or are new, and rows that take the place of others."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: set[int] = set()  # ids of facts that are in the database
        self._inserts: dict[Table, _Insert] = {}
        self._making = threading.Lock()

    def write(self, connection: Connection, prepared: Rows) -> None:
        """Write `prepared`, facts that are there already left out, in the order in which tables refer to each other."""
        by_table: dict[Table, dict[object, Row]] = {}
        for table, row in prepared:
            if row.get("id") not in self._known:
                by_table.setdefault(table, {})[row.get("id", len(by_table.get(table, ())))] = row
        for table in _TABLES:
            if table in by_table:
                insert = self._insert_into(table, connection.dialect)
                connection.exec_driver_sql(insert.sql, insert.parameters(list(by_table[table].values())))

    def remember(self, prepared: Rows) -> None:
        """The facts of `prepared` are in the database for certain: their transaction was committed."""
        if len(self._known) > _MOST_KNOWN:
            self._known = set()
        self._known.update(row["id"] for table, row in prepared if table not in _CHANGING and "id" in row)

    def forget(self) -> bool:
        """Take no fact for written; whether any was."""
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
            changes = {column.name: insert.excluded[column.name] for column in table.c if not column.primary_key}
            return insert.on_conflict_do_update(index_elements=key, set_=changes)
        if table is schema.workloads:
            # a workload first met without its published name learns it
            name = func.coalesce(insert.excluded.name, table.c.name)
            return insert.on_conflict_do_update(index_elements=key, set_={"name": name})
        return insert.on_conflict_do_nothing(index_elements=key)


class _Insert:
    """One INSERT as the driver takes it."""

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
        """One row's, or a list of them."""
        found = [self._of(row) for row in rows]
        return found[0] if len(found) == 1 else found

    def _of(self, row: Row) -> tuple[Any, ...] | dict[str, Any]:
        values = {name: row[name] for name in self._names}
        for name, processor in self._processors:
            values[name] = processor(values[name])
        return values if self._order is None else tuple(values[name] for name in self._order)
