"""What a dispatcher chose for a workload, and why."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ..space import Config
from ..workload import Workload


class Source(StrEnum):
    """Where a choice comes from, the most certain first.

    record     the workload itself was tuned: its winner
    table      a dispatch table that `tilesight plan` made
    neighbour  winners of the nearest recorded shapes, put in order by the model
    model      the model's first choice
    default    the template's default config, or the first legal one where it names none
    """

    RECORD = "record"
    TABLE = "table"
    NEIGHBOUR = "neighbour"
    MODEL = "model"
    DEFAULT = "default"


@dataclass(frozen=True, slots=True)
class Choice:
    workload: Workload
    config: Config
    source: Source
    reason: str  # one sentence for people
    expected_us: float | None = None
    is_measured: bool = False  # of `expected_us`: measured on this very workload; else predicted
    open: tuple[str, ...] = ()  # dimensions that its kernel takes at run time
