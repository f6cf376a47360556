"""`tilesight report`: a session, kernel, dispatch table, dataset or model card as one HTML file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from . import options, output

DEFAULT_OUT = "report.html"


@click.command()
@options.with_options(
    click.argument("subject", metavar="SUBJECT"),
    click.option(
        "--out",
        "-o",
        metavar="FILE",
        default=DEFAULT_OUT,
        show_default=True,
        help="The file to write; it ends in .html. A report there is replaced, another file is not.",
    ),
    click.option(
        "--target",
        metavar="T",
        help="Of kernel.py:name: the target. [default: TILESIGHT_TARGET, or auto]",
    ),
    click.option(
        "--dims", metavar="D", help="Of kernel.py:name: sizes that it takes at run time, as k=v,..."
    ),
    options.arguments,
    options.as_json,
    options.database,
    options.debug,
)
def report(
    subject: str,
    out: str,
    target: str | None,
    dims: str | None,
    arguments: Mapping[str, Any],
    as_json: bool,
    database: str | None,
) -> None:
    """Write a report on SUBJECT: one HTML file that works offline and can be mailed.

    \b
    SUBJECT is
      the id of a session   (`tilesight sessions`): roofline, errors, search, landscape, conditions
      the name of a kernel  its best known config of each workload, beside other implementations
      kernel.py:name        what limits a TileLang kernel in a Python file
      a dispatch table      (.json, of `tilesight plan`): which kernel serves which sizes, at what loss
      a dataset             (.parquet, or a folder of them): errors by operator, sigma, counters
      model                 the card of the model that ships, or the folder of another one

    The file has figures with hints, tables, and downloads as PNG and CSV. Predicted numbers are marked as
    predicted everywhere.

    \b
    tilesight report 3677777799376769 -o matmul.html
    tilesight report matmul.json
    tilesight report model
    """
    from ..api.reporting import write_report

    path = write_report(subject, out, target=target, arguments=arguments, dims=dims, database=database)
    size = path.stat().st_size
    if as_json:
        output.print_json("report", subject=subject, out=str(path), bytes=size)
    else:
        output.print_line(f"report: {path} ({size / 1e6:.2f} MB)")
