"""`tilesight db optuna` and `datasette`: what the tools of others need to show the database."""

from __future__ import annotations

from pathlib import Path

import click

from .. import options, output
from .opening import open_for_reading, url_of


@click.command()
@click.argument("session", metavar="SESSION", type=int)
@click.option(
    "--out",
    "-o",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=Path("study.log"),
    show_default=True,
    help="The file: a journal (.log), or SQLite (.db), which takes ten times as long to write.",
)
@options.with_options(options.database, options.as_json, options.debug)
def optuna(session: int, out: Path, database: str | None, as_json: bool) -> None:
    """Write SESSION, an id of `tilesight sessions`, as a study of Optuna, which optuna-dashboard opens.

    Its trials are the candidates: complete with their measured times, pruned where the model kept them from
    being measured, failed with the kind of the failure. If nothing was measured, the values are predicted
    times, and their name says so. A study of TileSight that is there already is replaced, another file is
    not.

    \b
    tilesight db optuna 3677777799376769 -o study.log
    optuna-dashboard study.log
    """
    from ...database.exchange.optuna_study import check_study_out, write_study

    check_study_out(out)
    with open_for_reading(url_of(database)) as store:
        found = store.recorded_session(session)
    count = write_study(found, out)
    if as_json:
        output.print_json("db_optuna", session=session, out=str(out), trials=count)
        return
    output.print_line(f"{count} trials written to {out}; `optuna-dashboard {out}` shows them")


@click.command()
@click.option(
    "--out",
    "-o",
    metavar="FILE",
    type=click.Path(path_type=Path),
    default=Path("metadata.json"),
    show_default=True,
    help="The file, which ends in .json. Metadata that are there are replaced, another file is not.",
)
@options.with_options(options.database, options.as_json, options.debug)
def datasette(out: Path, database: str | None, as_json: bool) -> None:
    """Write metadata for Datasette: titles, units and descriptions of tables, views and columns, and queries
    to begin with.

    Datasette shows an SQLite database in a browser. The metadata are for the file that --db names, by its
    name; the file need not exist.

    \b
    tilesight db datasette -o metadata.json
    datasette serve performance.db --metadata metadata.json
    """
    from ...database.exchange.datasette_metadata import write_metadata

    name = write_metadata(url_of(database), out)
    if as_json:
        output.print_json("db_datasette", out=str(out), database=name)
        return
    output.print_line(f"metadata of database '{name}' written to {out}")


COMMANDS = (optuna, datasette)
