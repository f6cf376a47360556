"""`tilesight tune`: search, measure, compare, record."""

from __future__ import annotations

import click

from ..session import Effort
from . import options, report


@click.command()
@options.with_options(
    options.kernel,
    options.target,
    options.shapes,
    options.dtype,
    click.option("--effort", type=click.Choice([e.value for e in Effort]), default="quick", show_default=True, help="How much to try."),
    options.protocol,
    options.cluster,
    options.budget,
    options.top,
    options.as_json,
    options.database,
    options.seed,
    options.workers,
    options.debug,
)
def tune(
    kernel: str,
    target: str,
    shapes: tuple[str, ...],
    dtype: str | None,
    effort: str,
    protocol: str,
    cluster: str | None,
    budget: float | None,
    top: int,
    as_json: bool,
    database: str | None,
    seed: int,
    workers: int | None,
) -> None:
    """Search the fastest config of KERNEL, measure the best where the target is at hand, and record all of it.

    Without a device of the target the result is the predicted ranking, marked so. Run again, it answers from the
    database; interrupted, it goes on where it stopped.

    \b
    --effort predict     the model only: nothing is built or measured
             quick       about 128 lowerings are looked at, at most 16 candidates are measured
             full        about 400 lowerings, up to 128 measured, each chosen by what was learned from those before
             exhaustive  every legal candidate is built and measured
    """
    from ..api import tune as run

    report.show(
        "tune",
        lambda observer: run(
            kernel,
            target,
            shapes or None,
            dtype=dtype,
            effort=effort,
            protocol=protocol,
            cluster=cluster,
            budget_s=budget,
            database=database,
            seed=seed,
            workers=workers,
            observer=observer,
        ),
        target,
        top,
        as_json,
    )
