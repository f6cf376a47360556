"""`tilesight explain`: what limits a config, and what a better one does differently."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from ..observers import Observers
from ..trial import ORDER_TERM
from . import options, output
from .output import number, percent

if TYPE_CHECKING:
    from ..costmodel.headroom import Headroom
    from ..explanation import Explanation, View

_BAR = 30  # characters of a full bar
_LEAST_GAIN = 0.005  # of the time
_MOST_DIFFERENCES = 8  # of a kind


class _Untitled(Observers):
    """Progress without a title: the report has it."""

    def started(self, title: str) -> None:
        pass


@click.command()
@options.with_options(
    options.kernel,
    options.target,
    options.shape,
    options.dtype,
    options.config,
    click.option("--measured", metavar="DATASET", multiple=True, help="Compare with rows of a dataset; may be repeated."),
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
    measured: tuple[str, ...],
    as_json: bool,
    database: str | None,
    workers: int | None,
) -> None:
    """Show what limits a config of KERNEL and by how much, why it loses to the best, and how sure the model is.

    Without --config the best config is explained: the fastest measured one where this machine has measured, else the
    one predicted fastest. Where nothing is known yet, the space is ranked first, as `tilesight rank` does. With --measured
    the rows of datasets (files or folders) stand for the database, with their times and hardware counters.
    """
    from ..api import explain as run

    with output.progress() as progress:
        observer = progress if as_json else _Untitled([progress])
        found = run(
            kernel, target, shape, config=config, dtype=dtype, measured=measured or None,
            database=database, workers=workers, observer=observer,
        )  # fmt: skip
    if as_json:
        output.print_json("explain", **_fields(found))
    else:
        _print(found)


def _print(found: Explanation) -> None:
    this, best = found.this, found.best
    output.print_text(f"{found.workload.label} on {found.target.title}", bold=True)
    output.print_line(f"config: {this.config}" + ("" if best else "  (the best that is known)"))
    measured = f"measured {number(this.measured_us)} us, " if this.measured_us else ""
    prediction = this.prediction
    output.print_text(f"{measured}predicted {number(prediction.latency_us)} us, give or take {percent(prediction.uncertainty)} (one sigma)")
    output.print_text(", ".join(f"{name.replace('_', ' ')} {value:g}" for name, value in this.launch.items()))
    output.print_text()
    second = f"; next: {this.second_limit}" if this.second_limit else ""
    output.print_text(f"limited by: {this.limit}{second}", bold=True)
    for sentence in this.findings:
        output.print_text(f"- {sentence}")
    output.print_text()
    output.print_text("How sure the model is", bold=True)
    for sentence in (*this.doubts, *([found.verdict] if found.verdict else [])):
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
        rows = [[c.name, _amount(c.predicted, c.is_share), _amount(c.counted, c.is_share)] for c in this.counters]
        output.print_table(["hardware counter", "predicted", "counted"], rows, right=["predicted", "counted"])
    output.print_text()
    output.print_text("What the IR asks for, per block", bold=True)
    _print_asked(this)


def _print_uses(this: View) -> None:
    """Busy shares, and what would be left without each; latencies have no busy share."""
    output.print_text("Predicted use of each resource over the kernel's time, and the time if it were free", bold=True)
    without = {h.name: h for h in this.limits.limits}
    shares = {u.resource: u.share for u in this.uses}
    rows = []
    for name in [*shares, *(n for n, h in without.items() if n not in shares and h.gain >= _LEAST_GAIN)]:
        share, freed = shares.get(name), without.get(name)
        left = ["", ""] if freed is None else [number(freed.without_us), f"-{freed.gain:.0%}" if freed.gain >= _LEAST_GAIN else "0%"]
        rows.append([name, "" if share is None else percent(share), "#" * round(_BAR * (share or 0.0)), *left])
    output.print_table(["resource", "busy", "", "without, us", "gain"], rows, right=["busy", "without, us", "gain"])


def _print_terms(this: View) -> None:
    """What adds up, and what does not."""
    from ..explanation.values import BUSY

    prediction = this.prediction
    order = prediction.terms_us.get(ORDER_TERM, 0.0)
    added = {**this.sum_us, "predicted time": prediction.latency_us}
    for heading, terms in (
        ("What adds up to the predicted time", added),
        (f"Busy times behind '{BUSY}', side by side: they do not add up", this.busy_us),
    ):
        output.print_text()
        output.print_text(heading, bold=True)
        output.print_table(["term", "us"], [[name, number(us)] for name, us in terms.items()], right=["us"])
        if order and terms is added:
            as_if = f"put in order as if it took {number(prediction.ranking_us)} us"
            output.print_text(f"{as_if}: the model knows more of the order of candidates than of their times")


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
    heading = f"Why it loses: {word} {number(a)} us, the best {number(b)} us ({a / b:.2f}x)"
    output.print_text(heading if a >= b else heading.replace("Why it loses", "Beside the best that is known"), bold=True)
    output.print_line(f"best: {best.config}, limited by {best.limit}")
    if found.lesson:
        output.print_text(f"- {found.lesson}")
    if found.steps:
        output.print_text()
        _print_steps(found)
    titles = {"parameter": "parameter", "term": "term, us", "launch": "launch", "quantity": "asked for, whole grid"}
    for kind, title in titles.items():
        rows = [[d.name.replace("_", " "), _shown(d.this), _shown(d.best)] for d in found.differences if d.kind == kind][:_MOST_DIFFERENCES]
        if rows and not (kind == "parameter" and found.steps):
            output.print_text()
            output.print_table([title, "this", "best"], rows, right=["this", "best"])


def _print_steps(found: Explanation) -> None:
    """One change after another, from the config to the best."""
    rows = [["", number(found.this.prediction.latency_us), number(found.this.measured_us), ""]]
    for step in found.steps:
        changes = ", ".join(f"{name} {output.value(a)} -> {output.value(b)}" for name, (a, b) in step.changes.items())
        terms = ", ".join(f"{t.name} {t.after_us - t.before_us:+.3g}" for t in step.terms)
        rows.append([changes, number(step.predicted_us), number(step.measured_us), terms])
    columns = ["changed, one after the other", "predicted", "measured", "terms that moved most, us"]
    output.print_table(columns, rows, right=["predicted", "measured"], folded=[columns[0], columns[3]])


def _amount(value: float, is_share: bool) -> str:
    return percent(value) if is_share else f"{value:,.5g}"


def _shown(value: Any) -> str:
    return f"{value:,.5g}" if isinstance(value, float) else output.value(value)


def _fields(found: Explanation) -> dict[str, Any]:
    return {
        "kernel": found.workload.operator,
        "workload": found.workload.key,
        "target": found.target.name,
        "this": _view_fields(found.this),
        "best": None if found.best is None else _view_fields(found.best),
        "notes": found.notes,
        "lesson": found.lesson,
        "verdict": found.verdict,
        "steps": [
            {
                "changes": [{"name": name, "this": a, "best": b} for name, (a, b) in step.changes.items()],
                "predicted_us": step.predicted_us,
                "measured_us": step.measured_us,
                "terms": [{"name": t.name, "before_us": t.before_us, "after_us": t.after_us} for t in step.terms],
            }
            for step in found.steps
        ],
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
        "first_limit": view.limit,
        "second_limit": view.second_limit,
        "limits": [_headroom(h) for h in view.limits.limits],
        "next_limit": None if view.limits.next_limit is None else _headroom(view.limits.next_limit),
        "wastes": [_headroom(h) for h in view.limits.wastes],
        "findings": view.findings,
        "doubts": view.doubts,
        "counters": [{"name": c.name, "predicted": c.predicted, "counted": c.counted} for c in view.counters],
        "compiled": view.compiled,
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


def _headroom(found: Headroom) -> dict[str, Any]:
    return {"name": found.name, "without_us": found.without_us, "gain": found.gain}
