"""Output of the commands: text of at most 100 columns for people, JSON with stable fields for programs."""

from __future__ import annotations

import json
import math
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import click

from ..tuner.observers import Bars, Lines, Observer
from . import text_table as table

WIDTH = 100
SCHEMA_VERSION = 2  # of the JSON: raised when the meaning of a field changes or a field is removed


@contextmanager
def progress() -> Iterator[Observer]:
    """Show the progress of a session on standard error: bars on a terminal, otherwise one line per phase."""
    if not sys.stderr.isatty():
        yield Lines(lambda line: click.echo(line, err=True))
        return
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


def print_line(text: str) -> None:
    """Print a line without wrapping it, so that it can be copied."""
    click.echo(text)


def number(value: float | None, digits: int = 4) -> str:
    """Format with `digits` significant digits; powers of ten only from a million on."""
    if value is None:
        return "-"
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    before = math.floor(math.log10(abs(value))) + 1
    return f"{value:.{max(0, digits - before)}f}" if -4 < before < 7 else f"{value:.{digits - 1}e}"


def percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f} %"


def value(found: object) -> str:
    """Format the value of a parameter as `--config` reads it."""
    return str(found).lower() if isinstance(found, bool) else str(found)


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
