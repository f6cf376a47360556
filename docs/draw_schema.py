"""Draws docs/schema.svg from database/schema/tables.py: `python docs/draw_schema.py`. A test holds both
together.

Tables are placed in columns. The line of a reference starts at its row, runs through the gutter beside its
column, and ends at the head of the referenced table. Between columns that are not neighbours it runs over the
lanes above all tables. References to one table share its lane and its colour, so overlapping lines lead to
the same table.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape
from pathlib import Path

from sqlalchemy import JSON, Column, DateTime, Double, Integer, LargeBinary, Table

from tilesight.database.schema import tables as schema

OUT = Path(__file__).with_name("schema.svg")
COLUMNS = (
    ("parametric_profiles", "calibrations", "dispatch_misses"),
    ("software", "environments", "templates", "targets", "workloads", "workload_dims"),
    ("candidates", "predictions", "builds"),
    ("measurements", "failure_reasons"),
    ("sessions", "trials", "baselines"),
)
COLOURS = {
    "software": "#0b7285",
    "environments": "#2b8a3e",
    "templates": "#a61e4d",
    "targets": "#e67700",
    "workloads": "#1864ab",
    "candidates": "#c92a2a",
    "predictions": "#5f3dc4",
    "builds": "#846358",
    "measurements": "#087f5b",
    "failure_reasons": "#868e96",
    "sessions": "#343a40",
}

ROW, HEAD, PAD, CHARACTER = 17, 22, 10, 6.65  # pixels; the width is of one character of the 11-pixel font
BETWEEN = 26  # tables of one column
LANE, MARGIN = 8, 16


@dataclass(frozen=True)
class Box:
    table: Table
    column: int
    x: float
    y: float
    width: float

    @property
    def height(self) -> float:
        return HEAD + ROW * len(self.table.c) + 6

    def row_y(self, name: str) -> float:
        return self.y + HEAD + ROW * (list(self.table.c.keys()).index(name) + 0.5) + 2

    @property
    def head_y(self) -> float:
        return self.y + HEAD / 2


@dataclass(frozen=True)
class Reference:
    source: Box
    name: str
    target: Box

    @property
    def gutters(self) -> tuple[int, int]:
        """That beside the row, and that beside the head. Gutter 0 lies left of the first column."""
        here, there = self.source.column, self.target.column
        if there < here:
            return here, there + 1
        return here + 1, there + 1 if there == here else there


def kind_of(column: Column[object]) -> str:
    kinds = {JSON: "JSON", DateTime: "time", Double: "real", LargeBinary: "bytes", Integer: "integer"}
    found = next((name for kind, name in kinds.items() if isinstance(column.type, kind)), "text")
    return f"{found}?" if column.nullable else found


def draw() -> str:
    placed = {name for column in COLUMNS for name in column}
    assert placed == set(schema.metadata.tables), (
        f"give each table its place in COLUMNS: {placed ^ set(schema.metadata.tables)}"
    )
    references = [
        (table, column, key.column.table.name)
        for table in schema.metadata.tables.values()
        for column, key in _keys(table)
    ]
    where = {name: number for number, column in enumerate(COLUMNS) for name in column}
    # which lanes each gutter needs, before anything has its place
    lanes: dict[int, list[str]] = {number: [] for number in range(len(COLUMNS) + 1)}
    top: list[str] = []
    for table, _, target in references:
        here, there = where[table.name], where[target]
        first, last = (here, there + 1) if there < here else (here + 1, there + 1 if there == here else there)
        for gutter in {first, last}:
            if target not in lanes[gutter]:
                lanes[gutter].append(target)
        if first != last and target not in top:
            top.append(target)
    boxes, right, bottom = _place(lanes, len(top))
    parts = [
        _line(Reference(boxes[table.name], column.name, boxes[target]), lanes, top, boxes)
        for table, column, target in references
    ]
    parts += [
        _arrow(
            name,
            boxes,
            [Reference(boxes[t.name], c.name, boxes[to]) for t, c, to in references if to == name],
        )
        for name in COLOURS
    ]
    parts += [_box(box) for box in boxes.values()]
    width, height = right + MARGIN, bottom + MARGIN
    style = (
        "text{font:11px ui-monospace,'DejaVu Sans "
        "Mono',Menlo,monospace;fill:#212529}.head{font-weight:bold;font-size:12px;fill:#fff}"
        ".kind{fill:#868e96}.key{font-weight:bold}path{fill:none;stroke-width:1.5}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" width="{width:.0f}" '
        f'height="{height:.0f}">\n'
        "<title>Tables of the performance database</title>\n"
        f'<style>{style}</style>\n<rect width="100%" height="100%" fill="#fff"/>\n'
        + "\n".join(parts)
        + "\n</svg>\n"
    )


def _keys(table: Table) -> Iterator[tuple[Column[object], object]]:
    for column in table.c:
        for key in column.foreign_keys:
            yield column, key


def _place(lanes: dict[int, list[str]], tops: int) -> tuple[dict[str, Box], float, float]:
    boxes: dict[str, Box] = {}
    x, top, bottom = float(MARGIN), MARGIN + LANE * (tops + 1), 0.0
    for number, names in enumerate(COLUMNS):
        x += LANE * (len(lanes[number]) + 1)
        width = max(_width(schema.metadata.tables[name]) for name in names)
        y = float(top)
        for name in names:
            boxes[name] = Box(schema.metadata.tables[name], number, x, y, width)
            y += boxes[name].height + BETWEEN
        bottom = max(bottom, y - BETWEEN)
        x += width
    return boxes, x + LANE * (len(lanes[len(COLUMNS)]) + 1), bottom


def _width(table: Table) -> float:
    longest = max(len(column.name) + 2 + len(kind_of(column)) for column in table.c)
    return max(longest * CHARACTER, (len(table.name) + 1) * CHARACTER * 1.15) + 2 * PAD


def _lane_x(gutter: int, target: str, lanes: dict[int, list[str]], boxes: dict[str, Box]) -> float:
    start = (
        MARGIN
        if gutter == 0
        else max(box.x + box.width for box in boxes.values() if box.column == gutter - 1)
    )
    return start + LANE * (lanes[gutter].index(target) + 1)


def _line(reference: Reference, lanes: dict[int, list[str]], top: list[str], boxes: dict[str, Box]) -> str:
    source, target = reference.source, reference.target
    first, last = reference.gutters
    name = target.table.name
    start = source.x if first == source.column else source.x + source.width
    end = target.x if last == target.column else target.x + target.width
    y, head = source.row_y(reference.name), target.head_y
    near, far = (_lane_x(gutter, name, lanes, boxes) for gutter in (first, last))
    way = f"M{start:.1f},{y:.1f} H{near:.1f} "
    if first != last:
        way += f"V{MARGIN + LANE * top.index(name):.1f} H{far:.1f} "
    return f'<path d="{way}V{head:.1f} H{end:.1f}" stroke="{COLOURS[name]}"/>'


def _arrow(name: str, boxes: dict[str, Box], references: list[Reference]) -> str:
    """Heads where lines end, and dots where they begin."""
    box, found = boxes[name], []
    for gutter in sorted({reference.gutters[1] for reference in references}):
        x, away = (box.x, -7) if gutter == box.column else (box.x + box.width, 7)
        found.append(
            f'<polygon points="{x:.1f},{box.head_y:.1f} {x + away:.1f},{box.head_y - 4:.1f} '
            f'{x + away:.1f},{box.head_y + 4:.1f}"/>'
        )
    for reference in references:
        source = reference.source
        x = source.x if reference.gutters[0] == source.column else source.x + source.width
        found.append(f'<circle cx="{x:.1f}" cy="{source.row_y(reference.name):.1f}" r="2.5"/>')
    return f'<g fill="{COLOURS[name]}">{"".join(found)}</g>'


def _box(box: Box) -> str:
    table = box.table
    colour = COLOURS.get(table.name, "#495057")
    lines = [
        f'<g id="{table.name}"><rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" '
        f'height="{box.height:.1f}" rx="3" '
        f'fill="#f8f9fa" stroke="{colour}"/>'
        f'<rect x="{box.x:.1f}" y="{box.y:.1f}" width="{box.width:.1f}" height="{HEAD}" rx="3" '
        f'fill="{colour}"/>'
        f'<text class="head" x="{box.x + PAD:.1f}" y="{box.y + 15:.1f}">{escape(table.name)}</text>'
    ]
    for column in table.c:
        y = box.row_y(column.name) + 4
        to = next((key.column.table.name for key in column.foreign_keys), None)
        fill = f' style="fill:{COLOURS[to]}"' if to else ""
        key = ' class="key"' if column.primary_key else ""
        lines.append(
            f'<text{key}{fill} x="{box.x + PAD:.1f}" y="{y:.1f}">{escape(column.name)}</text>'
            f'<text class="kind" text-anchor="end" x="{box.x + box.width - PAD:.1f}" '
            f'y="{y:.1f}">{kind_of(column)}</text>'
        )
    return "\n".join(lines) + "</g>"


if __name__ == "__main__":
    OUT.write_text(draw(), encoding="utf-8")
