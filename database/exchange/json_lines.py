"""Export of a whole database to JSON lines, and import of these files into any database.

The first line is `{"format": "tilesight records", "version": 1, "schema": "0007"}`. Each row is one line,
`{"table": "software", "row": {...}}`, referenced rows first. The last line is `{"rows": N}`, so that a
truncated file is detected. Times are ISO 8601 in UTC, compressed bodies base64.
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

from ...errors import InputError
from ...files import replacing
from ..schema import tables as schema
from ..store import Store
from ..tables.rows import Row
from ..tables.trial_rows import sound
from .merge import Merger, whole_tables
from .row_fields import read_row
from .untrusted import Marks, UntrustedFile

FORMAT = "tilesight records"
VERSION = 1
ENDINGS = (".jsonl", ".ndjson")

_IN_MEMORY = 32 << 20  # bytes of checked rows that are held in memory


def export_everything(store: Store, path: str | Path) -> dict[str, int]:
    """Write all rows of all tables, as they are at one moment, to JSON lines; returns their number by table.

    An existing file is replaced once the new one is complete. Raises `InputError` for an unknown ending and
    for a path that cannot be written.
    """
    path = Path(path)
    if path.suffix.lower() not in ENDINGS:
        raise InputError(
            f"export to '{path}': everything is written as JSON lines; name a file that ends in "
            f"{' or '.join(ENDINGS)}"
        )
    with replacing(path, f"export to '{path}' failed") as partial_path:
        return store.database.read(lambda connection: _write(connection, partial_path))


@dataclass(frozen=True, slots=True)
class Imported:
    """The result of an import. `origin` is the mark of the imported facts; "" for a trusted file."""

    written: Mapping[str, int]  # new and changed rows, by table
    skipped: Mapping[str, int]  # rows that only a trusted file may have, by table
    origin: str


def import_everything(
    store: Store, path: str | Path, *, trusted: bool = False, origin: str | None = None
) -> Imported:
    """Add the rows of a file that `export_everything` wrote, all of them in one transaction.

    All rows are checked before the transaction begins (see `untrusted`), so other writers wait only for the
    writing itself.

    Args:
        store: Gets the rows. path: The file. trusted: Use the file's facts like facts of this machine. By
        default its devices and software are marked with `origin`: views show its facts, but they are never
        used here. origin: A few words on where the file comes from; by default the file's name.

    Raises:
        InputError: The message names the line and the field.
    """
    path = Path(path)
    marks = None if trusted else Marks.of(origin, path)

    with (
        UntrustedFile(path, marks) as reading,
        SpooledTemporaryFile(_IN_MEMORY, "w+", encoding="utf-8") as checked,
    ):
        check_header(reading)
        try:
            for table, rows in reading.batches():
                checked.write(json.dumps([table.name, [plain(row) for row in rows]]) + "\n")
        except OSError as error:
            raise InputError(
                f"import '{path}': no room for what was read of it in '{gettempdir()}' ({error}); set TMPDIR"
            ) from error

        def work(connection: Connection) -> Mapping[str, int]:
            merger = Merger(store.database, connection, own_ids=not trusted)
            checked.seek(0)
            for name, rows in map(json.loads, checked):
                table = schema.metadata.tables[name]
                merger.add(table, [read_row(table, row) for row in rows])
            return dict(merger.written)

        return Imported(store.database.write(work), dict(reading.skipped), marks.origin if marks else "")


def check_header(reading: UntrustedFile) -> None:
    found = reading.header()
    if found.get("format") != FORMAT or set(found) != {"format", "version", "schema"}:
        raise reading.wrong(
            "this is not an export of everything; `tilesight db export FILE.jsonl --everything` writes one"
        )
    if found["version"] != VERSION or found["schema"] not in schema.REVISIONS:
        raise reading.wrong(
            f"it has version {str(found['version'])[:20]!r} and schema {str(found['schema'])[:20]!r}, this "
            "TileSight reads version "
            f"{VERSION} and schemas up to {schema.HEAD}: upgrade: pip install --upgrade tilesight"
        )


def _write(connection: Connection, path: Path) -> dict[str, int]:
    written: Counter[str] = Counter()
    with path.open("w", encoding="utf-8", newline="\n") as file:
        file.write(json.dumps({"format": FORMAT, "version": VERSION, "schema": schema.HEAD}) + "\n")
        for table, rows in whole_tables(connection):
            written[table.name] += len(rows)
            with sound(f"of {table.name}"):
                lines = [
                    json.dumps({"table": table.name, "row": plain(row)}, allow_nan=False) + "\n"
                    for row in rows
                ]
            file.writelines(lines)
        file.write(json.dumps({"rows": written.total()}) + "\n")
    return dict(written)


def plain(row: Row) -> Row:
    return {name: _value(value) for name, value in row.items()}


def _value(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    return base64.b64encode(value).decode("ascii") if isinstance(value, bytes) else value
