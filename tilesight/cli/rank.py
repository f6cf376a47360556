"""`tilesight rank`: the predicted ranking, without a device."""

from __future__ import annotations

import click

from . import options, report


@click.command()
@options.with_options(
    options.kernel,
    options.target,
    options.shapes,
    options.dtype,
    click.option("--effort", type=click.Choice(["predict"]), hidden=True, expose_value=False),
    options.budget,
    options.top,
    options.as_json,
    options.database,
    options.seed,
    options.workers,
    options.debug,
)
def rank(
    kernel: str,
    target: str,
    shapes: tuple[str, ...],
    dtype: str | None,
    budget: float | None,
    top: int,
    as_json: bool,
    database: str | None,
    seed: int,
    workers: int | None,
) -> None:
    """Rank configs of KERNEL by predicted time. Nothing is built or measured; no GPU is needed."""
    from ..api import rank as run

    report.show(
        "rank",
        lambda observer: run(
            kernel, target, shapes or None, dtype=dtype, budget_s=budget, database=database, seed=seed, workers=workers, observer=observer
        ),
        target,
        top,
        as_json,
    )
