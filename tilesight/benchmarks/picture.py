"""A picture of a benchmark: for each operator, how many times as fast as each vendor implementation."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..reports.pictures import new_figure, save_figure
from .table import BenchRow, BenchTable, shape_text

PICTURE = "a picture of a benchmark"
INCHES_PER_ROW = 0.34
COLOURS = ("C0", "C1", "C2", "C4", "C5")


def write_picture(path: Path, table: BenchTable) -> None:
    """Write bars of the ratios, an operator below the other, to a .png or .svg file.

    Raises:
        InputError: the file cannot be written.
        ToolchainError: matplotlib is missing.
    """
    parts = [(operator, [row for row in table.of(operator) if row.ratio]) for operator in table.operators]
    parts = [(operator, rows) for operator, rows in parts if rows]
    heights = [1 + len(rows) * max(1, _vendors(rows)) * 0.55 for _, rows in parts] or [1.0]
    size = (8.5, INCHES_PER_ROW * sum(heights) + 1.2)
    figure = new_figure(PICTURE, figsize=size, layout="constrained")
    grid = figure.subplots(max(1, len(parts)), 1, squeeze=False, height_ratios=heights).ravel()
    for axes, (operator, rows) in zip(grid, parts, strict=False):
        _draw(axes, operator, rows)
    if not parts:
        grid[0].text(0.5, 0.5, "no workload was measured beside a vendor", ha="center")
        grid[0].set_axis_off()
    figure.suptitle(f"times as fast as the vendor: {table.device or table.target}, {table.date}")
    save_figure(path, figure)


def _vendors(rows: list[BenchRow]) -> int:
    return len({name for row in rows for name in row.vendors_us})


def _draw(axes: Any, operator: str, rows: list[BenchRow]) -> None:
    names = list(dict.fromkeys(name for row in rows for name in row.vendors_us))
    width = 0.8 / max(1, len(names))
    for number, name in enumerate(names):
        places, ratios = [], []
        for position, row in enumerate(rows):
            if name in row.vendors_us and row.ours_us:
                places.append(position + (number - (len(names) - 1) / 2) * width)
                ratios.append(row.vendors_us[name] / row.ours_us)
        bars = axes.barh(places, ratios, width * 0.9, color=COLOURS[number % len(COLOURS)], label=name)
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
    axes.axvline(1, color="0.3", linewidth=0.8)
    axes.set_yticks(range(len(rows)), [row.workload.name or shape_text(row.workload) for row in rows])
    axes.tick_params(labelsize=8)
    axes.invert_yaxis()
    axes.margins(x=0.12)
    axes.set_title(operator, loc="left", fontsize=10)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1.0, 0.5), frameon=False)
