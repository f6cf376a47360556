"""Reads exported files line by line, checks each field, and marks what is imported.

A foreign measurement must never count as one of this machine, a foreign build failure must not exclude a
config here, and no path in a file may be loaded. So, unless the file is trusted, its targets, devices and
software are marked with their origin: its facts hold in no context of this machine, and views show them in
rows of their own. Sessions get ids of this database. Paths of built kernels and published names of workloads
are removed, and rows that affect more than their session are left out: cached profiles, calibrations, misses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from sqlalchemy import Table

from ...errors import InputError
from ...records.session import Context
from ..schema import tables as schema
from ..tables.content_ids import id_of
from ..tables.rows import Row, content_id, software_keys
from ..tables.strict_json import MAX_LINE_BYTES, StrictJsonError, parse, shown
from .row_fields import FieldError, read_row
from .soundness import Soundness

MARK = "imported"  # name of the entry in `software.versions`
NO_LIBRARY = "/dev/null/imported"  # a path that can never exist
MAX_ORIGIN = 100
MAX_FILE_BYTES = 4 << 30  # the keys of all rows are held in memory

_BATCH = 500
_REMAPPED = ("software", "environments", "targets", "predictions", "builds", "measurements")
_LEFT_OUT = ("parametric_profiles", "calibrations", "dispatch_misses")


class Marks:
    """Marks rows as imported. `origin` tells in a few words where they come from."""

    def __init__(self, origin: str) -> None:
        if not origin.strip() or len(origin) > MAX_ORIGIN or not origin.isprintable():
            raise InputError(
                f"origin {shown(origin)} must be a printable text of at most {MAX_ORIGIN} characters, e.g. "
                "--origin 'lab 3'"
            )
        self.origin = origin
        self._ids: dict[str, dict[int, int]] = {table: {} for table in _REMAPPED}

    @classmethod
    def of(cls, origin: str | None, path: Path) -> Self:
        """The marks of a file; without an `origin` its name stands for it, as far as it can be printed."""
        if origin is not None:
            return cls(origin)
        name = "".join(character if character.isprintable() else "?" for character in path.name)
        return cls(name[-MAX_ORIGIN:].strip() or "a file")

    def mark(self, table: Table, row: Row, known: Soundness) -> Row | None:
        """The marked row; None if a row of this table is left out."""
        if table.name in _LEFT_OUT:
            return None
        changed = dict(row)
        for column in table.c:
            for key in column.foreign_keys:
                ids = self._ids.get(key.column.table.name)
                if ids is not None and row[column.name] is not None:
                    changed[column.name] = ids[row[column.name]]
        if table is schema.software:
            changed["versions"] = self.software(row["versions"])
            changed.update(software_keys(changed["versions"]))
        elif table is schema.environments:
            changed["device"] = self.marked(row["device"])
        elif table is schema.targets:
            changed["name"] = self.marked(row["name"])
        elif table is schema.workloads:
            changed["name"] = None  # the row is shared with sessions of this machine
        elif table is schema.builds and row["artifact"] is not None:
            changed["artifact"] = NO_LIBRARY
        elif table is schema.sessions:
            context_ids = known.context_ids(row, self.context)
            changed["environment_id"] = context_ids.environment_id
            changed["shape_family"] = context_ids.shape_family
            changed["context_key"] = f"{MARK} {content_id(self.origin, row['context_key']):016x}"
            changed["owner"] = ""
            changed["messages"] = [f"{MARK} from {self.origin}", *row["messages"]]
        if table.name in self._ids:
            changed["id"] = self._ids[table.name][row["id"]] = id_of(table.name, changed)
        return changed

    def context(self, context: Context) -> Context:
        return replace(
            context,
            workload=replace(context.workload, name=None),
            target=self.marked(context.target),
            device=self.marked(context.device),
            software=self.software(context.software),
        )

    def marked(self, name: str) -> str:
        return f"{name} ({MARK})" if name else ""

    def software(self, versions: Any) -> dict[str, str]:
        return dict(sorted({**versions, MARK: self.origin}.items()))


class UntrustedFile:
    """The checked lines of an exported file, marked with `marks`.

    A context manager. `skipped` counts the rows that were left out, by table.
    """

    def __init__(self, path: Path, marks: Marks | None) -> None:
        self.path, self._marks = path, marks
        self.skipped: Counter[str] = Counter()
        self._line, self._bytes = 0, 0
        self._known = Soundness()
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        try:
            self._file = self.path.open("rb")
        except OSError as error:
            raise InputError(
                f"import '{self.path}': {error.strerror or error}; name a file that can be read"
            ) from error
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._file is not None:
            self._file.close()

    def wrong(self, message: str) -> InputError:
        return InputError(f"import '{self.path}', line {max(1, self._line)}: {message}; nothing was imported")

    def header(self) -> dict[str, Any]:
        found = self._next()
        if found is None:
            raise self.wrong("the file is empty")
        return found

    def batches(self) -> Iterator[tuple[Table, list[Row]]]:
        """Rows in batches of one table, in the order of the file.

        Raises `InputError` that names line and field.
        """
        table, batch, count = schema.software, list[Row](), 0
        while True:
            found = self._next()
            if found is None:
                raise self.wrong("the file ends here without its last line: it was cut short")
            if set(found) == {"rows"}:
                break
            of, row = self._row(found)
            count += 1
            if batch and (of is not table or len(batch) == _BATCH):
                yield table, batch
                batch = []
            table = of
            if row is None:
                self.skipped[of.name] += 1
            else:
                batch.append(row)
        if found["rows"] != count:
            raise self.wrong(f"the last line states {shown(found['rows'])} rows, but the file has {count}")
        if self._next() is not None:
            raise self.wrong("nothing may follow the last line")
        if batch:
            yield table, batch

    def _row(self, found: dict[str, Any]) -> tuple[Table, Row | None]:
        if set(found) != {"table", "row"} or not isinstance(found["row"], dict):
            raise self.wrong('a line must be {"table": ..., "row": {...}}')
        name = found["table"]
        table = schema.metadata.tables.get(name) if isinstance(name, str) else None
        if table is None:
            raise self.wrong(f"unknown table {shown(name)}; known: {', '.join(schema.metadata.tables)}")
        try:
            row = read_row(table, found["row"])
            self._known.check(table, row)
        except FieldError as error:
            raise self.wrong(str(error)) from error
        return table, row if self._marks is None else self._marks.mark(table, row, self._known)

    def _next(self) -> dict[str, Any] | None:
        assert self._file is not None
        try:
            raw = self._file.readline(MAX_LINE_BYTES + 1)
        except OSError as error:
            raise InputError(
                f"import '{self.path}': {error.strerror or error}; name a file that can be read"
            ) from error
        if not raw:
            return None
        self._line += 1
        self._bytes += len(raw)
        if len(raw) > MAX_LINE_BYTES:
            raise self.wrong(f"it has more than {MAX_LINE_BYTES} bytes")
        if self._bytes > MAX_FILE_BYTES:
            raise self.wrong(f"the file has more than {MAX_FILE_BYTES >> 30} GB; merge the database itself")
        try:
            found = parse(raw)
        except StrictJsonError as error:
            raise self.wrong(str(error)) from error
        if not isinstance(found, dict):
            raise self.wrong("a line must be a JSON object")
        return found
