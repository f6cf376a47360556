"""The page of a kernel: the best records of an operator, or what limits a kernel in a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ..errors import InputError
from ..explanation import CandidateView, Explanation
from ..records.timeline import Timeline
from ..records.trial import Status
from ..reports.numbers import number, sigma
from .timeline_figures import kernel_timeline_parts
from .values import Axis, Bar, BarChart, Facts, Page, PageColumn, PageFigure, PageTable, Source, Texts

if TYPE_CHECKING:
    from ..database.lookups.best import Best

LEAST_GAIN = 0.001  # share of the time
RECORDS, LIMITS, TERMS, BUSY = "records", "limits", "terms", "busy"


def records_page(kernel: str, records: Sequence[Best]) -> Page:
    """The page of the best known config of each workload of an operator. Raises `InputError` without any."""
    if not records:
        raise InputError(f"kernel '{kernel}' has no records: `tilesight tune {kernel}` makes some")
    targets = sorted({record.target for record in records})
    facts = [
        ("workloads", str(len({record.workload for record in records}))),
        ("targets", ", ".join(targets)),
        ("measured", str(sum(_is_measured(record) for record in records))),
        ("predicted only", str(sum(not _is_measured(record) for record in records))),
    ]
    series = (
        Bar("best config, measured", Source.MEASURED, "measured_us"),
        Bar("best config, predicted", Source.PREDICTED, "predicted_us"),
        Bar("other implementation, measured", Source.VENDOR, "vendor_us"),
    )
    figures = [
        PageFigure(
            "records",
            "Best known times",
            "Of each workload on each target, under each protocol: the best config, with a predicted time "
            "only where nothing was measured, and the fastest other implementation.",
            RECORDS,
            {"": BarChart(Axis("time", "us"), "name", series)},
            (
                "name",
                "measured_us",
                "predicted_us",
                "vendor_us",
                "ratio",
                "limiting",
                "session",
                "device",
                "protocol",
                "config",
            ),
        )
    ]
    return Page(
        kernel, "Best known configs", [Facts("Records", facts), *figures], {RECORDS: _records(records)}
    )


def _records(records: Sequence[Best]) -> PageTable:
    names = [_label(record) for record in records]
    ratios = [
        record.vendor_us / record.latency_us if record.vendor_us and _is_measured(record) else None
        for record in records
    ]
    return PageTable(
        "records",
        {
            "name": PageColumn("workload", names),
            "measured_us": PageColumn(
                "measured time",
                [r.latency_us if _is_measured(r) else None for r in records],
                "us",
                Source.MEASURED,
            ),
            "predicted_us": PageColumn(
                "predicted time",
                [None if _is_measured(r) else r.latency_us for r in records],
                "us",
                Source.PREDICTED,
            ),
            "vendor_us": PageColumn(
                "time of another implementation", [r.vendor_us for r in records], "us", Source.VENDOR
            ),
            "ratio": PageColumn("times as fast as that", ratios),
            "limiting": PageColumn("limiting", [r.limiting for r in records], "", Source.PREDICTED),
            "session": PageColumn("session", [str(r.session_id) for r in records]),
            "device": PageColumn("device", [r.device or None for r in records]),
            "protocol": PageColumn("protocol", [r.protocol_key or None for r in records]),
            "config": PageColumn("config", [str(r.config) for r in records]),
        },
    )


def _label(record: Best) -> str:
    sizes = record.workload.partition("(")[2].rstrip(")")
    dynamic = f", dynamic {', '.join(record.dynamic)}" if record.dynamic else ""
    return f"{record.shape or sizes} {record.dtype} on {record.target}{dynamic}"


def _is_measured(record: Best) -> bool:
    return record.status is Status.VERIFIED


def explanation_page(found: Explanation, timeline: Timeline | None = None) -> Page:
    """The page of what limits a kernel and how sure the model is, with its timeline if there is one."""
    view = found.this
    prediction = view.prediction
    tables = {BUSY: _busy(view), LIMITS: _limits(view), TERMS: _terms(view)}
    measured = [] if view.measured_us is None else [("measured time", f"{number(view.measured_us)} us")]
    facts = [
        *measured,
        ("predicted time", f"{number(prediction.latency_us)} us"),
        ("one sigma", sigma(prediction.uncertainty)),
        ("limiting, predicted", prediction.limiting),
        ("largest cost, predicted", view.largest_cost),
        ("next cost, predicted", view.second_cost or "none"),
        *((name.replace("_", " "), f"{amount:g}") for name, amount in view.launch.items()),
        ("model", prediction.model),
    ]
    parts: list[PageFigure | Facts | Texts] = [Facts("Result", facts)]
    if view.findings:
        parts.append(Texts("What costs time", view.findings))
    reasons = (*view.caveats, *([found.verdict] if found.verdict else []), *found.notes)
    if reasons:
        parts.append(Texts("How reliable the prediction is", reasons, is_warning=True))
    parts += [figure for figure in _view_figures() if len(tables[figure.table])]
    if timeline is not None:
        drawn, tables_of_it = kernel_timeline_parts(timeline)
        parts, tables = [*parts, *drawn], tables | tables_of_it
    parts += _work(view)
    return Page(
        f"{found.title} on {found.target.title}", "Nothing here was measured: all is predicted", parts, tables
    )


def _busy(view: CandidateView) -> PageTable:
    return PageTable(
        "resources",
        {
            "resource": PageColumn("resource", [use.resource for use in view.uses]),
            "share": PageColumn(
                "busy share, predicted", [100 * use.share for use in view.uses], "%", Source.PREDICTED
            ),
        },
    )


def _limits(view: CandidateView) -> PageTable:
    known = [*view.limits.limits, *view.limits.wastes]
    found = [each for each in known if each.gain >= LEAST_GAIN] or known[:1]
    return PageTable(
        "limits and wastes",
        {
            "name": PageColumn("without", [f"{each.name} ({each.kind})" for each in found]),
            "left_us": PageColumn(
                "time that is left", [each.without_us for each in found], "us", Source.PREDICTED
            ),
            "gain": PageColumn("saved share", [100 * each.gain for each in found], "%", Source.PREDICTED),
        },
    )


def _terms(view: CandidateView) -> PageTable:
    terms = view.prediction.terms_us
    return PageTable(
        "terms",
        {
            "term": PageColumn("term", list(terms)),
            "us": PageColumn("time", list(terms.values()), "us", Source.PREDICTED),
        },
    )


def _view_figures() -> list[PageFigure]:
    return [
        PageFigure(
            "limits",
            "What would be left without each limit",
            "The predicted time if one limit of the hardware or one waste of the kernel cost nothing. The "
            "shortest bar is what is worth most work. What gains nothing is left out.",
            LIMITS,
            {
                "": BarChart(
                    Axis("predicted time", "us"), "name", (Bar("time left", Source.PREDICTED, "left_us"),)
                )
            },
            ("name", "left_us", "gain"),
        ),
        PageFigure(
            "busy",
            "Utilization",
            "The predicted share of the kernel's time in which each resource is busy.",
            BUSY,
            {
                "": BarChart(
                    Axis("busy share, predicted", "%"), "resource", (Bar("busy", Source.PREDICTED, "share"),)
                )
            },
            ("resource", "share"),
        ),
        PageFigure(
            "terms",
            "Terms of the model",
            "Terms overlap or contain one another, so they do not add up. A correction may be below zero.",
            TERMS,
            {"": BarChart(Axis("predicted time", "us"), "term", (Bar("term", Source.PREDICTED, "us"),))},
            ("term", "us"),
        ),
    ]


def _work(view: CandidateView) -> list[Facts]:
    """The work of each role of each kernel, read from the IR."""
    found = []
    for each in view.requested:
        rows = [(name.replace("_", " "), number(amount)) for name, amount in each.quantities.items()]
        rows += [(instruction, number(count)) for instruction, count in each.matrix_instructions.items()]
        rows += [(f"unknown call {name}", number(count)) for name, count in each.unknown_calls.items()]
        if rows:
            title = f"Work of a block, kernel {each.kernel}: {each.role}, {each.threads} threads"
            found.append(Facts(title, rows))
    return found
