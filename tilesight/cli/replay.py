"""`tilesight replay`: compare search strategies on recorded measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ..files import check_out
from . import options, output

if TYPE_CHECKING:
    from ..datasets.replay import Replay

MODELS = ("learned", "analytical")
SPLITS = ("shape", "operator", "dtype")


@click.command()
@options.with_options(
    click.argument("datasets", nargs=-1, metavar="DATASET..."),
    click.option(
        "--strategy", "strategies", metavar="NAME", multiple=True, help="May be repeated. [default: all]"
    ),
    click.option(
        "--model",
        type=click.Choice(MODELS),
        default=MODELS[0],
        show_default=True,
        help="The model whose predictions guide the strategies.",
    ),
    click.option(
        "--split",
        type=click.Choice(SPLITS),
        default=SPLITS[0],
        show_default=True,
        help="What is held out from the model's training.",
    ),
    click.option(
        "--limit",
        metavar="N",
        type=click.IntRange(min=1),
        default=128,
        show_default=True,
        help="Largest number of measurements per case.",
    ),
    click.option(
        "--seeds",
        metavar="N",
        type=click.IntRange(min=1),
        default=3,
        show_default=True,
        help="Repetitions of strategies that draw random numbers.",
    ),
    click.option(
        "--predictions",
        metavar="FILE",
        help=(
            "Read the held-out predictions from this file; if it does not exist, compute them (minutes) "
            "and write it."
        ),
    ),
    click.option("--operators", is_flag=True, help="Also show each operator."),
    click.option("--out", metavar="FILE", help="Write all curves to this CSV file."),
    click.option("--plot", metavar="FILE", help="Write a picture of all curves to this .png or .svg file."),
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
    """Compare search strategies without a GPU, on the measurements of DATASET... (Parquet files or folders).

    Strategies choose among the recorded candidates; a failed candidate costs one measurement. Predictions
    come from models that were trained without the case.
    """
    from ..datasets.replay import replay as run
    from ..datasets.replay.files import PICTURE, write_curves, write_picture
    from ..reports.pictures import check_picture

    if out is not None:
        check_out(Path(out), ".csv", "curves")
    if plot is not None:
        check_picture(Path(plot), PICTURE)
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
    share = (
        f", {output.percent(found.legal_share)} of the legal configs" if found.legal_share is not None else ""
    )
    output.print_text(
        f"{found.recorded} recorded candidates of {len(found.cases)} cases{share}; {found.failed} of them "
        "failed" + (f"; {found.too_small} cases left out for too few rows" if found.too_small else "")
    )
    if found.model is not None:
        output.print_text(f"predictions: {found.model} model, trained without the {found.split} of each case")
    for note in found.notes:
        output.print_text(note)
    output.print_text(
        "Best recorded time / best time after so many measurements (geometric mean over cases), and "
        "measurements needed to reach 99 % and 95 %"
    )
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
    if any(
        goal.reached < 1 for strategy in found.strategies for goal in found.summary(strategy, operator).goals
    ):
        output.print_text(
            "+: not reached in every case; those cases count with all their measurements (--limit "
            f"{found.limit})"
        )
