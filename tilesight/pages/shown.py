"""What of a page has something to show: figures without any value and texts without lines are left out."""

from __future__ import annotations

from dataclasses import replace

from .values import (
    BarChart,
    Cell,
    Chart,
    Facts,
    Lanes,
    Matrix,
    Page,
    PageFigure,
    PageTable,
    Parallel,
    Plane,
    Points,
    Steps,
    Texts,
)


def shown(page: Page) -> Page:
    """The page without empty parts, and without those charts of a figure that have nothing to draw."""
    parts: list[PageFigure | Facts | Texts] = []
    for part in page.parts:
        if isinstance(part, PageFigure):
            table = page.tables[part.table]
            charts = {name: chart for name, chart in part.charts.items() if has_values(chart, table)}
            parts += [replace(part, charts=charts)] if charts else []
        elif not isinstance(part, Texts) or part.lines:
            parts.append(part)
    return replace(page, parts=parts)


def has_values(chart: Chart, table: PageTable) -> bool:
    """Whether `chart` draws at least one row of its table. Lines and bands alone do not count."""
    match chart:
        case Plane():
            return any(
                any(_has_point(table, layer, row) for row in range(len(table)))
                for layer in chart.layers
                if isinstance(layer, Points | Steps)
            )
        case BarChart():
            return _any_number(table, [bar.value for bar in chart.series])
        case Matrix() | Parallel():
            return _any_number(table, [bar.value for bar in chart.values])
        case Lanes():
            return _any_number(table, [bar.value for bar in (*chart.series, *chart.waits)])


def _has_point(table: PageTable, layer: Points | Steps, row: int) -> bool:
    unless = layer.unless if isinstance(layer, Points) else ""
    if unless and table.columns[unless].values[row] is not None:
        return False
    return all(_is_number(table.columns[key].values[row]) for key in (layer.x, layer.y))


def _any_number(table: PageTable, keys: list[str]) -> bool:
    return any(_is_number(value) for key in keys for value in table.columns[key].values)


def _is_number(value: Cell) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value == value
