"""`tilesight db path`, `status`, `best` and `query`: the contents of the database."""

from __future__ import annotations

import re
from dataclasses import asdict, fields
from typing import TYPE_CHECKING

import click

from ...records.trial import Status
from .. import options, output
from .opening import counts, location_of, open_for_reading, open_with_layers, url_of

if TYPE_CHECKING:
    from ...database import Best


@click.command()
@options.with_options(options.database, options.as_json, options.debug)
def path(database: str | None, as_json: bool) -> None:
    """Print the file of the database, or its URL without the password."""
    location = location_of(url_of(database))
    if as_json:
        output.print_json("db_path", database=location)
    else:
        output.print_line(location)


@click.command()
@options.with_options(options.database, options.as_json, options.debug)
def status(database: str | None, as_json: bool) -> None:
    """Show size, schema and number of records, and the layers below."""
    from ...database import overview
    from ...database.engine.connection import exists

    url = url_of(database)
    if not exists(url):
        if as_json:
            output.print_json("db_status", database=location_of(url), exists=False)
        else:
            output.print_line(f"no database at {location_of(url)} yet; `tilesight tune` makes it")
        return
    with open_with_layers(url) as store:
        found = overview(store)
        layers = [overview(layer) for layer in store.layers]
    if as_json:
        values = {name: value for name, value in asdict(found).items() if name != "name"}
        below = [{"layer": layer.name, "layer_trials": layer.trials} for layer in layers]
        output.print_json("db_status", database=location_of(url), exists=True, **values, layers=below)
        return
    output.print_line(f"database  {location_of(url)}")
    output.print_text(f"size      {found.size_bytes / 1e6:.1f} MB, schema {found.revision}")
    output.print_text(f"sessions  {counts(found.sessions)}")
    output.print_text(f"trials    {counts(found.trials)}")
    for layer in layers:
        output.print_line(f"layer     {layer.name}: {counts(layer.trials)}")
    output.print_line("")
    output.print_table(["table", "rows"], list(found.tables.items()), right=["rows"])


@click.command()
@click.argument("kernel", required=False)
@click.option("--target", metavar="T", help="Only this target.")
@options.with_options(options.database, options.as_json, options.debug)
def best(kernel: str | None, target: str | None, database: str | None, as_json: bool) -> None:
    """Show the best known config of each workload, of KERNEL or of all.

    Verified times; where nothing was measured, what the model predicts, marked so. Layers below the database
    count, too.
    """
    from ...database.exchange.untrusted import MARK

    with open_with_layers(url_of(database)) as store:
        found = sorted(store.best(kernel, target), key=_order)
    if as_json:
        output.print_json("db_best", best=[_fields(row) for row in found])
        return
    if not found:
        output.print_line("nothing is recorded yet; `tilesight tune KERNEL` records trials")
        return
    rates = ["us", "TFLOP/s", "GB/s", "vendor us"]
    dynamic_column = ["dynamic"] if any(row.dynamic for row in found) else []
    compared = any(row.in_turns for row in found)
    marks = [" *" if compared and _is_alone(row) else "" for row in found]  # as in the report of `tune`
    rows = [
        [
            f"{row.operator} {row.shape} {row.dtype}" if row.shape else row.workload,
            row.target,
            *([",".join(row.dynamic)] if dynamic_column else []),
            row.status.value,
            output.number(row.latency_us) + mark,
            *(output.number(value) for value in (row.tflops, row.gb_per_s, row.vendor_us)),
            row.protocol_key,
            str(row.config),
        ]
        for row, mark in zip(found, marks, strict=True)
    ]
    columns = ["workload", "target", *dynamic_column, "status", *rates, "protocol", "config"]
    output.print_table(columns, rows, right=rates, folded=["workload", "protocol", "config"])
    if any(marks):
        output.print_text("* timed alone; the other times are of finalists that were timed in turns")
    if dynamic_column:
        output.print_text("dynamic: dimensions that the kernel takes at run time")
    imported = sum(row.target.endswith(f"({MARK})") for row in found)
    if imported:
        output.print_text(f"rows of targets marked '({MARK})' were imported and are not used here")


@click.command()
@click.argument("sql")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=float,
    default=60.0,
    show_default=True,
    help="End the statement after this time.",
)
@options.with_options(options.database, options.as_json, options.debug)
def query(sql: str, timeout: float, database: str | None, as_json: bool) -> None:
    """Run one reading SQL statement, e.g. 'SELECT * FROM leaderboard LIMIT 5'."""
    from ...database import query as run

    with open_for_reading(url_of(database)) as store:
        columns, found = run(store, sql, seconds=timeout)
    rows = [[value.hex() if isinstance(value, bytes) else value for value in row] for row in found]
    if as_json:
        output.print_json(
            "db_query", columns=columns, rows=[dict(zip(columns, row, strict=True)) for row in rows]
        )
        return
    shown = [[f"{value:.6g}" if isinstance(value, float) else value for value in row] for row in rows]
    output.print_table(columns, shown, folded=columns)


def _is_alone(row: Best) -> bool:
    """Whether its time was taken alone, not in a comparison of finalists."""
    return row.status is Status.VERIFIED and not row.in_turns


def _order(row: Best) -> tuple[object, ...]:
    """The order of rows: by operator, shape, target and protocol, numbers by value (m=2 before m=10)."""
    return row.operator, _counted(row.shape or ""), _counted(row.workload), row.target, row.protocol_key


def _counted(text: str) -> list[tuple[int, str]]:
    """A text split into text and numbers in turn, in the order of the numbers' values, however long."""
    parts = re.split(r"([0-9]+)", text)
    return [
        (len(part.lstrip("0")), part.lstrip("0")) if number % 2 else (0, part)
        for number, part in enumerate(parts)
    ]


def _fields(row: Best) -> dict[str, object]:
    return {**{field.name: getattr(row, field.name) for field in fields(row)}, "config": dict(row.config)}


COMMANDS = (status, path, query, best)
