"""Files of strangers, read line by line: nothing is executed, each field is checked, and what is imported stays marked.

A measurement of somebody else must never pass for one of this machine, a claim that a config does not build must not keep it
from being tried here, and a path that a file names must not be loaded. So, unless the file is trusted, its targets, devices and
software bear the mark of where they come from: their facts hold in no context of this machine, and are rows of their own in the
views. The paths of built kernels are left out, and rows that act beyond their session: kept profiles, calibrations, misses.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, BinaryIO, Self

from sqlalchemy import Table

from ..errors import InputError
from ..session import Context
from . import schema
from .fields import FieldError, read_row
from .identity import id_of
from .rows import Row, content_id, software_keys
from .soundness import Soundness
from .strict_json import MAX_LINE_BYTES, StrictJsonError, parse, shown

MARK = "imported"  # name of the entry among a session's versions
NO_LIBRARY = "/dev/null/imported"  # a path under which nothing can ever be
MAX_ORIGIN = 100

_BATCH = 500
_REMAPPED = ("software", "environments", "targets", "predictions", "builds", "measurements")
_LEFT_OUT = ("profile_families", "calibrations", "dispatch_misses")


class Marks:
    """Turns rows of a stranger into rows that say so. `origin` is where they come from, in a few words."""

    def __init__(self, origin: str) -> None:
        if not origin.strip() or len(origin) > MAX_ORIGIN or not origin.isprintable():
            raise InputError(f"origin {shown(origin)} must be a printable text of at most {MAX_ORIGIN} characters, e.g. --origin 'lab 3'")
        self.origin = origin
        self._ids: dict[str, dict[int, int]] = {table: {} for table in _REMAPPED}

    def mark(self, table: Table, row: Row, known: Soundness) -> Row | None:
        """The row as it may stand here; None where it may not."""
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
        elif table is schema.builds and row["artifact"] is not None:
            changed["artifact"] = NO_LIBRARY
        elif table is schema.sessions:
            place = known.place_of(row, self.context)
            changed["environment_id"] = place.environment_id
            changed["shape_family"] = place.shape_family
            changed["context_key"] = f"{MARK} {content_id(self.origin, row['context_key']):016x}"
            changed["owner"] = ""
            changed["messages"] = [f"{MARK} from {self.origin}", *row["messages"]]
        if table.name in self._ids:
            changed["id"] = self._ids[table.name][row["id"]] = id_of(table.name, changed)
        return changed

    def context(self, context: Context) -> Context:
        software = self.software(context.software)
        return replace(context, target=self.marked(context.target), device=self.marked(context.device), software=software)

    def marked(self, name: str) -> str:
        return f"{name} ({MARK})" if name else ""

    def software(self, versions: Any) -> dict[str, str]:
        return dict(sorted({**versions, MARK: self.origin}.items()))


class Reading:
    """The lines of a file of everything, checked and, with `marks`, marked. A context manager.

    `skipped` counts the rows that were left out, by table.
    """

    def __init__(self, path: Path, marks: Marks | None) -> None:
        self.path, self._marks = path, marks
        self.skipped: Counter[str] = Counter()
        self._line = 0
        self._known = Soundness()
        self._file: BinaryIO | None = None

    def __enter__(self) -> Self:
        try:
            self._file = self.path.open("rb")
        except OSError as error:
            raise InputError(f"import '{self.path}': {error.strerror or error}; name a file that can be read") from error
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
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
        """Rows of one table at a time, in the order of the file. Raises `InputError` that names line and field."""
        table, batch, count = schema.software, list[Row](), 0
        while True:
            found = self._next()
            if found is None:
                raise self.wrong("the file ends here, without its last line: it was cut short")
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
            raise self.wrong(f"it says that there are {shown(found['rows'])} rows, and there are {count}")
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
            raise InputError(f"import '{self.path}': {error.strerror or error}; name a file that can be read") from error
        if not raw:
            return None
        self._line += 1
        if len(raw) > MAX_LINE_BYTES:
            raise self.wrong(f"it has more than {MAX_LINE_BYTES} bytes")
        try:
            found = parse(raw)
        except StrictJsonError as error:
            raise self.wrong(str(error)) from error
        if not isinstance(found, dict):
            raise self.wrong("a line must be a JSON object")
        return found
