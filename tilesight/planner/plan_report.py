"""The report of a plan, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..reports.numbers import number, percent
from ..reports.report import Report

if TYPE_CHECKING:
    from .result import PlanResult


def plan_report(found: PlanResult) -> Report:
    """The kernels with the sizes that each serves, the times and losses at sampled sizes, and their means."""
    report, table = Report(), found.table
    count = len(table.kernels)
    where = f"measured on {table.device}" if found.is_measured else f"predicted for {table.target}"
    report.text(f"{found.label}: {count} kernel{'' if count == 1 else 's'}, {where}", bold=True)
    counts = f"{found.looked_at} configs predicted, {found.built} built, {found.measured} measurements"
    recalled = f" ({found.recalled} more from the database)" if found.recalled else ""
    compared = f", {found.compared} comparisons with the default config" if found.compared else ""
    report.text(f"{counts}{recalled}{compared}; {found.seconds:.1f} s")
    report.text()
    report.table(
        ["kernel", "sizes", "config"], _kernel_rows(found), right=["kernel"], folded=["sizes", "config"]
    )
    report.text()
    columns = [table.vary, "kernel", "chosen us", "best us", "loss", "default us", "times"]
    report.table(columns, _size_rows(found), right=columns[:6])
    if any(piece.size not in found.default_us for piece in table.evidence):
        report.text(
            "'-' in column default us: the template has no default config for that size, or its time was not "
            "examined."
        )
    report.text()
    worst = found.worst
    if worst is not None:
        at = (
            f"worst {percent(worst.loss)} at {table.vary}={worst.size}"
            if worst.loss
            else "no size loses anything"
        )
        sizes = f"the {len(table.evidence)} sizes of this table"
        report.text(f"loss against the best known config at {sizes}: mean {percent(found.mean_loss)}, {at}")
    expected = f"mean {percent(found.expected_mean)}, worst {percent(found.expected_worst)}"
    source = "the model corrected by the measurements" if found.is_measured else "the model"
    report.text(f"expected loss over the whole range, from {source}: {expected}")
    for message in found.messages:
        report.text(f"note: {message}")
    return report


def _kernel_rows(found: PlanResult) -> list[list[object]]:
    rows: list[list[object]] = []
    for place, config in enumerate(found.table.kernels):
        spans = [
            f"{s.first}..{s.last}" if s.first < s.last else str(s.first)
            for s in found.table.segments
            if s.kernel == place
        ]
        rows.append([place, " ".join(spans), config])
    return rows


def _size_rows(found: PlanResult) -> list[list[object]]:
    rows: list[list[object]] = []
    for piece in found.table.evidence:
        both = piece.chosen_measured, piece.best_measured
        known = "measured" if all(both) else "predicted" if not any(both) else "mixed"
        default = number(found.default_us.get(piece.size))
        rows.append(
            [
                piece.size,
                piece.kernel,
                number(piece.chosen_us),
                number(piece.best_us),
                percent(piece.loss),
                default,
                known,
            ]
        )
    return rows
