"""`tilesight recheck`: measure recorded winners of earlier software again, beside others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options, output, suggestions

if TYPE_CHECKING:
    from ..rechecking.result import RecheckResult
    from ..tuner.options import TuneOptions


@click.command()
@options.with_options(
    click.argument("kernels", nargs=-1, metavar="[KERNEL]...", shell_complete=suggestions.kernels),
    options.target,
    options.budget_for("Stop after this time; the same command goes on later"),
    click.option(
        "--limit",
        metavar="N",
        type=click.IntRange(min=1),
        help="Largest number of winners to recheck. [default: all]",
    ),
    click.option("--dry-run", is_flag=True, help="List the winners that are due, and measure nothing."),
    options.protocol,
    options.verbosity,
    options.as_json,
    options.database,
    options.workers,
    options.debug,
)
@options.as_session_options
def recheck(
    kernels: tuple[str, ...],
    target: str | None,
    limit: int | None,
    dry_run: bool,
    verbosity: output.Verbosity,
    as_json: bool,
    session: TuneOptions,
) -> None:
    """Measure the recorded winners of other software again, most used first.

    A winner is due if the database has it for this device and another driver, compiler, TileLang or
    TileSight, and none for the present ones. Each is timed in turns with the default config and the model's
    first three.
    It is replaced only if another one is faster beyond the noise, or if it no longer works. All outcomes are
    recorded, so that dispatchers find the winner of each shape.

    \b
    tilesight recheck --target h200 --budget 5m
    tilesight recheck matmul gemv --target h200 --dry-run
    """
    from ..api.rechecking import recheck_winners

    with output.progress(verbosity) as observer:
        found = recheck_winners(kernels, target, limit, dry_run, session, observer)
    if as_json:
        output.print_json("recheck", **_fields(found))
    else:
        output.print_report(found.report())


def _fields(found: RecheckResult) -> dict[str, Any]:
    from ..rechecking.due import ORDER
    from ..rechecking.result import fields

    return {
        "target": found.target,
        "device": found.device,
        "counts": found.counts,
        "order": ORDER,
        "winners": [fields(one) for one in found.winners],
        "due": found.due,
        "current": found.current,
        "seconds": found.seconds,
        "messages": found.messages,
    }
