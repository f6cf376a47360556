"""`tilesight model`: train the learned cost model, evaluate it on held-out cases, show its card."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

from ..errors import InputError
from . import options, output
from .group import Group

if TYPE_CHECKING:
    from ..costmodel.training.evaluation import Evaluation
    from ..costmodel.training.measured import MeasuredRow
    from ..records.dataset import Dataset

SPLITS = ("shape", "operator", "dtype")
OBJECTIVES = ("regression", "ranking", "classification")
FIRST_FEATURES = 15

F = TypeVar("F", bound=Callable[..., Any])
datasets = click.argument("datasets", nargs=-1, metavar="DATASET...")
workers = options.workers_that("train, each on one core; results do not depend on it")


@click.group(cls=Group)
def model() -> None:
    """Train, evaluate and show the learned cost model."""


@model.command()
@options.with_options(
    datasets,
    click.option(
        "--out",
        metavar="DIR",
        default="tilesight-model",
        show_default=True,
        help="Folder to write the model to.",
    ),
    click.option(
        "--objective",
        type=click.Choice(OBJECTIVES),
        default=OBJECTIVES[0],
        show_default=True,
        help="Objective of the training.",
    ),
    click.option(
        "--no-evaluate", is_flag=True, help="Skip the evaluation; the card then has no held-out errors."
    ),
    options.seed,
    workers,
    options.as_json,
    options.debug,
)
def train(
    datasets: tuple[str, ...],
    out: str,
    objective: str,
    no_evaluate: bool,
    seed: int,
    workers: int | None,
    as_json: bool,
) -> None:
    """Train on the verified rows of DATASET... (Parquet files or folders) and write the model with its card.

    Models are also trained without some shapes, and without some operators, to measure the errors on unseen
    kernels for the card. The constants of the analytical model stay as they are.
    """
    from ..costmodel.analytical.analytical_model import AnalyticalModel
    from ..costmodel.learned import model_file
    from ..costmodel.training import card
    from ..costmodel.training.fit_constants import ROUGH
    from ..costmodel.training.train_and_evaluate import train_and_evaluate

    dataset, rows = _read(datasets)
    model_file.check_folder(Path(out))
    splits = [] if no_evaluate else [s for s in SPLITS[:2] if len({row.group(s) for row in rows}) > 1]
    with _begins_anew():
        estimator, judged = train_and_evaluate(
            rows,
            splits,
            objective=objective,
            constants=ROUGH,
            workers=_count(workers),
            progress=_progress,
            random_state=seed,
        )
    written = model_file.save(
        Path(out), estimator, card.facts(dataset, rows, AnalyticalModel().version, judged), card.text
    )
    if as_json:
        output.print_json("model train", folder=out, card=_short(written))
        return
    for evaluation in judged:
        _print(evaluation, cases=False)
    output.print_text(f"{written['version']} for {written['analytical']} is in {out}")


@model.command()
@options.with_options(
    datasets,
    click.option(
        "--split",
        type=click.Choice(SPLITS),
        default=SPLITS[0],
        show_default=True,
        help="What is held out together.",
    ),
    click.option(
        "--objective",
        "objectives",
        type=click.Choice(OBJECTIVES),
        multiple=True,
        help="Objective of the training; may be repeated to compare. [default: regression]",
    ),
    click.option("--cases", is_flag=True, help="Also show each case."),
    options.seed,
    workers,
    options.as_json,
    options.debug,
)
def evaluate(
    datasets: tuple[str, ...],
    split: str,
    objectives: tuple[str, ...],
    cases: bool,
    seed: int,
    workers: int | None,
    as_json: bool,
) -> None:
    """Evaluate models on cases that they were not trained on.

    The rows of DATASET... are divided by shape, operator or dtype, and each part is predicted by models
    trained on the other parts: the analytical model, boosted trees on plain counts, and their combination.
    For comparison the table also has random choice and boosted trees on config values.
    """
    from ..costmodel.training.evaluation import evaluate as judge
    from ..costmodel.training.fit_constants import ROUGH

    _, rows = _read(datasets)
    with _begins_anew():
        found = judge(
            rows,
            split,
            objectives=list(dict.fromkeys(objectives)) or [OBJECTIVES[0]],
            constants=ROUGH,
            workers=_count(workers),
            progress=_progress,
            random_state=seed,
        )
    if as_json:
        output.print_json("model evaluate", **found.plain())
        return
    _print(found, cases)


@model.command()
@options.with_options(
    click.argument("folder", metavar="[DIR]", required=False), options.as_json, options.debug
)
def show(folder: str | None, as_json: bool) -> None:
    """Show the card and the most important features of the shipped model, or of the model in DIR."""
    from ..costmodel.analytical.analytical_model import AnalyticalModel
    from ..costmodel.learned import model_file

    if folder is None:
        learned = model_file.load(model_file.shipped(), is_own=True)
    else:
        learned = model_file.load(Path(folder))
    fits = learned.analytical_version == AnalyticalModel().version
    try:
        if as_json:
            output.print_json("model show", fits=fits, card=dict(learned.card))
        else:
            _print_card(learned.card, fits)
    except (AttributeError, KeyError, TypeError, ValueError, RecursionError) as error:
        raise InputError(
            f"model '{folder or 'that ships'}': its card does not hold together ({type(error).__name__}: "
            f"{error}); train it anew: tilesight model train DATASET... --out DIR"
        ) from error


def _print_card(card: Mapping[str, Any], fits: bool) -> None:
    from ..costmodel.learned.features import FEATURES

    data = card["data"]
    heads = [
        f"{card['version']}, for {card['analytical']}"
        + ("" if fits else ": not used, since this TileSight has another analytical model"),
        f"{data['rows']} rows in {data['cases']} cases of {', '.join(data['operators'])}; "
        f"{', '.join(data['targets'])}",
        "",
    ]
    columns = ["split", "target", "model", "cases", "top-1", "worst", "top-8", "worst 8", "MAPE"]
    lines = [
        [
            e["split"],
            target,
            name,
            of["cases"],
            *(f"{of[k]:.4f}" for k in ("top1", "top1_worst", "top8", "top8_worst")),
            output.percent(of["mape"]),
        ]
        for e in card["held_out"]
        for target, found in {"all": e, **e.get("targets", {})}.items()
        for name, of in found["models"].items()
    ]
    first = sorted(card["importances"].items(), key=lambda item: -item[1])[:FIRST_FEATURES]
    features = [[n, output.percent(gain), FEATURES.get(n, "")] for n, gain in first]
    for line in heads:
        output.print_text(line)
    if lines:
        output.print_table(columns, lines, right=columns[3:])
        output.print_text()
    output.print_table(["feature", "gain", "meaning"], features, right=["gain"], folded=["meaning"])


def _read(paths: Sequence[str]) -> tuple[Dataset, list[MeasuredRow]]:
    from ..costmodel.training.measured import measured_rows
    from ..records.dataset import read_dataset

    dataset = read_dataset(paths)
    return dataset, measured_rows(dataset)


@contextmanager
def _begins_anew() -> Iterator[None]:
    """Training, of which nothing is recorded before it ends."""
    try:
        yield
    except KeyboardInterrupt:
        raise KeyboardInterrupt("interrupted: nothing is written; the same command begins anew") from None


def _count(workers: int | None) -> int:
    from ..settings import load_settings

    return workers or load_settings().workers


def _print(found: Evaluation, cases: bool) -> None:
    from ..costmodel.training.evaluation import FEWEST_ROWS

    output.print_text(f"held out by {found.split}: {found.rows} rows, {found.folds} folds", bold=True)
    output.print_text(
        f"constants of the analytical model: {found.constants}"
        + (f"; {found.refused} rows refused" if found.refused else "")
    )
    if found.unjudged:
        one = found.unjudged == 1
        case, is_not = ("case", "is not") if one else ("cases", "are not")
        output.print_text(
            f"{found.unjudged} {case} with fewer than {FEWEST_ROWS} candidates {is_not} evaluated"
        )
    scores = ["cases", "rho", "top-1", "worst", "top-8", "worst 8", "top-5%", "MAPE", "pick"]
    several = found.targets if len(found.targets) > 1 else []
    lines = []
    for target, name in product([None, *several], found.models):
        s = found.summary(name, target=target)
        lines.append(
            [
                *([target or "all"] if several else []),
                name,
                s.cases,
                output.number(s.spearman, 3),
                *(f"{v:.4f}" for v in (s.top1, s.top1_worst, s.top8, s.top8_worst, s.top5_percent)),
                output.percent(s.mape),
                _signed(s.pick),
            ]
        )
    columns = ["target", "model", *scores] if several else ["model", *scores]
    output.print_table(columns, lines, right=scores, folded=["model"])
    for c in found.coverage:
        where = "" if c.target is None else f" on {c.target}"
        output.print_text(
            f"{c.model}{where}: {c.one_sigma:.0%} of rows within one sigma (should be 68 %), "
            f"{c.two_sigma:.0%} within two (95 %)"
        )
    output.print_text()
    if cases:
        _print_cases(found)


def _print_cases(found: Evaluation) -> None:
    columns = ["case", "dtype", "target", "n", "model", "rho", "top-1", "top-8", "top-5%", "MAPE", "pick"]
    lines = [
        [
            f"{c.operator} {c.shape}",
            c.dtype,
            c.target,
            c.scores.count,
            c.model,
            output.number(c.scores.spearman, 3),
            *(f"{v:.4f}" for v in (c.scores.top1, c.scores.top8, c.scores.top5_percent)),
            output.percent(c.scores.mape),
            _signed(c.scores.pick),
        ]
        for c in sorted(found.cases, key=lambda c: (c.operator, c.shape, c.dtype, c.target))
    ]
    output.print_table(columns, lines, right=[columns[3], *columns[5:]], folded=["case", "model"])


def _signed(ratio: float | None) -> str:
    """The difference from 1, in percent with its sign."""
    return "-" if ratio is None else f"{100 * (ratio - 1):+.1f} %"


def _short(card: Any) -> dict[str, Any]:
    return {key: value for key, value in card.items() if key not in ("features", "files", "members")}


def _progress(line: str) -> None:
    click.echo(line, err=True)
