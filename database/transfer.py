"""Everything that a database holds as JSON lines, and back. The file is what `import` reads on any server and machine.

The first line is `{"format": "tilesight records", "version": 1, "schema": "0004"}`, then each row is one line,
`{"table": "software", "row": {...}}`, those first that others refer to, and the last one is `{"rows": N}`: a file that was cut
short is found out. Times are ISO 8601 in UTC, compressed bodies base64.
"""

from __future__ import annotations

import base64
import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from tempfile import SpooledTemporaryFile, gettempdir
from typing import Any

from sqlalchemy import Connection

from ..errors import InputError
from ..out_file import replacing
from . import schema
from .fields import read_row
from .merge import Merger, whole_tables
from .rows import Row
from .store import Store
from .untrusted import Marks, Reading

FORMAT = "tilesight records"
VERSION = 1
ENDINGS = (".jsonl", ".ndjson")

_IN_MEMORY = 32 << 20  # bytes of checked rows that need no file


def export_everything(store: Store, path: str | Path) -> dict[str, int]:
    """Write all rows of all tables to JSON lines as they are at one moment; returns their number by table.

    An existing file is replaced, and only once the new one is whole. Raises `InputError` for an ending or a path that will
    not do.
    """
    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise InputError(f"export to '{path}': everything is written as JSON lines; name a file that ends in {' or '.join(ENDINGS)}")
    with replacing(path, f"export to '{path}' failed") as partial_path:
        return store.database.read(lambda connection: _write(connection, partial_path))


@dataclass(frozen=True, slots=True)
class Imported:
    """What an import did. `origin` is the mark that its facts bear; "" where the file was trusted."""

    written: Mapping[str, int]  # rows that are new or were changed, by table
    skipped: Mapping[str, int]  # rows that a stranger's file may not bring, by table
    origin: str


def import_everything(store: Store, path: str | Path, *, trusted: bool = False, origin: str | None = None) -> Imported:
    """Add the rows of a file that `export_everything` wrote, in one transaction: all of it or nothing. The file is read and
    checked before that, so that others who write wait no longer than for the writing.

    Nothing in the file is believed: see `untrusted`. Unless it is `trusted`, what it says is kept as another's: its devices
    and software are marked with `origin` (None: the file's name), so that it is seen in all views and never re-used here.
    Raises `InputError` that names the line and the field.
    """
    path = Path(path)
    marks = None if trusted else Marks(origin or path.name)

    with Reading(path, marks) as reading, SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8") as checked:
        check_header(reading)
        try:
            for table, rows in reading.batches():
                checked.write(json.dumps([table.name, [plain(row) for row in rows]]) + "\n")
        except OSError as error:
            raise InputError(f"import '{path}': no room for what was read of it in '{gettempdir()}' ({error}); set TMPDIR") from error

        def work(connection: Connection) -> Mapping[str, int]:
            merger = Merger(store.database, connection)
            checked.seek(0)
            for name, rows in map(json.loads, checked):
                table = schema.metadata.tables[name]
                merger.add(table, [read_row(table, row) for row in rows])
            return dict(merger.written)

        return Imported(store.database.write(work), dict(reading.skipped), marks.origin if marks else "")


def check_header(reading: Reading) -> None:
    found = reading.header()
    if found.get("format") != FORMAT or set(found) != {"format", "version", "schema"}:
        raise reading.wrong("this is no export of everything; `tilesight db export FILE.jsonl --everything` writes one")
    if found["version"] != VERSION or found["schema"] not in schema.REVISIONS:
        raise reading.wrong(
            f"it has version {str(found['version'])[:20]!r} and schema {str(found['schema'])[:20]!r}, this TileSight reads version "
            f"{VERSION} and schemas up to {schema.HEAD}: upgrade: pip install --upgrade tilesight"
        )


def _write(connection: Connection, path: Path) -> dict[str, int]:
    written: Counter[str] = Counter()
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps({"format": FORMAT, "version": VERSION, "schema": schema.HEAD}) + "\n")
        for table, rows in whole_tables(connection):
            written[table.name] += len(rows)
            file.writelines(json.dumps({"table": table.name, "row": plain(row)}, allow_nan=False) + "\n" for row in rows)
        file.write(json.dumps({"rows": written.total()}) + "\n")
    return dict(written)


def plain(row: Row) -> Row:
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value
