"""`tilesight db gc` and `tilesight db check`."""

from __future__ import annotations

import click

from ...errors import DatabaseError
from .. import options, output
from .opening import counts, location_of, open_for_reading, url_of


@click.command()
@click.option("--dry-run", is_flag=True, help="Only list what would be removed.")
@click.option(
    "--predictions-older-than",
    metavar="DAYS",
    type=float,
    default=90.0,
    show_default=True,
    help="Remove predictions that led to no measurement.",
)
@click.option(
    "--measurements-older-than",
    metavar="DAYS",
    type=float,
    help="Remove sessions that measured, with their verified times. [default: none]",
)
@click.option(
    "--imported", is_flag=True, help="Remove everything that `tilesight db import` marked as imported."
)
@options.with_options(options.database, options.as_json, options.debug)
def gc(
    dry_run: bool,
    predictions_older_than: float,
    measurements_older_than: float | None,
    imported: bool,
    database: str | None,
    as_json: bool,
) -> None:
    """Remove what can no longer be used, and give its space back.

    Removed are results of older code of a template, sessions that a later one with the same context and
    options supersedes, old predictions, profiles that another version of the reader made, and facts without
    references. Verified measurements stay unless you give their age.
    """
    from ...database import open_store
    from ...database.engine.connection import exists
    from ...database.maintenance.gc import Rules
    from ...database.maintenance.gc import gc as remove
    from ...executor.profile_cache import reader_version
    from ...kernels import operators, templates

    url = url_of(database)
    if not exists(url):
        raise DatabaseError(
            f"there is no database at '{location_of(url)}' yet; `tilesight tune` makes it, or name another "
            "with --db"
        )
    versions = {template.name: template.version for name in operators() for template in templates(name)}
    rules = Rules(versions, reader_version(), predictions_older_than, measurements_older_than, imported)
    with open_store(url) as store:
        found = remove(store, rules, dry_run=dry_run)
    if as_json:
        sizes = {
            "bytes_before": found.bytes_before,
            "bytes_after": found.bytes_after,
            "space_kept": found.space_kept,
        }
        output.print_json("db_gc", dry_run=found.is_dry_run, removed=found.rows, **sizes)
        return
    if not found.rows:
        output.print_line("nothing to remove")
        _print_space(found.space_kept)
        return
    rows = [
        [reason, table, count] for reason, tables in found.rows.items() for table, count in tables.items()
    ]
    output.print_table(["why", "table", "rows"], rows, right=["rows"])
    if dry_run:
        output.print_text(f"{found.total} rows would be removed; run it without --dry-run to remove them")
    else:
        output.print_text(
            f"{found.total} rows removed: {found.bytes_before / 1e6:.1f} MB before, "
            f"{found.bytes_after / 1e6:.1f} MB now"
        )
    _print_space(found.space_kept)


def _print_space(kept: str) -> None:
    if kept:
        output.print_text(
            f"the space is not given back yet: {kept}. The next `tilesight db gc` gives it back"
        )


@click.command()
@options.with_options(options.database, options.as_json, options.debug)
@click.pass_context
def check(context: click.Context, database: str | None, as_json: bool) -> None:
    """Read the whole database and list its faults. Exit code 4 if there are any."""
    from ...database.maintenance.check import check as examine

    url = url_of(database)
    with open_for_reading(url) as store:
        found = examine(store)
    if as_json:
        output.print_json(
            "db_check",
            database=location_of(url),
            ok=not found.faults,
            checked=found.rows,
            faults=found.faults,
        )
    else:
        output.print_text(f"{sum(found.rows.values())} rows read: {counts(found.rows)}")
        for fault in found.faults:
            output.print_text(f"- {fault}")
        if found.faults:
            output.print_text(
                "restore a backup; or save what is sound: tilesight db export saved.jsonl --everything, and "
                "import it anew"
            )
        else:
            output.print_line("all is well")
    if found.faults:
        context.exit(DatabaseError.exit_code)


COMMANDS = (gc, check)
