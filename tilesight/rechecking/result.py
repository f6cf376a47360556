"""The result of a recheck."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..reports.numbers import number, percent
from ..reports.report import Report, Reported
from .due import ORDER, DueWinner
from .verdict import RecheckOutcome, RecheckVerdict

if TYPE_CHECKING:
    from pandas import DataFrame


@dataclass(frozen=True, slots=True)
class Rechecked:
    """One recorded winner, and what became of it."""

    due: DueWinner
    verdict: RecheckVerdict

    @property
    def is_replaced(self) -> bool:
        """Whether dispatchers use another config from now on."""
        return self.verdict.winner is not None and self.verdict.winner != self.due.config


@dataclass(frozen=True, repr=False)
class RecheckResult(Reported):
    """Recorded winners of earlier contexts, measured again. `print` shows it as `tilesight recheck` does.

    Attributes:
        target: name of the target.
        device: the driver's name of the device that measured; "" if nothing was measured.
        winners: in the order in which they were due.
        due: number of winners that were due; more than `winners` with a limit.
        current: number of winners that the present context has already.
        seconds: of the whole call.
        messages: what a user must know.
    """

    target: str
    device: str
    winners: tuple[Rechecked, ...]
    due: int
    current: int
    seconds: float = 0.0
    messages: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"RecheckResult({self.summary})"

    @property
    def counts(self) -> dict[str, int]:
        """The number of winners by outcome, without those of none."""
        found = Counter(one.verdict.outcome for one in self.winners)
        return {outcome.value: found[outcome] for outcome in RecheckOutcome if found[outcome]}

    @property
    def summary(self) -> str:
        """One line: the numbers by outcome."""
        counts = ", ".join(f"{count} {outcome}" for outcome, count in self.counts.items())
        others = f"; {self.current} more are of the present software" if self.current else ""
        where = f"{self.target}{f' ({self.device})' if self.device else ''}"
        return f"{where}: {counts or 'no recorded winner of earlier software is due'}{others}"

    def report(self) -> Report:
        """The report of `tilesight recheck`."""
        report = Report()
        report.text(self.summary, bold=True)
        if self.winners:
            report.text(f"order: {ORDER}")
            for change, count in _changes(self.winners):
                report.text(f"changed since: {change}{f' ({count} winners)' if count > 1 else ''}")
            report.text()
            columns = ["outcome", "calls", "recorded us", "now us", "best us", "workload", "why"]
            rows = [_row(one) for one in self.winners]
            report.table(columns, rows, right=columns[1:5], folded=columns[5:])
        replaced = [one for one in self.winners if one.is_replaced]
        if replaced:
            report.text()
            report.table(
                ["workload", "was", "is now"],
                [[one.due.label, one.due.config, one.verdict.winner] for one in replaced],
                folded=["workload", "was", "is now"],
            )
        if self.due > len(self.winners):
            report.text(f"{self.due - len(self.winners)} more are due, beyond --limit")
        for message in self.messages:
            report.text(f"note: {message}")
        return report

    def to_frame(self) -> DataFrame:
        """One row for each winner.

        Columns: those of `winners` in `tilesight recheck --json` that are single values.
        """
        import pandas as pd

        rows = [fields(one) for one in self.winners]
        return pd.DataFrame(
            {name: value for name, value in row.items() if not isinstance(value, dict | list)} for row in rows
        )


def fields(one: Rechecked) -> dict[str, object]:
    """A rechecked winner as values of JSON."""
    due, verdict = one.due, one.verdict
    low, high = verdict.slower_by or (None, None)
    return {
        "operator": due.workload.operator,
        "workload": due.workload.key,
        "shape": due.workload.name,
        "dtype": due.workload.dtype,
        "dynamic": list(due.dynamic),
        "template": due.template.name,
        "outcome": verdict.outcome.value,
        "reason": verdict.reason,
        "config": dict(due.config),
        "winner": None if verdict.winner is None else dict(verdict.winner),
        "is_replaced": one.is_replaced,
        "recorded_us": due.latency_us,
        "recorded_at": None if due.recorded_at is None else due.recorded_at.isoformat(),
        "layer": due.layer,
        "now_us": verdict.now_us,
        "best_us": verdict.best_us,
        "ratio": verdict.ratio,
        "slower_by_low": low,
        "slower_by_high": high,
        "calls": due.calls,
        "cost_us": due.cost_us,
        "changes": [{"part": part, "recorded": before, "now": now} for part, before, now in due.changes],
    }


def _changes(winners: tuple[Rechecked, ...]) -> list[tuple[str, int]]:
    """What differs from the recorded contexts, most frequent first."""
    found = Counter(change for one in winners for change in one.due.changes)
    return [
        (f"{part} {before or '-'} -> {now or '-'}", count)
        for (part, before, now), count in found.most_common(8)
    ]


def _row(one: Rechecked) -> list[object]:
    due, verdict = one.due, one.verdict
    outcome = str(verdict.outcome)
    if verdict.ratio is not None:
        outcome += f" ({percent(verdict.ratio - 1)})"
    times = [number(us) for us in (due.latency_us, verdict.now_us, verdict.best_us)]
    return [outcome, due.calls or "-", *times, due.label, verdict.reason]
