"""The report of a search space, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..reports.numbers import value
from ..reports.report import Report
from .rejections import rejections

if TYPE_CHECKING:
    from .space import SearchSpace


def space_report(space: SearchSpace) -> Report:
    """The number of legal configs, the parameters with their values, and the rules that others break."""
    report, census, broken = Report(), space.census(), rejections(space)
    report.text(f"{census.legal} of {census.size} configs are legal")
    report.text()
    rows = [[p.name, ", ".join(map(value, p.values)), p.meaning] for p in space.parameters]
    report.table(["parameter", "values", "meaning"], rows, folded=["values", "meaning"])
    if broken:
        report.text()
        report.table(
            ["configs", "broken rule", "example"],
            [[r.count, r.constraint, r.example] for r in broken],
            right=["configs"],
            folded=["example"],
        )
    return report
