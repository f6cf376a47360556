"""What one session is asked to do, and how far each effort goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from .candidate import Candidate
from .protocol import Protocol
from .session import Context, Effort
from .space import Config, SearchSpace
from .target import Target
from .template import KernelTemplate
from .workload import Workload


@dataclass(frozen=True, slots=True)
class Plan:
    """How far an effort goes. None: to the end of the space."""

    explore: int | None  # lowerings; configs that only reorder blocks share one
    measure: int | None
    patience: int | None = 24  # candidates that may come to nothing after the last improvement
    care_below: float = 0.0  # busy share of the devices below which candidates are measured with the care for finalists
    early: float = 0.25  # share of the measurements for which candidates may be built before all are explored


PLANS: Mapping[Effort, Plan] = {
    Effort.PREDICT: Plan(explore=192, measure=0),
    Effort.QUICK: Plan(explore=128, measure=16),
    Effort.FULL: Plan(explore=400, measure=128, care_below=0.8, early=0.75),
    Effort.EXHAUSTIVE: Plan(explore=None, measure=None, patience=None),
}


@dataclass(frozen=True, slots=True)
class Request:
    """What one session is asked to do. `measures`: a device of the target is at hand. No budget: no time limit."""

    workload: Workload
    target: Target
    template: KernelTemplate
    space: SearchSpace
    context: Context
    effort: Effort
    protocol: Protocol
    measures: bool = False
    budget_s: float | None = None
    seed: int = 0
    sampler: str = "tpe"

    def candidate(self, config: Config) -> Candidate:
        return Candidate(self.workload, self.target, self.template, config, self.context.open)
