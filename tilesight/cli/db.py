"""`tilesight db`: where the performance database is, what is in it, and how to get it out."""

from __future__ import annotations

from dataclasses import asdict, fields
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..errors import DatabaseVersionError
from ..settings import load_settings
from . import options, output

if TYPE_CHECKING:
    from sqlalchemy.engine import URL

    from ..database import Best, Store


@click.group()
def db() -> None:
    """Look into the performance database."""


@db.command()
@options.with_options(options.database, options.debug)
def path(database: str | None) -> None:
    """Print the file of the database, or its URL without the password."""
    output.print_line(_place(_url(database)))


@db.command()
@options.with_options(options.database, options.as_json, options.debug)
def status(database: str | None, as_json: bool) -> None:
    """Show size, schema and number of records."""
    from ..database import overview
    from ..database.connection import exists

    url = _url(database)
    if not exists(url):
        if as_json:
            output.print_json("db_status", database=_place(url), exists=False)
        else:
            output.print_line(f"no database at {_place(url)} yet; `tilesight tune` makes it")
        return
    with _open(url) as store:
        found = overview(store)
    if as_json:
        counts = {name: value for name, value in asdict(found).items() if name != "name"}
        output.print_json("db_status", database=_place(url), exists=True, **counts)
        return
    output.print_line(f"database  {_place(url)}")
    output.print_line(f"size      {found.size_bytes / 1e6:.1f} MB, schema {found.revision}")
    output.print_line(f"sessions  {_counts(found.sessions)}")
    output.print_line(f"trials    {_counts(found.trials)}\n")
    output.print_table(["table", "rows"], list(found.tables.items()), right=["rows"])


@db.command()
@click.argument("kernel", required=False)
@click.option("--target", metavar="T", help="Only this target.")
@options.with_options(options.database, options.as_json, options.debug)
def best(kernel: str | None, target: str | None, database: str | None, as_json: bool) -> None:
    """Show the best known config of each workload, of KERNEL or of all.

    Verified times; where nothing was measured, what the model predicts, marked so.
    """
    with _open(_url(database)) as store:
        found = store.best(kernel, target)
    if as_json:
        output.print_json("db_best", best=[_fields(row) for row in found])
        return
    if not found:
        output.print_line("nothing is recorded yet; `tilesight tune KERNEL` records")
        return
    rates = ["us", "TFLOP/s", "GB/s", "vendor us"]
    rows = [
        [
            f"{row.operator} {row.shape} {row.dtype}" if row.shape else row.workload,
            row.target,
            row.status.value,
            *(output.number(value) for value in (row.latency_us, row.tflops, row.gb_per_s, row.vendor_us)),
            row.protocol_key,
            str(row.config),
        ]
        for row in found
    ]
    columns = ["workload", "target", "status", *rates, "protocol", "config"]
    output.print_table(columns, rows, right=rates, folded=["workload", "protocol", "config"])


@db.command()
@click.argument("sql")
@options.with_options(options.database, options.as_json, options.debug)
def query(sql: str, database: str | None, as_json: bool) -> None:
    """Run one reading SQL statement, e.g. 'SELECT * FROM leaderboard LIMIT 5'."""
    from ..database import query as run

    with _open(_url(database)) as store:
        columns, found = run(store, sql)
    rows = [[value.hex() if isinstance(value, bytes) else value for value in row] for row in found]
    if as_json:
        output.print_json("db_query", columns=columns, rows=[dict(zip(columns, row, strict=True)) for row in rows])
        return
    shown = [[f"{value:.6g}" if isinstance(value, float) else value for value in row] for row in rows]
    output.print_table(columns, shown, folded=columns)


@db.command()
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--view", metavar="NAME", default="records", show_default=True, help="View or table to write.")
@options.with_options(options.database, options.debug)
def export(file: Path, view: str, database: str | None) -> None:
    """Write a view to FILE: .csv, .jsonl (JSON lines) or .parquet, by its ending."""
    from ..database import export as write

    with _open(_url(database)) as store:
        count = write(store, file, view=view)
    output.print_line(f"{count} rows of {view} written to {file}")


def _url(database: str | None) -> URL:
    from ..database.connection import parse_url

    return parse_url(database or load_settings().database_url)


def _place(url: URL) -> str:
    from ..database.faults import display_name
    from ..database.sqlite import file_of

    file = file_of(url)
    return display_name(url) if file is None else str(file.absolute())


def _open(url: URL) -> Store:
    from ..database import open_store

    try:
        return open_store(url, read_only=True)
    except DatabaseVersionError:
        return open_store(url)  # an older one is migrated; for a newer one this says so


def _fields(row: Best) -> dict[str, object]:
    return {**{field.name: getattr(row, field.name) for field in fields(row)}, "config": dict(row.config)}


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
