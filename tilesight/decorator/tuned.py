"""The config that was chosen for a call's arguments, and how it was found."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from ..problem.space import Config
from ..problem.workload import Workload
from ..records.session import SessionResult
from ..records.trial import Status, TrialRecord
from .user_operator import REFERENCE


class TunedSource(StrEnum):
    """How a choice was found.

    session    a session of this call
    database   an earlier session
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
    """A chosen config. `values` are the arguments that it stands for; times are microseconds.

    `status` is `verified` if the results were compared, `measured` if not (`skip_check`), `predicted` if it
    never ran."""

    config: Config
    values: Mapping[str, Any]
    source: TunedSource
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
        """Whether later calls use it too; an interim choice is used until a session ends."""
        return self.source not in (TunedSource.MODEL, TunedSource.DEFAULT) or (self.result is not None)


def tuned_from(result: SessionResult, values: Mapping[str, Any], trial: TrialRecord) -> Tuned:
    """The choice of `trial`, which stands for the arguments `values`."""
    measurement = trial.measurement
    measured = measurement.latency_us if measurement and measurement.samples_us else None
    predicts = not result.effort.measures or trial.status in (Status.PREDICTED, Status.BUILT)
    source = TunedSource.DATABASE if result.from_database else TunedSource.SESSION
    return Tuned(
        config=trial.config,
        values=dict(values),
        source=TunedSource.MODEL if predicts else source,
        status=trial.status,
        workload=result.context.workload,
        target=result.context.target,
        latency_us=measured,
        predicted_us=trial.predicted_us,
        reference_us=next((b.latency_us for b in result.baselines if b.name == REFERENCE), None),
        messages=result.messages,
        result=result,
    )
