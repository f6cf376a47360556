"""Tiles of C that leave by parts of their columns through TMA: the width of parts, and their memory."""

from __future__ import annotations

import math

PART_BYTES = 128  # of a row that are stored together, at most: as many as TMA can spread over all banks
PARTS = 2  # tiles of parts that are stored one after the other


def part_columns(columns: int, element_bytes: int) -> int:
    """Columns of a part of a tile with `columns`, whose elements have `element_bytes`."""
    return math.gcd(columns, PART_BYTES // element_bytes)


def bytes_of_parts(rows: int, columns: int, element_bytes: int) -> int:
    """Shared memory for the parts of a tile of `rows` x `columns` that are in flight."""
    return PARTS * rows * part_columns(columns, element_bytes) * element_bytes
