"""The report of an explanation, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..records.trial import ORDER_TERM
from ..reports.numbers import number, percent, spread, value
from ..reports.report import Report
from .own_configs import add_section
from .view_values import BUSY, CandidateView

if TYPE_CHECKING:
    from .comparison import Explanation

_BAR = 30  # characters of a full bar
_LEAST_GAIN = 0.005  # share of the predicted time; smaller gains are shown as 0 %
_MOST_DIFFERENCES = 8  # rows of each table of differences


def explanation_report(found: Explanation) -> Report:
    """What limits the candidate, how it differs from the best one, and how sure the model is."""
    report, this, best = Report(), found.this, found.best
    report.text(f"{found.title} on {found.target.title}", bold=True)
    if this.config is not None:
        report.line(f"config: {this.config}{_place(found)}")
    measured = f"measured {number(this.measured_us)} us, " if this.measured_us else ""
    prediction = this.prediction
    report.text(f"{measured}predicted {number(prediction.latency_us)} us, {spread(prediction.uncertainty)}")
    report.text(", ".join(f"{name.replace('_', ' ')} {amount:g}" for name, amount in this.launch.items()))
    report.text()
    second = f"; next: {this.second_cost}" if this.second_cost else ""
    report.text(f"largest cost: {this.largest_cost}{second}; limiting: {prediction.limiting}", bold=True)
    for sentence in this.findings:
        report.text(f"- {sentence}")
    report.text()
    report.text("How reliable the prediction is", bold=True)
    for sentence in (*this.caveats, *([found.verdict] if found.verdict else [])):
        report.text(f"- {sentence}")
    for note in found.notes:
        report.text(f"- Note: {note}.")
    report.text()
    _add_uses(report, this)
    if best is not None:
        _add_loss(report, found, best)
    _add_terms(report, this)
    if this.counters:
        report.text()
        rows = [
            [c.name, _amount(c.predicted, c.is_share), _amount(c.counted, c.is_share)] for c in this.counters
        ]
        report.table(["hardware counter", "predicted", "counted"], rows, right=["predicted", "counted"])
    report.text()
    report.text("Work per block, read from the IR", bold=True)
    _add_work(report, this)
    add_section(report, found.own_configs)
    return report


def _place(found: Explanation) -> str:
    """What the config is among others."""
    if found.workload is not None:
        return "" if found.best else "  (the best known config)"
    count = len(found.own_configs)
    return f"  (predicted fastest of the {count} configs of its own @autotune)" if count else ""


def _add_uses(report: Report, this: CandidateView) -> None:
    """How busy each resource is, and the predicted time if it cost nothing. Latencies have no busy share."""
    report.text("Predicted use of each resource, and the predicted time if it cost nothing", bold=True)
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
    report.table(["resource", "busy", "", "without, us", "gain"], rows, right=["busy", "without, us", "gain"])


def _add_terms(report: Report, this: CandidateView) -> None:
    """The terms whose sum is the predicted time, and the busy times that overlap within it."""
    prediction = this.prediction
    order = prediction.terms_us.get(ORDER_TERM, 0.0)
    added = {**this.sum_us, "predicted time": prediction.latency_us}
    for heading, terms in (
        ("What adds up to the predicted time", added),
        (f"Busy times within '{BUSY}': they overlap, so they do not add up", this.busy_us),
    ):
        report.text()
        report.text(heading, bold=True)
        report.table(["term", "us"], [[name, number(us)] for name, us in terms.items()], right=["us"])
        if order and terms is added:
            score = f"Its ranking score is {number(prediction.ranking_us)} us"
            report.text(
                f"{score}: candidates are ranked by it, since it is more reliable than the time estimate."
            )


def _add_work(report: Report, this: CandidateView) -> None:
    heads = [
        f"{a.role} ({a.threads} threads)" if a.kernel == 0 else f"{a.role} of kernel {a.kernel + 1}"
        for a in this.requested
    ]
    rows: dict[str, list[str]] = {}
    for position, work in enumerate(this.requested):
        unknown = {f"unknown: {name}": count for name, count in work.unknown_calls.items()}
        for name, amount in [*work.quantities.items(), *work.matrix_instructions.items(), *unknown.items()]:
            rows.setdefault(name.replace("_", " "), ["-"] * len(heads))[position] = f"{amount:,.6g}"
    report.table(["quantity", *heads], [[name, *amounts] for name, amounts in rows.items()], right=heads)


def _add_loss(report: Report, found: Explanation, best: CandidateView) -> None:
    this = found.this
    report.text()
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
    report.text(f"{heading}: {word} {number(a)} us, the best {number(b)} us ({a / b:.2f}x)", bold=True)
    report.line(f"best: {best.config}, largest cost: {best.largest_cost}")
    if found.largest_step:
        report.text(f"- {found.largest_step}")
    if found.steps:
        report.text()
        _add_steps(report, found)
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
            report.text()
            report.table([title, "this", "best"], rows, right=["this", "best"])


def _add_steps(report: Report, found: Explanation) -> None:
    """The path from the config to the best one, one change per row."""
    rows = [["", number(found.this.prediction.latency_us), number(found.this.measured_us), ""]]
    for step in found.steps:
        changes = ", ".join(f"{name} {value(a)} -> {value(b)}" for name, (a, b) in step.changes.items())
        terms = ", ".join(f"{t.name} {t.after_us - t.before_us:+.3g}" for t in step.terms)
        rows.append([changes, number(step.predicted_us), number(step.measured_us), terms])
    columns = ["changes, cumulative", "predicted us", "measured us", "terms that change most, us"]
    report.table(columns, rows, right=columns[1:3], folded=[columns[0], columns[3]])


def _amount(amount: float, is_share: bool) -> str:
    return percent(amount) if is_share else f"{amount:,.5g}"


def _shown(found: Any) -> str:
    return f"{found:,.5g}" if isinstance(found, float) else value(found)
