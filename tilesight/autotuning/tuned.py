"""What became of one call's arguments: the config that was chosen, and how it is known to be good."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..session import Effort, SessionResult
from ..space import Config
from ..trial import Status, TrialRecord
from ..workload import Workload
from .operator import REFERENCE


class Source(StrEnum):
    """Where a choice comes from.

    session    it was tuned in this call
    database   it was tuned before
    model      the cost model's first choice: nothing was measured
    default    the default config: nothing is known yet
    given      the caller chose
    """

    SESSION = "session"
    DATABASE = "database"
    MODEL = "model"
    DEFAULT = "default"
    GIVEN = "given"


@dataclass(frozen=True)
class Tuned:
    """`values` are the arguments that were chosen. `status` is `verified` where its results were right, `measured` where nobody
    looked (`skip_check`), `predicted` where it never ran. Times are microseconds, measured and predicted."""

    config: Config
    values: Mapping[str, Any]
    source: Source
    status: Status
    workload: Workload | None = None
    target: str = ""
    latency_us: float | None = None
    predicted_us: float | None = None
    reference_us: float | None = None  # of `ref_prog`
    messages: tuple[str, ...] = ()
    result: SessionResult | None = None

    @property
    def is_final(self) -> bool:
        """Whether later calls take it, too; else it serves while something better is on its way."""
        return self.source not in (Source.MODEL, Source.DEFAULT) or (self.result is not None)


def winner(result: SessionResult) -> TrialRecord | None:
    """The best that is known to be right, else the fastest that nobody looked at, else the one predicted fastest."""
    best = result.best
    if best is not None and best.status is Status.VERIFIED:
        return best
    unchecked = [t for t in result.trials if t.status is Status.MEASURED and t.measurement is not None]
    if unchecked:
        return min(unchecked, key=lambda t: t.measurement.latency_us if t.measurement else 0.0)
    return best


def tuned_from(result: SessionResult, values: Mapping[str, Any], trial: TrialRecord) -> Tuned:
    measured = trial.measurement.latency_us if trial.measurement and trial.measurement.samples_us else None
    predicts = result.effort is Effort.PREDICT or trial.status in (Status.PREDICTED, Status.BUILT)
    source = Source.MODEL if predicts else Source.DATABASE if result.from_database else Source.SESSION
    return Tuned(
        config=trial.config,
        values=dict(values),
        source=source,
        status=trial.status,
        workload=result.context.workload,
        target=result.context.target,
        latency_us=measured,
        predicted_us=trial.predicted_us,
        reference_us=next((b.latency_us for b in result.baselines if b.name == REFERENCE), None),
        messages=result.messages,
        result=result,
    )
