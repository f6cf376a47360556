"""`tilesight watch`: a session that another process runs, in the terminal."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

import click

from . import options, output
from .live_view import Plain, Screen, moves_cursor

ENDED = "watch: ended; the session goes on"


@click.command()
@click.argument("session_id", metavar="[SESSION]", required=False, type=int)
@options.with_options(
    click.option(
        "--every",
        metavar="SECONDS",
        type=click.FloatRange(0.1, 3600),
        default=1.0,
        show_default=True,
        help="Time between two looks into the database.",
    ),
    options.database,
    options.debug,
)
def watch(session_id: int | None, every: float, database: str | None) -> None:
    """Show how a session comes on that another process runs: the best config so far and what limits it, what
    was tried last, and what is left.

    Without SESSION, an id of `tilesight sessions`, it is the latest that runs; if none runs, the next one is
    waited for. The command ends with the session. Ctrl-C ends the command alone.

    Where standard output is no terminal, it writes a line for each new phase and best time, and one every ten
    seconds.
    """
    from ..api.watching import watch as run

    try:
        with _shown() as view:
            for found in run(session_id, database=database, every_s=every):
                if found is None:
                    view.say("no session runs; waiting for the next one (Ctrl-C ends this)")
                else:
                    view.show(found)
    except KeyboardInterrupt:
        raise KeyboardInterrupt(ENDED) from None


@contextmanager
def _shown() -> Iterator[Screen | Plain]:
    if not moves_cursor(sys.stdout):
        yield Plain(output.print_line)
        return
    from rich.console import Console

    with Screen(Console()).shown() as screen:
        yield screen
