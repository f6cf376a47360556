"""The choice of a config for a workload, and its reason."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ...problem.space import Config
from ...problem.workload import Workload


class ChoiceSource(StrEnum):
    """Where a choice comes from, the most reliable first.

    given      the caller's own config
    record     the winner of a tuning run of this very workload
    table      a dispatch table that `tilesight plan` made
    shipped plan  such a table that ships with TileSight
    neighbour  the winner of one of the nearest recorded shapes, which the model puts in order
    model      the model's first choice
    default    the template's default config, or the first legal one if the template names none
    """

    GIVEN = "given"
    RECORD = "record"
    TABLE = "table"
    SHIPPED = "shipped plan"
    NEIGHBOUR = "neighbour"
    MODEL = "model"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Choice:
    """A config for one workload.

    Attributes:
        reason: one sentence for people.
        expected_us: microseconds, measured on this very workload if `is_measured`, else predicted; None if
            unknown.
        dynamic: dimensions that its kernel takes at run time.
    """

    workload: Workload
    config: Config
    source: ChoiceSource
    reason: str
    expected_us: float | None = None
    is_measured: bool = False
    dynamic: tuple[str, ...] = ()
