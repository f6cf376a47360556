"""The configs of a kernel's own `@autotune`, compared by predicted time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ..problem.space import Config
from ..records.trial import Prediction
from ..reports.numbers import number, sigma
from ..reports.report import Report, Reported
from ..target.spec import Target

MOST_SHOWN = 10  # where the table stands below other results


@dataclass(frozen=True, slots=True)
class OwnConfig:
    """One config of a kernel's own `@autotune`.

    Attributes:
        number: its place in the list, from 1.
        prediction: None if it failed.
        failure: why it cannot be lowered or predicted; "" otherwise.
    """

    number: int
    config: Config
    prediction: Prediction | None
    failure: str = ""


@dataclass(frozen=True, slots=True, repr=False)
class OwnConfigs(Reported):
    """The configs of a kernel's own `@autotune`, the fastest by prediction first, then those that failed."""

    name: str
    target: Target
    configs: tuple[OwnConfig, ...]

    def report(self, most: int | None = None) -> Report:
        """The table of the first `most` configs; None: of all."""
        report = Report()
        report.text(f"{self.name} on {self.target.title}: the configs of its own @autotune", bold=True)
        add_table(report, self.configs, most)
        return report


def add_section(report: Report, configs: Sequence[OwnConfig]) -> None:
    """Add the first own configs below the result of one of them; nothing if there are none."""
    if configs:
        report.text()
        report.text("The configs of its own @autotune by predicted time", bold=True)
        add_table(report, configs, MOST_SHOWN)


def add_table(report: Report, configs: Sequence[OwnConfig], most: int | None) -> None:
    """Add the table of own configs to a report, and a line for each reason why some failed."""
    works = [each for each in configs if each.prediction is not None]
    rows = [
        [
            str(each.number),
            number(each.prediction.latency_us),
            sigma(each.prediction.uncertainty),
            each.prediction.limiting,
            str(each.config),
        ]
        for each in works[:most]
        if each.prediction is not None
    ]
    columns = ["number", "predicted us", "one sigma", "limiting", "config"]
    report.table(columns, rows, right=columns[:3], folded=["config"])
    if most is not None and len(works) > most:
        more = len(works) - most
        report.text(f"{more} slower one{'s are' if more > 1 else ' is'} not shown")
    reasons: dict[str, list[str]] = {}
    for each in configs:
        if each.failure:
            reasons.setdefault(each.failure, []).append(str(each.number))
    for reason, numbers in reasons.items():
        report.text(f"not predicted ({', '.join(numbers)}): {reason}")
