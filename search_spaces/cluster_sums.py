"""Sums of parts of k in the shared memory of a cluster of blocks: their places, and their memory."""

from __future__ import annotations

TOGETHER = 4  # neighbours in a row that a thread reads and adds at once: 16 bytes
SUM_BYTES = 4


def row_elements(columns: int, swapped: bool) -> int:
    """Elements from row to row of a tile of C with `columns`.

    The rest of a row is empty, so that the lanes of a warp write to different banks. They have fragments of
    matrix instructions: two neighbours of eight rows, of C or with `swapped` of C^T.
    """
    return columns + (4 if swapped else 8)


def bytes_of_sums(rows: int, columns: int, swapped: bool) -> int:
    """Shared memory of one block for the sums of a tile of C."""
    return rows * row_elements(columns, swapped) * SUM_BYTES
