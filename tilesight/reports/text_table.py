"""Text tables: of a given width, with wrapped cells; of one line a row; or with a block of lines a row."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import TextWrapper

GAP = "  "
LEAST_ROOM = 12
_WIDEST_CELL = 200  # padding of columns in one line a row; longer cells push the next ones aside


class _Wrapper(TextWrapper):
    wordsep_re = re.compile(r"(\s+|(?<=,)(?=\S))")


def lines(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    right: Sequence[str],
    folded: Sequence[str],
    width: int | None,
) -> list[str] | None:
    """Lines of a table, the heading first; None if the table is too wide to be read at this width.

    Args:
        columns: Names of the columns.
        rows: Cells of each row; None is an empty cell.
        right: Names of right-aligned columns.
        folded: Names of columns whose cells may be wrapped, between words or after the commas of a config;
            they share the remaining width.
        width: Width of the table in characters; None for one line a row, however long.
    """
    cells = [list(columns), *map(_texts, rows)]
    widths = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    gaps = len(GAP) * (len(columns) - 1)
    if width is None:
        widths = [min(size, _WIDEST_CELL) for size in widths]
    elif sum(widths) + gaps > width:
        fixed = sum(size for column, size in zip(columns, widths, strict=True) if column not in folded)
        wanted = {i: widths[i] for i, column in enumerate(columns) if column in folded}
        rooms = _shared(wanted, width - gaps - fixed)
        widths = [rooms.get(i, size) for i, size in enumerate(widths)]
        if sum(widths) + gaps > width:
            return None
    alignment = [column in right for column in columns]
    return [line for row in cells for line in _row(row, widths, alignment, wraps=width is not None)]


def blocks(columns: Sequence[str], rows: Sequence[Sequence[object]], width: int) -> list[str]:
    """A block of lines for each row, with one value a line beside the name of its column."""
    label = min(max(map(len, columns), default=0), max(width // 2, 1))
    room = max(width - label - len(GAP), 1)
    found: list[str] = []
    for row in rows:
        found += [""] if found else []
        for column, cell in zip(columns, _texts(row), strict=True):
            names, values = fold(column, label), fold(cell, room)
            names += [""] * (len(values) - len(names))
            values += [""] * (len(names) - len(values))
            found += [
                f"{name.ljust(label)}{GAP}{value}".rstrip() for name, value in zip(names, values, strict=True)
            ]
    return found


def fold(text: str, room: int) -> list[str]:
    return _Wrapper(room).wrap(text) or [""] if len(text) > room else [text]


def _texts(row: Sequence[object]) -> list[str]:
    return ["" if value is None else _printable(str(value)) for value in row]


def _row(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool], *, wraps: bool) -> list[str]:
    parts = [fold(cell, width) if wraps else [cell] for cell, width in zip(cells, widths, strict=True)]
    found = []
    for number in range(max(map(len, parts))):
        texts = [part[number] if number < len(part) else "" for part in parts]
        padded = [t.rjust(w) if r else t.ljust(w) for t, w, r in zip(texts, widths, right, strict=True)]
        found.append(GAP.join(padded).rstrip())
    return found


def _shared(wanted: dict[int, int], room: int) -> dict[int, int]:
    """Divide `room` among columns: each gets what it needs, up to an equal share of the remaining room, and
    room for a word at the least."""
    given: dict[int, int] = {}
    for position, (column, size) in enumerate(sorted(wanted.items(), key=lambda item: item[1])):
        share = (room - sum(given.values())) // (len(wanted) - position)
        given[column] = min(size, max(share, LEAST_ROOM))
    return given


def _printable(text: str) -> str:
    """Replace control characters by spaces; they would move the cursor of a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
