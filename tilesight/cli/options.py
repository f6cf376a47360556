"""Options that several commands share, and what they mean."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from ..errors import InputError
from ..protocol import PROTOCOLS

F = TypeVar("F", bound=Callable[..., Any])

_SECONDS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


def read_time(text: str) -> float:
    """Seconds of `600`, `90s`, `10m`, `1.5h`. Raises `InputError`."""
    count, unit = (text[:-1], text[-1]) if text[-1:] in ("s", "m", "h") else (text, "")
    try:
        seconds = float(count) * _SECONDS[unit]
    except ValueError:
        seconds = -1.0
    if not 0 < seconds < float("inf"):
        raise InputError(f"--budget '{text}' must be a time above 0: seconds (600, 90s), minutes (10m) or hours (1h)")
    return seconds


def budget_for(purpose: str) -> Callable[[F], F]:
    """`--budget`, whose command gets seconds."""

    def read(_context: click.Context, _parameter: click.Parameter, text: str | None) -> float | None:
        return None if text is None else read_time(text)

    return click.option("--budget", metavar="TIME", callback=read, help=f"{purpose}: 600, 90s, 10m, 1h.")


kernel = click.argument("kernel")
target = click.option(
    "--target", metavar="T", default="auto", show_default=True, help="h100, h200, a100, mi300x, cpu, a file, or auto: the GPU found."
)
shapes = click.option(
    "--shape", "shapes", metavar="S", multiple=True, help="Published name (M0) or k=v,...; may be repeated. [default: a set of the kernel]"
)
shape = click.option("--shape", metavar="S", help="Published name (M0) or k=v,... [default: the first of the kernel's set]")
dtype = click.option("--dtype", metavar="D", help="Element type, e.g. bfloat16. [default: the kernel's]")
budget = budget_for("Stop asking after this time and report what is known")
top = click.option("--top", metavar="N", type=click.IntRange(min=1), default=10, show_default=True, help="How many candidates to show.")
config = click.option("--config", metavar="C", help="A config as k=v,...")
database = click.option(
    "--db", "database", metavar="URL", help="Database: SQLAlchemy URL or SQLite file. [default: TILESIGHT_DB, or your own]"
)
seed = click.option("--seed", metavar="N", type=int, default=0, show_default=True, help="Seed of the search.")
workers = click.option("--workers", metavar="N", type=click.IntRange(1, 1024), help="Processes that lower and build. [default: one a core]")
protocol = click.option(
    "--protocol",
    type=click.Choice(list(PROTOCOLS)),
    default="default",
    show_default=True,
    help="Measure each launch alone with a cold cache, or as a serving engine runs it: in a CUDA graph with a warm cache.",
)
cluster = click.option(
    "--cluster",
    metavar="ADDRESS",
    help="A Ray cluster that does the work: auto, local, host:port, ray://host:port. [default: this machine]",
)
as_json = click.option("--json", "as_json", is_flag=True, help="Write one JSON object for programs.")
debug = click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks.")


def with_options(*options: Callable[[F], F]) -> Callable[[F], F]:
    """Apply several options, shown in this order."""

    def apply(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return apply
