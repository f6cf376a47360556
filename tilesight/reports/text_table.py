"""Text tables of a given width. Long cells are wrapped between words, or after the commas of a config."""

from __future__ import annotations

import re
from collections.abc import Sequence
from textwrap import TextWrapper

GAP = "  "
LEAST_ROOM = 12


class _Wrapper(TextWrapper):
    wordsep_re = re.compile(r"(\s+|(?<=,)(?=\S))")


def lines(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    right: Sequence[str],
    folded: Sequence[str],
    width: int,
) -> list[str]:
    """Lines of a table, the heading first.

    Args:
        columns: Names of the columns.
        rows: Cells of each row; None is an empty cell.
        right: Names of right-aligned columns.
        folded: Names of columns whose cells may be wrapped; they share the remaining width.
        width: Width of the table in characters.
    """
    cells = [
        list(columns),
        *(["" if value is None else _printable(str(value)) for value in row] for row in rows),
    ]
    natural = [max(len(row[i]) for row in cells) for i in range(len(columns))]
    fixed = sum(size for column, size in zip(columns, natural, strict=True) if column not in folded)
    room = width - len(GAP) * (len(columns) - 1) - fixed
    rooms = _shared({i: natural[i] for i, column in enumerate(columns) if column in folded}, room)
    widths = [rooms.get(i, size) for i, size in enumerate(natural)]
    return [line for row in cells for line in _row(row, widths, [column in right for column in columns])]


def fold(text: str, room: int) -> list[str]:
    return _Wrapper(room).wrap(text) or [""] if len(text) > room else [text]


def _row(cells: Sequence[str], widths: Sequence[int], right: Sequence[bool]) -> list[str]:
    parts = [fold(cell, width) for cell, width in zip(cells, widths, strict=True)]
    found = []
    for number in range(max(map(len, parts))):
        texts = [part[number] if number < len(part) else "" for part in parts]
        padded = [t.rjust(w) if r else t.ljust(w) for t, w, r in zip(texts, widths, right, strict=True)]
        found.append(GAP.join(padded).rstrip())
    return found


def _shared(wanted: dict[int, int], room: int) -> dict[int, int]:
    """Divide `room` among columns: each gets what it needs, up to an equal share of the remaining room."""
    given: dict[int, int] = {}
    for position, (column, size) in enumerate(sorted(wanted.items(), key=lambda item: item[1])):
        share = (room - sum(given.values())) // (len(wanted) - position)
        given[column] = min(size, max(share, LEAST_ROOM))
    return given


def _printable(text: str) -> str:
    """Replace control characters by spaces; they would move the cursor of a terminal."""
    return "".join(c if c.isprintable() else " " for c in text)
