"""`tilesight bench`: tune workloads of several kernels and compare them with the vendor's libraries."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..files import check_out
from ..records.session import Effort
from . import options, output, suggestions

if TYPE_CHECKING:
    from ..tuner.options import TuneOptions


@click.command()
@options.with_options(
    click.argument("kernels", nargs=-1, metavar="[KERNEL]...", shell_complete=suggestions.kernels),
    options.target,
    options.shapes,
    options.dtype,
    click.option(
        "--effort",
        type=click.Choice([e.value for e in Effort]),
        help="How many candidates to try for each workload. [default: TILESIGHT_EFFORT, or quick]",
    ),
    options.protocol,
    options.budget,
    click.option("--out", metavar="FILE", help="Write each row to this .jsonl file as it comes."),
    click.option("--plot", metavar="FILE", help="Draw the ratios to this .png or .svg file."),
    options.verbosity,
    options.as_json,
    options.database,
    options.seed,
    options.workers,
    options.debug,
)
@options.as_session_options
def bench(
    kernels: tuple[str, ...],
    target: str | None,
    shapes: tuple[str, ...],
    dtype: str | None,
    out: str | None,
    plot: str | None,
    verbosity: output.Verbosity,
    as_json: bool,
    session: TuneOptions,
) -> None:
    """Tune all published workloads of each KERNEL, beside the vendor's libraries in the same run.

    KERNEL may be NAME:SHAPE or NAME:SHAPE:DTYPE, for one workload. Without KERNEL: of all kernels that run
    on the target. Workloads that are in the database are not tuned again. Without a device of the target all
    times are predicted, and marked so.
    """
    from ..benchmarks.picture import PICTURE, write_picture
    from ..benchmarks.run import run_bench
    from ..benchmarks.table import BenchRow
    from ..reports.pictures import check_picture

    if out is not None:
        check_out(Path(out), ".jsonl", "rows of a benchmark")
        Path(out).write_text("", encoding="utf-8")
    if plot is not None:
        check_picture(Path(plot), PICTURE)

    def done(row: BenchRow) -> None:
        if out is not None:
            with Path(out).open("a", encoding="utf-8") as file:
                file.write(output.json_line(row.fields()))

    with output.progress(verbosity) as progress:
        table = run_bench(kernels, target, shapes or None, dtype, session, progress, done)
    if plot is not None:
        write_picture(Path(plot), table)
    if as_json:
        output.print_json("bench", **table.fields())
    else:
        output.print_report(table.report())
