"""`tilesight rank`: rank configs by predicted time, without a device."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import click

from . import options, output, report

if TYPE_CHECKING:
    from ..tuner.options import TuneOptions


@click.command()
@options.with_options(
    options.kernel,
    options.target,
    options.shapes,
    options.dtype,
    click.option("--effort", type=click.Choice(["predict"]), hidden=True, expose_value=False),
    options.budget,
    options.top,
    options.variants,
    options.verbosity,
    options.as_json,
    options.database,
    options.seed,
    options.workers,
    options.debug,
)
@options.as_session_options
def rank(
    kernel: str,
    target: str | None,
    shapes: tuple[str, ...],
    dtype: str | None,
    top: int,
    variants: bool,
    verbosity: output.Verbosity,
    as_json: bool,
    session: TuneOptions,
) -> None:
    """Rank configs of KERNEL by prediction. Nothing is built or measured, and no GPU is needed."""
    from ..api.tuning import tune_shapes
    from ..records.session import Effort

    predicting = replace(session, effort=Effort.PREDICT)
    report.show(
        "rank",
        lambda observer: tune_shapes(kernel, target, shapes or None, dtype, predicting, observer),
        top,
        variants,
        verbosity,
        as_json,
    )
