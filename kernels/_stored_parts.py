"""Tiles of a product that leave by parts of their columns: one is copied while the next one is finished."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ..dtypes import DTYPE_BYTES
from ..search_spaces.stored_parts import PARTS, part_columns


@dataclass(frozen=True)
class Columns:
    """A few columns of the sums of a tile, which stand in one fragment, or in several beside each other."""

    fragment: Any
    first: int  # their first column, in the fragment

    def sum(self, row: Any, column: Any) -> Any:
        """The sum of a row, and of a column that is counted from the first one."""
        return self.fragment[row, self.first + column]

    def all(self, width: int) -> Any:
        """The sums of all rows and `width` columns."""
        return self.fragment[:, self.first : self.first + width]


def columns_of(sums: Any, first: int) -> Columns:
    """The columns from `first` on, of one fragment or a tuple of fragments with as many columns each."""
    if not isinstance(sums, tuple):
        return Columns(sums, first)
    each = int(sums[0].shape[1])
    return Columns(sums[first // each], first % each)


def stored_by_parts(fill: Any, send: Any, rows: int, columns: int, dtype: str) -> Callable[[Any, Any], None]:
    """A function `store(where, c_sum)` for a macro: all parts of a tile.

    Copies of the last parts may go on when it ends.

    Args:
        fill: a macro `(where, c_sum, first, c_parts, slot)` that writes the columns from `first` on to
            `c_parts[slot]`, which no copy reads any more; see `columns_of`.
        send: a macro `(where, first, c_parts, slot)` that stores them.
        rows: of a tile.
        columns: of a tile.
        dtype: of what is stored.
    """
    import tilelang.language as T  # noqa: N812

    width = part_columns(columns, DTYPE_BYTES[dtype])

    @T.macro
    def store_part(where, c_sum, part, c_parts):  # type: ignore[no-untyped-def]
        # the copy of the part before the last one has read its tile; before the first part, all copies of
        # the tile before, of which any part may have been the last one
        T.tma_store_wait(PARTS - 1 if part else 0)
        fill(where, c_sum, part * width, c_parts, part % PARTS)
        send(where, part * width, c_parts, part % PARTS)

    def store(where: Any, c_sum: Any) -> None:
        # a plain function, so that parts are constants
        # one buffer, since TileLang does not know how long copies read it
        c_parts = T.alloc_shared((PARTS, rows, width), dtype)
        for part in range(columns // width):
            store_part(where, c_sum, part, c_parts)

    return store
