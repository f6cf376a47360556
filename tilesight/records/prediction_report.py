"""The report of a prediction, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from ..reports.numbers import number, percent, spread
from ..reports.report import Report

if TYPE_CHECKING:
    from .trial import Prediction


def prediction_report(found: Prediction) -> Report:
    """The time with its uncertainty, the resource that sets the pace, busy shares, terms and notes."""
    report = Report()
    time = f"{number(found.latency_us)} us, {spread(found.uncertainty)}"
    report.text(f"predicted time: {time}", bold=True)
    report.text(f"limiting: {found.limiting}")
    for heading, unit, amounts in (
        ("resource", "busy", {name: percent(share) for name, share in _largest_first(found.utilization)}),
        ("term", "us", {name: number(us) for name, us in found.terms_us.items()}),
    ):
        if amounts:
            report.text()
            report.table([heading, unit], list(amounts.items()), right=[unit])
    if found.notes or found.model:
        report.text()
    for note in found.notes:
        report.text(f"note: {note}")
    if found.model:
        report.text(f"model: {found.model}")
    return report


def _largest_first(shares: Mapping[str, float]) -> list[tuple[str, float]]:
    return sorted(shares.items(), key=lambda item: -item[1])
