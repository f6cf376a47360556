"""Output of the commands: text that fits the terminal for people, JSON with stable fields for programs."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum

import click

from ..reports.numbers import number, percent, spread, value
from ..reports.report import Report
from ..tuner.observers import Bars, EventLines, Lines, Observer

__all__ = [
    "Verbosity",
    "json_line",
    "number",
    "percent",
    "print_json",
    "print_line",
    "print_report",
    "print_table",
    "print_text",
    "progress",
    "spread",
    "value",
]

_NARROWEST = 20  # a narrower terminal wraps the lines itself
SCHEMA_VERSION = 2  # of the JSON: raised when the meaning of a field changes or a field is removed


class Verbosity(StrEnum):
    """How much of a command's progress is shown."""

    QUIET = "quiet"  # nothing
    NORMAL = "normal"  # bars on a terminal, otherwise one line per phase and one every ten seconds
    VERBOSE = "verbose"  # one line per event
    LIVE = "live"  # the best so far, what limits it, what is tried and what is left, drawn in place


@contextmanager
def progress(verbosity: Verbosity = Verbosity.NORMAL, budget_s: float | None = None) -> Iterator[Observer]:
    """Show the progress of a session on standard error. `budget_s` is the time limit of the command."""

    def write(line: str) -> None:
        click.echo(line, err=True)

    if verbosity is Verbosity.QUIET:
        yield Observer()
    elif verbosity is Verbosity.VERBOSE:
        yield EventLines(write)
    elif verbosity is Verbosity.LIVE:
        with _live(write, budget_s) as live:
            yield live
    elif not sys.stderr.isatty():
        with Lines(write).ticking() as lines:
            yield lines
    else:
        from rich.console import Console

        with Bars(Console(stderr=True)).shown() as bars:
            yield bars


@contextmanager
def _live(write: Callable[[str], None], budget_s: float | None) -> Iterator[Observer]:
    """A block that is drawn in place, or lines where that is not possible."""
    from ..tuner.live import LiveLines, LiveSession
    from .live_view import line, live_block, moves_cursor

    if not moves_cursor(sys.stderr):
        with LiveLines(write, line, budget_s).ticking() as lines:
            yield lines
        return
    from rich.console import Console

    console = Console(stderr=True)
    session = LiveSession(
        lambda text: console.print(text, markup=False, highlight=False, soft_wrap=True), budget_s
    )
    with live_block(console, session):
        yield session


def print_hint(text: str) -> None:
    """Print a line for people to standard error, since it is no part of the answer."""
    click.echo(text, err=True)


def print_json(kind: str, **fields: object) -> None:
    """Print one JSON object to standard output. NaN and infinity become null."""
    click.echo(
        json.dumps(
            _plain({"schema_version": SCHEMA_VERSION, "kind": kind, **fields}), indent=2, allow_nan=False
        )
    )


def json_line(fields: Mapping[str, object]) -> str:
    """One line of JSON. NaN and infinity become null."""
    return json.dumps(_plain(fields), allow_nan=False) + "\n"


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Sequence[str] = (),
    folded: Sequence[str] = (),
) -> None:
    """Print a table: one line a row where standard output is no terminal. On a terminal, cells are wrapped to
    its width, or each row becomes a block of lines where it is too narrow for that.

    Args:
        columns: Names of the columns.
        rows: Cells of each row; None is an empty cell.
        right: Names of right-aligned columns.
        folded: Names of columns whose cells may be wrapped.
    """
    report = Report()
    report.table(columns, rows, right=right, folded=folded)
    print_report(report)


def print_text(text: str = "", *, bold: bool = False) -> None:
    """Print a paragraph, wrapped to the width of the output."""
    report = Report()
    report.text(text, bold=bold)
    print_report(report)


def print_report(report: Report) -> None:
    """Print a report in the width of the terminal; tables with one line a row where there is none."""
    for line, bold in report.lines(_terminal_columns()):
        click.secho(line, bold=bold or None)


def print_line(text: str) -> None:
    """Print a line without wrapping it, so that it can be copied."""
    click.echo(text)


def _terminal_columns() -> int | None:
    """The width of the terminal; None if standard output is none."""
    return max(_NARROWEST, shutil.get_terminal_size().columns) if sys.stdout.isatty() else None


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
