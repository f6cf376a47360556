"""`tilesight explain`: what limits a config, and what a better one does differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from . import options, output
from .output import number, percent

if TYPE_CHECKING:
    from ..explanation import Explanation, View

_BAR = 30  # characters of a full bar
_MOST_DIFFERENCES = 8  # of a kind


@click.command()
@options.with_options(
    options.kernel,
    options.target,
    options.shape,
    options.dtype,
    options.config,
    options.as_json,
    options.database,
    options.workers,
    options.debug,
)
def explain(
    kernel: str,
    target: str,
    shape: str | None,
    dtype: str | None,
    config: str | None,
    as_json: bool,
    database: str | None,
    workers: int | None,
) -> None:
    """Show what the IR of a config of KERNEL asks of the hardware, what limits it, and why it loses to the best.

    Without --config the best config is explained: the fastest measured one where this machine has measured, else the
    one predicted fastest. Where nothing is known yet, the space is ranked first, as `tilesight rank` does.
    """
    from ..api import explain as run

    with output.progress() as observer:
        found = run(kernel, target, shape, config=config, dtype=dtype, database=database, workers=workers, observer=observer)
    if as_json:
        output.print_json("explain", **_fields(found))
    else:
        _print(found)


def _print(found: Explanation) -> None:
    this = found.this
    output.print_text(f"{found.workload.label} on {found.target.title}", bold=True)
    output.print_line(f"config: {this.config}" + ("" if found.best else "  (the best that is known)"))
    measured = f"measured {number(this.measured_us)} us, " if this.measured_us else ""
    prediction = this.prediction
    output.print_text(f"{measured}predicted {number(prediction.latency_us)} us, give or take {percent(prediction.uncertainty)} (one sigma)")
    output.print_text(", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in this.launch.items()))
    output.print_text()
    output.print_text("Predicted use of each resource over the kernel's time", bold=True)
    rows = [[u.resource, percent(u.share), "#" * round(_BAR * u.share)] for u in this.uses]
    output.print_table(["resource", "busy", ""], rows, right=["busy"])
    second = f"; next: {this.second_limit}" if this.second_limit else ""
    output.print_text(f"limited by: {prediction.limiting}{second}")
    output.print_text()
    output.print_text("The model's terms", bold=True)
    output.print_table(["term", "us"], [[name, number(us)] for name, us in prediction.terms_us.items()], right=["us"])
    output.print_text()
    output.print_text("What the IR asks for, per block", bold=True)
    _print_asked(this)
    for note in prediction.notes:
        output.print_text(f"note: {note}")
    if found.best is not None:
        _print_loss(found, found.best)


def _print_asked(this: View) -> None:
    heads = [f"{a.role} ({a.threads} threads)" if a.kernel == 0 else f"{a.role} of kernel {a.kernel + 1}" for a in this.asked]
    rows: dict[str, list[str]] = {}
    for position, asked in enumerate(this.asked):
        unknown = {f"unknown: {name}": count for name, count in asked.unknown_calls.items()}
        for name, amount in [*asked.quantities.items(), *asked.matrix_instructions.items(), *unknown.items()]:
            rows.setdefault(name.replace("_", " "), ["-"] * len(heads))[position] = f"{amount:,.6g}"
    output.print_table(["quantity", *heads], [[name, *amounts] for name, amounts in rows.items()], right=heads)


def _print_loss(found: Explanation, best: View) -> None:
    this = found.this
    output.print_text()
    both_measured = this.measured_us and best.measured_us
    a, b = (this.measured_us, best.measured_us) if both_measured else (this.prediction.latency_us, best.prediction.latency_us)
    assert a is not None
    assert b is not None
    word = "measured" if both_measured else "predicted"
    output.print_text(f"Why it loses: {word} {number(a)} us, the best {number(b)} us ({a / b:.2f}x)", bold=True)
    output.print_line(f"best: {best.config}, limited by {best.prediction.limiting}")
    titles = {"parameter": "parameter", "term": "term, us", "launch": "launch", "quantity": "asked for, whole grid"}
    for kind, title in titles.items():
        rows = [[d.name.replace("_", " "), _shown(d.this), _shown(d.best)] for d in found.differences if d.kind == kind][:_MOST_DIFFERENCES]
        if rows:
            output.print_text()
            output.print_table([title, "this", "best"], rows, right=["this", "best"])


def _shown(value: Any) -> str:
    return f"{value:,.5g}" if isinstance(value, float) else output.value(value)


def _fields(found: Explanation) -> dict[str, Any]:
    return {
        "kernel": found.workload.operator,
        "workload": found.workload.key,
        "target": found.target.name,
        "this": _view_fields(found.this),
        "best": None if found.best is None else _view_fields(found.best),
        "differences": [{"kind": d.kind, "name": d.name, "this": d.this, "best": d.best} for d in found.differences],
    }


def _view_fields(view: View) -> dict[str, Any]:
    prediction = view.prediction
    return {
        "config": view.config,
        "measured_us": view.measured_us,
        "predicted_us": prediction.latency_us,
        "predicted_uncertainty": prediction.uncertainty,
        "limiting": prediction.limiting,
        "second_limit": view.second_limit,
        "utilization": prediction.utilization,
        "terms_us": prediction.terms_us,
        "notes": prediction.notes,
        "model": prediction.model,
        "launch": view.launch,
        "roles": [
            {
                "kernel": a.kernel,
                "role": a.role,
                "threads": a.threads,
                "per_block": a.quantities,
                "matrix_instructions": a.matrix_instructions,
                "unknown_calls": a.unknown_calls,
            }
            for a in view.asked
        ],
    }
