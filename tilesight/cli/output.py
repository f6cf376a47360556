"""Output of the commands: text of at most 100 columns for people, JSON with stable fields for programs."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from enum import StrEnum

import click

from ..reports import text_table as table
from ..reports.numbers import number, percent, value
from ..reports.report import WIDTH, Report
from ..tuner.observers import Bars, EventLines, Lines, Observer

__all__ = [
    "Verbosity",
    "number",
    "percent",
    "print_json",
    "print_line",
    "print_report",
    "print_table",
    "print_text",
    "progress",
    "value",
]

SCHEMA_VERSION = 1  # of the JSON: raised when the meaning of a field changes or a field is removed


class Verbosity(StrEnum):
    """How much of a command's progress is shown."""

    QUIET = "quiet"  # nothing
    NORMAL = "normal"  # bars on a terminal, otherwise one line per phase and one every ten seconds
    VERBOSE = "verbose"  # one line per event


@contextmanager
def progress(verbosity: Verbosity = Verbosity.NORMAL) -> Iterator[Observer]:
    """Show the progress of a session on standard error."""

    def write(line: str) -> None:
        click.echo(line, err=True)

    if verbosity is Verbosity.QUIET:
        yield Observer()
    elif verbosity is Verbosity.VERBOSE:
        yield EventLines(write)
    elif not sys.stderr.isatty():
        with Lines(write).ticking() as lines:
            yield lines
    else:
        from rich.console import Console

        with Bars(Console(stderr=True)).shown() as bars:
            yield bars


def print_json(kind: str, **fields: object) -> None:
    """Print one JSON object to standard output. NaN and infinity become null."""
    click.echo(
        json.dumps(
            _plain({"schema_version": SCHEMA_VERSION, "kind": kind, **fields}), indent=2, allow_nan=False
        )
    )


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[object]],
    *,
    right: Sequence[str] = (),
    folded: Sequence[str] = (),
) -> None:
    """Print a table. `right` names right-aligned columns; columns in `folded` share the remaining width."""
    heading, *others = table.lines(columns, rows, right, folded, _width())
    click.secho(heading, bold=True)
    for line in others:
        click.echo(line)


def print_text(text: str = "", *, bold: bool = False) -> None:
    """Print a paragraph, wrapped to the width of the output."""
    for line in table.fold(text, _width()):
        click.secho(line, bold=bold or None)


def print_report(report: Report) -> None:
    """Print a report in the width of the output."""
    for line, bold in report.lines(_width()):
        click.secho(line, bold=bold or None)


def print_line(text: str) -> None:
    """Print a line without wrapping it, so that it can be copied."""
    click.echo(text)


def _width() -> int:
    return max(60, min(WIDTH, shutil.get_terminal_size().columns)) if sys.stdout.isatty() else WIDTH


def _plain(value: object) -> object:
    if isinstance(value, Mapping):
        return {str(key): _plain(member) for key, member in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(member) for member in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, bool | int | str) else str(value)
