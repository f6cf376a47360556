"""`tilesight rank`: rank configs by predicted time, without a device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from . import options, output, printed_results

if TYPE_CHECKING:
    from ..tuner.options import TuneOptions


@click.command()
@options.with_options(
    options.kernel,
    options.target,
    options.world,
    options.shapes,
    options.dtype,
    click.option(
        "--effort",
        type=click.Choice(["glance", "predict"]),
        default="predict",
        show_default=True,
        help="How many configs to lower.",
    ),
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
    world: int | None,
    shapes: tuple[str, ...],
    dtype: str | None,
    top: int,
    variants: bool,
    verbosity: output.Verbosity,
    as_json: bool,
    session: TuneOptions,
) -> None:
    """Rank configs of KERNEL by prediction. Nothing is built or measured, and no GPU is needed.

    With --effort glance the answer takes seconds: it lowers 24 configs, or none if the profile cache has as
    many. Effort predict lowers up to 192.
    """
    from ..api.tuning import tune_shapes

    printed_results.show(
        "rank",
        lambda observer: tune_shapes(kernel, target, shapes or None, dtype, session, observer, world),
        top,
        variants,
        verbosity,
        as_json,
    )
