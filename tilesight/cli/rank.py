"""`tilesight rank`: rank configs by predicted time, without a device."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..api.run_time_facts import RunTimeFacts
from ..errors import InputError
from . import options, output, printed_results, suggestions
from .explain_json import own_fields

if TYPE_CHECKING:
    from ..tuner.options import TuneOptions


@click.command()
@options.with_options(
    click.argument("kernel", required=False, shell_complete=suggestions.kernels),
    options.file(required=False),
    options.arguments,
    options.target,
    options.world,
    options.shapes,
    options.dims,
    options.inputs,
    options.density,
    options.calls,
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
    kernel: str | None,
    file: str | None,
    arguments: Mapping[str, Any],
    target: str | None,
    world: int | None,
    shapes: tuple[str, ...],
    dims: str | None,
    inputs: Mapping[str, Any] | None,
    density: float | None,
    calls: str | None,
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

    With --file in place of KERNEL it compares the configs that a function's own @tilelang.autotune or
    @tilesight.autotune lists. The file runs in processes of its own, once for each config. --arg gives the
    other arguments, and fixes configs' values.
    """
    from ..api.tuning import tune_shapes

    if file is not None:
        given = {"KERNEL": kernel, "--shape": shapes or None, "--dtype": dtype, "--world": world}
        if unused := [name for name, value in given.items() if value is not None]:
            raise InputError(f"rank --file takes no {', '.join(unused)}: the file's configs are all there is")
        _rank_file(
            file, target, RunTimeFacts(dims, inputs, density, calls), arguments, session.workers, top, as_json
        )
        return
    facts = {"--arg": arguments or None, "--dims": dims, "--input": inputs, "--density": density}
    options.refuse_without_file({**facts, "--calls": calls})
    if kernel is None:
        raise InputError(
            "rank needs a kernel: a name of `tilesight kernels`, or one of your own: --file kernel.py:name"
        )

    printed_results.show(
        "rank",
        lambda observer: tune_shapes(kernel, target, shapes or None, dtype, session, observer, world),
        top,
        variants,
        verbosity,
        as_json,
    )


def _rank_file(
    file: str,
    target: str | None,
    facts: RunTimeFacts,
    arguments: Mapping[str, Any],
    workers: int | None,
    top: int,
    as_json: bool,
) -> None:
    from ..api.kernel_files import rank_file

    found = rank_file(file, target, facts, arguments, workers)
    if as_json:
        own = own_fields(found.configs)
        output.print_json("rank", kernel=found.name, target=found.target.name, own_configs=own)
    else:
        output.print_report(found.report(top))
