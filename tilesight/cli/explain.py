"""`tilesight explain`: what limits a config, and how a faster config differs from it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from ..errors import InputError
from ..records.trial import ORDER_TERM
from ..tuner.observers import Observers
from . import options, output
from .explain_json import fields
from .output import number, percent

if TYPE_CHECKING:
    from ..explanation import CandidateView, Explanation

_BAR = 30  # characters of a full bar
_LEAST_GAIN = 0.005  # share of the predicted time; smaller gains are shown as 0 %
_MOST_DIFFERENCES = 8  # rows of each table of differences


class _Untitled(Observers):
    """Progress without a title, since the report has one."""

    def started(self, title: str) -> None:
        pass


@click.command()
@options.with_options(
    click.argument("kernel", required=False),
    options.file(required=False),
    options.arguments,
    options.target,
    click.option(
        "--shape",
        metavar="S",
        help=(
            "Published name (M0) or k=v,...; with --file the sizes that the kernel takes at run time. "
            "[default: the first of the kernel's default shapes]"
        ),
    ),
    options.dtype,
    options.config,
    click.option(
        "--measured",
        metavar="DATASET",
        multiple=True,
        help="Compare with rows of a dataset; may be repeated.",
    ),
    options.as_json,
    options.database,
    options.workers,
    options.debug,
)
def explain(
    kernel: str | None,
    file: str | None,
    arguments: Mapping[str, Any],
    target: str,
    shape: str | None,
    dtype: str | None,
    config: str | None,
    measured: tuple[str, ...],
    as_json: bool,
    database: str | None,
    workers: int | None,
) -> None:
    """Show what limits a config of KERNEL, why it is slower than the best one, and how reliable that is.

    Without --config the command explains the best config: the fastest measured one if the database has
    measurements of this device, else the config with the best prediction. If the database has neither, the
    space is ranked first, as `tilesight rank` does. With --measured the configs, times and hardware counters
    come from datasets (files or folders) instead of the database.

    With --file in place of KERNEL the command shows what limits any TileLang kernel in a Python file. Nothing
    but its IR is known of it: there is no better config to compare it with.
    """
    if file is not None:
        given = {
            "KERNEL": kernel, "--dtype": dtype, "--config": config, "--measured": measured or None,
            "--db": database, "--workers": workers,
        }  # fmt: skip
        found = _explain_file(file, target, shape, arguments, given)
    else:
        found = _explain_kernel(
            kernel, target, shape, dtype, config, measured, database, workers, arguments, as_json
        )
    if as_json:
        output.print_json("explain", **fields(found))
    else:
        _print(found)


def _explain_file(
    file: str, target: str, shape: str | None, arguments: Mapping[str, Any], others: Mapping[str, Any]
) -> Explanation:
    from ..api.kernel_files import explain_file

    if unused := [name for name, value in others.items() if value is not None]:
        raise InputError(f"explain --file takes no {', '.join(unused)}: nothing but the file's IR is known")
    return explain_file(file, target, shape, arguments)


def _explain_kernel(
    kernel: str | None,
    target: str,
    shape: str | None,
    dtype: str | None,
    config: str | None,
    measured: tuple[str, ...],
    database: str | None,
    workers: int | None,
    arguments: Mapping[str, Any],
    as_json: bool,
) -> Explanation:
    from ..api.explaining import explain as run

    if kernel is None:
        raise InputError(
            "explain needs a kernel: a name of `tilesight kernels`, or one of your own: --file kernel.py:name"
        )
    if arguments:
        raise InputError(f"--arg is for the function in --file; {kernel} takes --shape and --config")
    with output.progress() as progress:
        observer = progress if as_json else _Untitled([progress])
        return run(
            kernel, target, shape, config=config, dtype=dtype, measured=measured or None,
            database=database, workers=workers, observer=observer,
        )  # fmt: skip


def _print(found: Explanation) -> None:
    this, best = found.this, found.best
    output.print_text(f"{found.title} on {found.target.title}", bold=True)
    if this.config is not None:
        output.print_line(f"config: {this.config}" + ("" if best else "  (the best known config)"))
    measured = f"measured {number(this.measured_us)} us, " if this.measured_us else ""
    prediction = this.prediction
    output.print_text(
        f"{measured}predicted {number(prediction.latency_us)} us, give or take "
        f"{percent(prediction.uncertainty)} (one sigma)"
    )
    output.print_text(", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in this.launch.items()))
    output.print_text()
    second = f"; next: {this.second_cost}" if this.second_cost else ""
    output.print_text(
        f"largest cost: {this.largest_cost}{second}; limiting: {prediction.limiting}", bold=True
    )
    for sentence in this.findings:
        output.print_text(f"- {sentence}")
    output.print_text()
    output.print_text("How reliable the prediction is", bold=True)
    for sentence in (*this.caveats, *([found.verdict] if found.verdict else [])):
        output.print_text(f"- {sentence}")
    for note in found.notes:
        output.print_text(f"- Note: {note}.")
    output.print_text()
    _print_uses(this)
    if best is not None:
        _print_loss(found, best)
    _print_terms(this)
    if this.counters:
        output.print_text()
        rows = [
            [c.name, _amount(c.predicted, c.is_share), _amount(c.counted, c.is_share)] for c in this.counters
        ]
        output.print_table(["hardware counter", "predicted", "counted"], rows, right=["predicted", "counted"])
    output.print_text()
    output.print_text("Work per block, read from the IR", bold=True)
    _print_work(this)


def _print_uses(this: CandidateView) -> None:
    """How busy each resource is, and the predicted time if it cost nothing. Latencies have no busy share."""
    output.print_text("Predicted use of each resource, and the predicted time if it cost nothing", bold=True)
    without = {h.name: h for h in this.limits.limits}
    shares = {u.resource: u.share for u in this.uses}
    rows = []
    for name in [*shares, *(n for n, h in without.items() if n not in shares and h.gain >= _LEAST_GAIN)]:
        share, freed = shares.get(name), without.get(name)
        left = (
            ["", ""]
            if freed is None
            else [number(freed.without_us), f"-{freed.gain:.0%}" if freed.gain >= _LEAST_GAIN else "0%"]
        )
        rows.append(
            [name, "" if share is None else percent(share), "#" * round(_BAR * (share or 0.0)), *left]
        )
    output.print_table(
        ["resource", "busy", "", "without, us", "gain"], rows, right=["busy", "without, us", "gain"]
    )


def _print_terms(this: CandidateView) -> None:
    """The terms whose sum is the predicted time, and the busy times that overlap within it."""
    from ..explanation.view_values import BUSY

    prediction = this.prediction
    order = prediction.terms_us.get(ORDER_TERM, 0.0)
    added = {**this.sum_us, "predicted time": prediction.latency_us}
    for heading, terms in (
        ("What adds up to the predicted time", added),
        (f"Busy times within '{BUSY}': they overlap, so they do not add up", this.busy_us),
    ):
        output.print_text()
        output.print_text(heading, bold=True)
        output.print_table(["term", "us"], [[name, number(us)] for name, us in terms.items()], right=["us"])
        if order and terms is added:
            score = f"Its ranking score is {number(prediction.ranking_us)} us"
            output.print_text(
                f"{score}: candidates are ranked by it, since it is more reliable than the time estimate."
            )


def _print_work(this: CandidateView) -> None:
    heads = [
        f"{a.role} ({a.threads} threads)" if a.kernel == 0 else f"{a.role} of kernel {a.kernel + 1}"
        for a in this.requested
    ]
    rows: dict[str, list[str]] = {}
    for position, work in enumerate(this.requested):
        unknown = {f"unknown: {name}": count for name, count in work.unknown_calls.items()}
        for name, amount in [*work.quantities.items(), *work.matrix_instructions.items(), *unknown.items()]:
            rows.setdefault(name.replace("_", " "), ["-"] * len(heads))[position] = f"{amount:,.6g}"
    output.print_table(
        ["quantity", *heads], [[name, *amounts] for name, amounts in rows.items()], right=heads
    )


def _print_loss(found: Explanation, best: CandidateView) -> None:
    this = found.this
    output.print_text()
    both_measured = this.measured_us and best.measured_us
    a, b = (
        (this.measured_us, best.measured_us)
        if both_measured
        else (this.prediction.latency_us, best.prediction.latency_us)
    )
    assert a is not None
    assert b is not None
    word = "measured" if both_measured else "predicted"
    heading = "Why it is slower than the best config" if a >= b else "Compared with the best known config"
    output.print_text(f"{heading}: {word} {number(a)} us, the best {number(b)} us ({a / b:.2f}x)", bold=True)
    output.print_line(f"best: {best.config}, largest cost: {best.largest_cost}")
    if found.largest_step:
        output.print_text(f"- {found.largest_step}")
    if found.steps:
        output.print_text()
        _print_steps(found)
    titles = {
        "parameter": "parameter",
        "term": "term, us",
        "launch": "launch",
        "quantity": "work of the whole grid",
    }
    for kind, title in titles.items():
        rows = [
            [d.name.replace("_", " "), _shown(d.this), _shown(d.best)]
            for d in found.differences
            if d.kind == kind
        ][:_MOST_DIFFERENCES]
        if rows and not (kind == "parameter" and found.steps):
            output.print_text()
            output.print_table([title, "this", "best"], rows, right=["this", "best"])


def _print_steps(found: Explanation) -> None:
    """The path from the config to the best one, one change per row."""
    rows = [["", number(found.this.prediction.latency_us), number(found.this.measured_us), ""]]
    for step in found.steps:
        changes = ", ".join(
            f"{name} {output.value(a)} -> {output.value(b)}" for name, (a, b) in step.changes.items()
        )
        terms = ", ".join(f"{t.name} {t.after_us - t.before_us:+.3g}" for t in step.terms)
        rows.append([changes, number(step.predicted_us), number(step.measured_us), terms])
    columns = ["changes, cumulative", "predicted us", "measured us", "terms that change most, us"]
    output.print_table(columns, rows, right=columns[1:3], folded=[columns[0], columns[3]])


def _amount(value: float, is_share: bool) -> str:
    return percent(value) if is_share else f"{value:,.5g}"


def _shown(value: Any) -> str:
    return f"{value:,.5g}" if isinstance(value, float) else output.value(value)
