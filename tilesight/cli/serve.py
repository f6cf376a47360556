"""`tilesight serve`: the database, its sessions and dispatch tables in the browser of this machine."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from . import options, output

ENDED = "serve: ended"


@click.command()
@options.with_options(
    click.argument("paths", metavar="[TABLE|FOLDER]...", nargs=-1, type=click.Path(path_type=Path)),
    click.option(
        "--port",
        metavar="N",
        type=click.IntRange(0, 65535),
        default=0,
        help="Port of 127.0.0.1. [default: a free one]",
    ),
    options.database,
    options.as_json,
    click.option("--debug", is_flag=True, help="Show tracebacks."),
)
def serve(paths: tuple[Path, ...], port: int, database: str | None, as_json: bool, debug: bool) -> None:
    """Show the database in a browser on this machine: sessions with their reports, records, tables and views,
    kernels, the cost model, and dispatch tables: TABLE (.json, of `tilesight plan`) or all of a FOLDER.

    The command prints an address, and answers until Ctrl-C. It only reads. The address has a random token,
    and only 127.0.0.1 is answered; several people of this machine, or windows of one, may look at once.

    \b
    tilesight serve
    tilesight serve tables/ --db team.db --port 8000
    """
    from ..server.listener import Listener
    from ..server.site import Site
    from ..server.source import opened_source

    with opened_source(database, paths) as source, Listener(Site(source, debug=debug), port) as listener:
        if as_json:
            output.print_json("serve", address=listener.address, port=listener.server_port)
        else:
            output.print_line(listener.address)
            output.print_hint(
                "whoever has this address, on this machine, can read the database; Ctrl-C ends it"
            )
        sys.stdout.flush()
        try:
            listener.serve_forever(poll_interval=0.2)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(ENDED) from None
