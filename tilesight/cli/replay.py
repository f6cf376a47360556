"""`tilesight replay`: compare search strategies on recorded measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..out_file import check_out
from . import options, output

if TYPE_CHECKING:
    from ..replaying import Replay

MODELS = ("learned", "analytical")
SPLITS = ("shape", "operator", "dtype")


@click.command()
@options.with_options(
    click.argument("datasets", nargs=-1, metavar="DATASET..."),
    click.option("--strategy", "strategies", metavar="NAME", multiple=True, help="May be repeated. [default: all]"),
    click.option("--model", type=click.Choice(MODELS), default=MODELS[0], show_default=True, help="Whose predictions guide."),
    click.option("--split", type=click.Choice(SPLITS), default=SPLITS[0], show_default=True, help="What the model has not seen."),
    click.option(
        "--limit", metavar="N", type=click.IntRange(min=1), default=128, show_default=True, help="Measurements of a case, at most."
    ),
    click.option(
        "--seeds", metavar="N", type=click.IntRange(min=1), default=3, show_default=True, help="Repetitions of what chance decides."
    ),
    click.option("--predictions", metavar="FILE", help="Keep the held-out predictions there, which take minutes, or take them from there."),
    click.option("--operators", is_flag=True, help="Show each operator too."),
    click.option("--out", metavar="FILE", help="CSV file of all curves to write."),
    click.option("--plot", metavar="FILE", help="Picture of all curves to write: .png or .svg."),
    options.seed,
    options.as_json,
    options.debug,
)
def replay(
    datasets: tuple[str, ...],
    strategies: tuple[str, ...],
    model: str,
    split: str,
    limit: int,
    seeds: int,
    predictions: str | None,
    operators: bool,
    out: str | None,
    plot: str | None,
    seed: int,
    as_json: bool,
) -> None:
    """Compare search strategies without a GPU: recorded candidates of DATASET... (Parquet files or folders) answer.

    Only what was recorded can be asked, and failures cost a measurement too. Predictions are of models that have not seen the case.
    """
    from ..replaying import replay as run
    from ..replaying.files import check_picture, write_curves, write_picture

    if out is not None:
        check_out(Path(out), ".csv", "curves")
    if plot is not None:
        check_picture(Path(plot))
    found = run(
        datasets,
        strategies or None,
        model=model,
        split=split,
        limit=limit,
        seeds=seeds,
        seed=seed,
        predictions=predictions,
        progress=lambda line: click.echo(line, err=True),
    )
    if out is not None:
        write_curves(Path(out), found)
    if plot is not None:
        write_picture(Path(plot), found)
    if as_json:
        output.print_json("replay", **found.plain())
        return
    _print(found, operators)


def _print(found: Replay, operators: bool) -> None:
    share = f", {output.percent(found.legal_share)} of the legal configs" if found.legal_share is not None else ""
    output.print_text(
        f"{found.recorded} recorded candidates of {len(found.cases)} cases{share}; {found.failed} of them failed"
        + (f"; cases left out, for too few rows: {found.too_small}" if found.too_small else "")
    )
    if found.model is not None:
        output.print_text(f"predictions: the {found.model} model, held out by {found.split}")
    for note in found.notes:
        output.print_text(note)
    output.print_text("best time so far as a share of the best recorded, geometric mean over cases; measurements to 99 % and 95 %")
    _print_table(found, None)
    if operators:
        for operator in found.operators:
            output.print_text()
            output.print_text(operator, bold=True)
            _print_table(found, operator)


def _print_table(found: Replay, operator: str | None) -> None:
    marks = found.marks
    columns = ["strategy", *map(str, marks), "to 99 %", "to 95 %"]
    rows = []
    for strategy in found.strategies:
        s = found.summary(strategy, operator)
        to_99, to_95 = (f"{goal.mean:.1f}{'' if goal.reached == 1 else '+'}" for goal in s.goals)
        rows.append([strategy, *(f"{point.share:.4f}" for point in s.points), to_99, to_95])
    output.print_table(columns, rows, right=columns[1:])
    if any(goal.reached < 1 for strategy in found.strategies for goal in found.summary(strategy, operator).goals):
        output.print_text(f"+: not reached everywhere; there all that were measured count (--limit {found.limit})")
