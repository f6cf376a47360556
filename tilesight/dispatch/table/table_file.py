"""Files of dispatch tables: a few kernels, and the sizes of one dimension for which each of them is used.

`tilesight plan` writes them. They can be reviewed, committed and shipped.
"""

from __future__ import annotations

from pathlib import Path

from ...errors import InputError
from ...files import replacing
from .dispatch_table import FORMAT, DispatchTable, Evidence, Segment, TableChoice
from .table_reader import parse_table

__all__ = [
    "FORMAT",
    "MAX_BYTES",
    "DispatchTable",
    "Evidence",
    "Segment",
    "TableChoice",
    "read_table",
    "write_table",
]

MAX_BYTES = 16 << 20  # of a table file


def read_table(path: str | Path) -> DispatchTable:
    """The table in a file. Every field is checked. Raises `InputError` that names the file and the field."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
        if len(raw) > MAX_BYTES:
            raise InputError(f"it is larger than {MAX_BYTES >> 20} MiB, the limit for tables")
        return parse_table(raw.decode())
    except OSError as error:
        raise InputError(f"dispatch table '{path}' cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(
            f"dispatch table '{path}': it is not UTF-8 text; `tilesight plan` writes tables"
        ) from error
    except InputError as error:
        raise InputError(f"dispatch table '{path}': {error}") from error


def write_table(table: DispatchTable, path: str | Path) -> None:
    """Write a table. An existing file is replaced as a whole. Raises `InputError` if the write fails."""
    with replacing(Path(path), f"dispatch table '{path}' cannot be written") as partial_path:
        partial_path.write_text(table.text(), encoding="utf-8")
