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
             quick       the model looks at about 300 candidates, at most 16 are measured
             full        about 1000 candidates, up to 128 measured in rounds that learn from each other
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
