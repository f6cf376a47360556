"""`tilesight db misses`: the shapes that dispatchers had no record of, as a table or a file of shapes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ...errors import InputError
from .. import options, output
from .opening import open_for_reading, url_of

if TYPE_CHECKING:
    from ...records.winners import Miss


@click.command()
@click.argument("kernel", required=False)
@click.option("--target", metavar="T", help="Only this target.")
@click.option("--limit", metavar="N", type=click.IntRange(min=1), help="Largest number of shapes.")
@click.option(
    "--out",
    metavar="FILE",
    help="Write a file of shapes (.txt) for `tilesight tune --shapes` and `tilesight plan --weights`.",
)
@options.with_options(options.database, options.as_json, options.debug)
def misses(
    kernel: str | None,
    target: str | None,
    limit: int | None,
    out: str | None,
    database: str | None,
    as_json: bool,
) -> None:
    """Show the shapes of KERNEL, or of all, that dispatchers had no record of, most costly first.

    --out writes them as a text file, which can be edited and given to somebody with the device.
    """
    from ...files import check_out
    from ...records.shapes_file import write_misses

    if out is not None:
        check_out(Path(out), ".txt", "shapes files")
    with open_for_reading(url_of(database)) as store:
        found = store.misses(kernel, target)[:limit]
    if out is not None and not found:
        raise InputError(f"no misses are recorded that match, so '{out}' is not written")
    if out is not None:
        targets = sorted({miss.target for miss in found})
        if len(targets) > 1:
            raise InputError(
                f"a file of shapes is for one target, and these are of {', '.join(targets)}: name "
                "one with --target"
            )
        write_misses(Path(out), found)
    if as_json:
        output.print_json("db_misses", misses=[_fields(miss) for miss in found], out=out)
        return
    if not found:
        output.print_text("no misses are recorded: dispatchers count the shapes that they have no record of")
        return
    columns = ["calls", "us a call", "ms in all", "by", "target", "workload"]
    rows = [
        [
            miss.count,
            output.number(miss.expected_us),
            output.number(miss.cost_us / 1e3) if miss.expected_us else "-",
            miss.source,
            miss.target,
            miss.workload.label,
        ]
        for miss in found
    ]
    output.print_table(columns, rows, right=columns[:3], folded=["workload"])
    if out is not None:
        output.print_line(f"shapes: {out}")


def _fields(miss: Miss) -> dict[str, object]:
    return {
        "operator": miss.workload.operator,
        "workload": miss.workload.key,
        "shape": miss.workload.name,
        "dtype": miss.workload.dtype,
        "target": miss.target,
        "device": miss.device,
        "template": miss.template,
        "calls": miss.count,
        "expected_us": miss.expected_us,
        "cost_us": miss.cost_us,
        "source": miss.source,
        "config": miss.config,
        "first_at": miss.first_at,
        "last_at": miss.last_at,
    }
