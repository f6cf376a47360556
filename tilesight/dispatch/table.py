"""Dispatch tables: which of a few kernels serves which sizes of one dimension, as a file that can be reviewed, committed and
shipped. `tilesight plan` writes them.
"""

from __future__ import annotations

from pathlib import Path

from ..errors import InputError
from ..out_file import replacing
from .table_fields import table_of
from .table_values import FORMAT, Chosen, DispatchTable, Evidence, Segment

__all__ = ["FORMAT", "MOST_BYTES", "Chosen", "DispatchTable", "Evidence", "Segment", "read_table", "write_table"]

MOST_BYTES = 16 << 20  # of a table file


def read_table(path: str | Path) -> DispatchTable:
    """The table in a file. Every field is looked at: raises `InputError` that names the file and the field."""
    try:
        with Path(path).open("rb") as file:
            raw = file.read(MOST_BYTES + 1)
        if len(raw) > MOST_BYTES:
            raise InputError(f"it is larger than {MOST_BYTES >> 20} MiB, and no table is")
        return table_of(raw.decode())
    except OSError as error:
        raise InputError(f"dispatch table '{path}' cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"dispatch table '{path}': it is not UTF-8 text; `tilesight plan` writes tables") from error
    except InputError as error:
        raise InputError(f"dispatch table '{path}': {error}") from error


def write_table(table: DispatchTable, path: str | Path) -> None:
    """Write a table, in place of a file that is there once all of it is written. Raises `InputError` where that fails."""
    with replacing(Path(path), f"dispatch table '{path}' cannot be written") as partial_path:
        partial_path.write_text(table.text(), encoding="utf-8")
