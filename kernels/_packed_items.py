"""Rows of several items that follow each other along one axis, in tiles that lie within one item.

`ends` has the first row of each item, and at last the number of rows. A tile of item b has the number
`ends[b] // block + b` or a later one, which leaves room for all tiles of the items before. So the number of
tiles follows from the shapes alone, and few tiles have no rows.
"""

from typing import Any


def block_count(rows: Any, items: Any, block: int) -> Any:
    """Tiles of `block` rows, with those that have no rows."""
    return rows // block + items


def item_finder(items: Any, block: int) -> Any:
    """A macro `find(ends, index, found)`: the last item whose tiles begin at the tile `index` or before.

    Args:
        items: number of items; at most 65536 where it is not known.
        block: rows of a tile.

    Returns:
        The macro, which adds the item to the variable `found`, which is 0.
    """
    import tilelang.language as T  # noqa: N812

    steps = (items - 1).bit_length() if isinstance(items, int) else 16

    @T.macro
    def find(ends, index, found: T.Ref):  # type: ignore[no-untyped-def]
        for step in T.unroll(steps):
            later = T.min(found + (1 << (steps - 1 - step)), items - 1)
            if ends[later] // block + later <= index:
                found = later

    return find
