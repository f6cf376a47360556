"""Files of a replay: its curves as CSV, and a picture of them."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

from ...files import replacing
from ...reports.pictures import check_picture, new_figure, save_figure
from .curves import MARKS
from .replay_runner import Replay

COLUMNS = ("strategy", "operator", "measured", "share", "spread")
PICTURE = "a picture of a replay"
ALL = "all"
# The axis shows 1 - share on a logarithmic scale, with marks at these shares; it ends at the last one.
SHARES = (0.5, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 0.999)
INCHES = (4.4, 3.3)  # size of one plot


def write_curves(path: Path, found: Replay) -> None:
    """Write a row per strategy, operator (or `all`) and number of measurements.

    Raises:
        InputError: the path cannot be written.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for operator in (None, *found.operators):
        for strategy in found.strategies:
            for point in found.summary(strategy, operator, range(1, found.longest + 1)).points:
                writer.writerow(
                    (strategy, operator or ALL, point.measured, f"{point.share:.5f}", f"{point.spread:.5f}")
                )
    with replacing(path, f"curves '{path}' cannot be written") as partial_path:
        partial_path.write_text(text.getvalue(), encoding="utf-8")


def write_picture(path: Path, found: Replay) -> None:
    """Plot the curves over all cases and over those of each operator. Raises as `check_picture`."""
    check_picture(path, PICTURE)
    parts = [None, *found.operators] if len(found.operators) > 1 else [None]
    columns = min(len(parts), 4)
    rows = -(-len(parts) // columns)
    size = (INCHES[0] * columns, INCHES[1] * rows + 0.9)
    figure = new_figure(PICTURE, figsize=size, layout="constrained")
    grid = figure.subplots(rows, columns, squeeze=False, sharey=True).ravel()
    for axes, operator in zip(grid, parts, strict=False):
        _draw(axes, found, operator)
    for axes in grid[len(parts) :]:
        axes.set_visible(False)
    handles, labels = grid[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=min(7, len(labels)), frameon=False)
    save_figure(path, figure)


def _draw(axes: Any, found: Replay, operator: str | None) -> None:
    least = 1 - SHARES[-1]
    for number, strategy in enumerate(found.strategies):
        points = found.summary(strategy, operator, range(1, found.longest + 1)).points
        counts = [p.measured for p in points]
        style, colour = ("-", "--", ":")[number // 10 % 3], f"C{number % 10}"
        axes.plot(
            counts,
            [max(least, 1 - p.share) for p in points],
            style,
            color=colour,
            linewidth=1.4,
            label=strategy,
        )
        low, high = ([max(least, 1 - p.share + sign * p.spread) for p in points] for sign in (-1, 1))
        axes.fill_between(counts, low, high, color=colour, alpha=0.12, linewidth=0)
    cases = sum(operator in (None, case.operator) for case in found.cases)
    axes.set(
        title=f"{operator or 'all operators'}, {cases} cases",
        xscale="log",
        yscale="log",
        ylim=(1 - SHARES[0], 0.9 * least),
    )
    marks = [mark for mark in (*MARKS, 256, 512) if mark <= found.longest]
    axes.set_xticks(marks, [str(mark) for mark in marks])
    axes.set_yticks([1 - share for share in SHARES], [f"{100 * share:g} %" for share in SHARES])
    axes.minorticks_off()
    axes.set(xlabel="measured", ylabel="of the best recorded")
    axes.grid(alpha=0.3)
