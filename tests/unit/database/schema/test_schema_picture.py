"""docs/schema.svg shows the present schema, legibly."""

from __future__ import annotations

import importlib.util
import re
import xml.etree.ElementTree as ElementTree
from pathlib import Path
from types import ModuleType

import pytest

from tilesight.database.schema import tables as schema

DOCS = Path(__file__).resolve().parents[4] / "docs"
SVG = "{http://www.w3.org/2000/svg}"
PICTURE = ElementTree.parse(DOCS / "schema.svg").getroot()
GROUPS = {group.get("id"): group for group in PICTURE.iter(f"{SVG}g") if group.get("id")}


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    specification = importlib.util.spec_from_file_location("draw_schema", DOCS / "draw_schema.py")
    assert specification is not None
    assert specification.loader is not None
    module = importlib.util.module_from_spec(specification)
    import sys

    sys.modules["draw_schema"] = module  # its dataclasses look for it there
    specification.loader.exec_module(module)
    return module


def test_the_picture_is_of_today(drawing: ModuleType) -> None:
    assert drawing.draw() == (DOCS / "schema.svg").read_text(encoding="utf-8"), (
        "draw it anew: python docs/draw_schema.py"
    )


def test_every_table_and_column_is_in_it() -> None:
    assert set(GROUPS) == set(schema.metadata.tables)
    for name, table in schema.metadata.tables.items():
        texts = [text.text for text in GROUPS[name].iter(f"{SVG}text") if text.get("class") != "kind"]
        assert texts == [name, *table.c.keys()]


def test_every_reference_is_a_line() -> None:
    keys = sum(len(column.foreign_keys) for table in schema.metadata.tables.values() for column in table.c)
    assert len(list(PICTURE.iter(f"{SVG}path"))) == keys
    assert len(list(PICTURE.iter(f"{SVG}circle"))) == keys


def boxes() -> dict[str, tuple[float, float, float, float]]:
    found = {}
    for name, group in GROUPS.items():
        rect = group.find(f"{SVG}rect")
        assert rect is not None
        x, y, width, height = (float(rect.get(key, "")) for key in ("x", "y", "width", "height"))
        found[str(name)] = (x, y, x + width, y + height)
    return found


def test_nothing_lies_on_a_text(drawing: ModuleType) -> None:
    placed = boxes()
    for name, (left, upper, right, lower) in placed.items():
        for other, (x, y, x2, y2) in placed.items():
            assert name == other or right <= x or x2 <= left or lower <= y or y2 <= upper, (name, other)
        rows: dict[str, float] = {}
        for text in GROUPS[name].iter(f"{SVG}text"):
            width, x, y = (
                len(str(text.text)) * drawing.CHARACTER,
                float(text.get("x", "")),
                float(text.get("y", "")),
            )
            start, end = (x - width, x) if text.get("text-anchor") == "end" else (x, x + width)
            assert left < start < end < right, (name, text.text)
            assert upper < y - 8 < y < lower, (name, text.text)
            if text.get("text-anchor") == "end":
                assert start > rows[text.get("y", "")], (name, text.text)
            rows[text.get("y", "")] = end
    # lines run between the tables, and touch them only at their edges
    for path in PICTURE.iter(f"{SVG}path"):
        x, y = map(float, re.findall(r"[\d.]+", path.get("d", ""))[:2])
        for step, value in re.findall(r"([HV])([\d.]+)", path.get("d", "")):
            to = (float(value), y) if step == "H" else (x, float(value))
            for name, (left, upper, right, lower) in placed.items():
                crosses = max(min(x, to[0]), left + 1) < min(max(x, to[0]), right - 1) or (
                    x == to[0] and left + 1 < x < right - 1
                )
                beside = max(min(y, to[1]), upper + 1) < min(max(y, to[1]), lower - 1) or (
                    y == to[1] and upper + 1 < y < lower - 1
                )
                assert not (crosses and beside), (name, path.get("d"))
            x, y = to
