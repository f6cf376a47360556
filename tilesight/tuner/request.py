"""What one session is asked to do, and how far each effort goes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..machine.placement import Placement
from ..problem.candidate import Candidate
from ..problem.space import Config, SearchSpace
from ..problem.template import KernelTemplate
from ..problem.workload import Workload
from ..records.protocol import MeasurementProtocol
from ..records.session import Context, Effort
from ..target.spec import Target
from .options import TuneOptions
from .resolve import find_context


@dataclass(frozen=True, slots=True)
class EffortLimits:
    """How far an effort goes. None: to the end of the space.

    Attributes:
        explore: Number of lowerings; configs that differ only in block order share one. Configs in the
            profile cache count as lowered.
        measure: Number of measured candidates.
        build: Number of candidates that are built although nothing is measured.
        patience: Candidates measured after the last improvement, after which the session ends.
        careful_below: Busy share of the devices below which candidates are measured with the care for
            finalists.
        early: Share of `measure` that may be built before all candidates are explored.
    """

    explore: int | None
    measure: int | None
    build: int = 0
    patience: int | None = 24
    careful_below: float = 0.0
    early: float = 0.25


EFFORT_LIMITS: Mapping[Effort, EffortLimits] = {
    Effort.GLANCE: EffortLimits(explore=24, measure=0),
    Effort.PREDICT: EffortLimits(explore=192, measure=0),
    Effort.BUILD: EffortLimits(explore=192, measure=0, build=16),
    Effort.QUICK: EffortLimits(explore=128, measure=16),
    Effort.FULL: EffortLimits(explore=400, measure=128, careful_below=0.8, early=0.75),
    Effort.EXHAUSTIVE: EffortLimits(explore=None, measure=None, patience=None),
}


@dataclass(frozen=True, slots=True)
class Request:
    """What one session is asked to do. It measures if a device of the target is present (`measures`)."""

    workload: Workload
    target: Target
    template: KernelTemplate
    space: SearchSpace
    context: Context
    effort: Effort
    protocol: MeasurementProtocol
    measures: bool = False
    budget_s: float | None = None
    seed: int = 0
    sampler: str = "tpe"
    remeasures: bool = False  # recorded measurements are taken again

    def candidate(self, config: Config) -> Candidate:
        template = self.template.for_config(config)
        return Candidate(self.workload, self.target, template, config, self.context.dynamic)


def make_request(
    template: KernelTemplate,
    workload: Workload,
    placement: Placement,
    model: str,
    options: TuneOptions,
    space: SearchSpace | None = None,
) -> Request:
    """The request for one session.

    Args:
        template: The kernel template to tune.
        workload: What it computes.
        placement: The target, and the devices to measure on; without a device the session only predicts.
        model: Version of the cost model.
        options: Effort, budget, seed, sampler, protocol and dynamic dimensions.
        space: The configs to choose from; None: the template's own space.

    Raises:
        UnknownNameError: there is no such protocol.
    """
    chosen = template.space(workload, placement.target) if space is None else space
    protocol = MeasurementProtocol.named(options.protocol, placement.target)
    return Request(
        workload,
        placement.target,
        template,
        chosen,
        find_context(template, workload, placement, model, chosen, protocol, options.dynamic),
        options.effort,
        protocol,
        measures=bool(placement.devices),
        budget_s=options.budget_s,
        seed=options.seed,
        sampler=options.sampler,
        remeasures=options.remeasure,
    )
