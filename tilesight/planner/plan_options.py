"""Options of a plan, and the limits that follow from its effort and its time budget."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ..problem.space import Config
from ..records.session import Effort
from .plan_problem import PlanProblem
from .sizes import SizeRange


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """Options of a plan.

    `kernels` and `shapes` are the largest numbers of kernels and of sampled sizes. `weights`: how much sizes
    count, by size; None: every doubling counts the same. `budget_s`: seconds; None: no limit.
    """

    kernels: int
    shapes: int
    effort: Effort
    budget_s: float | None = None
    seed: int = 0
    weights: Mapping[int, float] | None = None

    def session_options(self, vary: SizeRange) -> dict[str, str]:
        """Recorded options of sessions: those, beside effort and seed, that decide the sampled sizes."""
        found = {"range": f"{vary.dim}={vary.first}..{vary.last}", "shapes": str(self.shapes)}
        return found | {"weights": str(sorted(self.weights.items()))} if self.weights else found


@dataclass(frozen=True, slots=True)
class PlanLimits:
    """How far an effort goes."""

    explore: int  # groups of configs that are lowered
    promising: int  # configs that are lowered at each size, if profiles are not cached
    listed: int  # configs that are built
    measure: int  # configs that are measured at each size
    compare: int  # sizes at which the chosen and the default config are timed in turns


@dataclass(frozen=True, slots=True)
class GivenConfigs:
    """Configs that take the place of exploration, e.g. those that another machine has chosen.

    `configs`: all of them. `first`: of these, configs that are listed in any case, e.g. kernels of the plan
    of a similar chip. `predicted_us`: their times by size, as `PlanResult` has them; with these, nothing is
    lowered or predicted.
    """

    configs: Sequence[Config]
    first: Sequence[Config] = ()
    predicted_us: Mapping[Config, Mapping[int, float]] | None = None


PLAN_LIMITS: dict[Effort, PlanLimits] = {
    Effort.PREDICT: PlanLimits(384, 48, 64, 0, 0),
    Effort.QUICK: PlanLimits(384, 48, 64, 10, 8),
    Effort.FULL: PlanLimits(1200, 96, 128, 24, 24),
}


def limits_for(problem: PlanProblem, effort: Effort) -> PlanLimits:
    """The limits of an effort; lower without cached profiles, where each size takes lowerings."""
    limits = PLAN_LIMITS[effort]
    if problem.template.scales:
        return limits
    return replace(
        limits,
        explore=limits.explore // 4,
        promising=max(1, limits.promising // 4),
        listed=limits.listed // 2,
    )


class PlanClock:
    """Time since a plan began, and the shares of its budget after which its phases end."""

    EXPLORE, ADD, MEASURE, ALL = 0.35, 0.65, 0.8, 1.0

    def __init__(self, budget_s: float | None) -> None:
        self._begin, self._budget_s = time.monotonic(), budget_s

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._begin

    def end(self, share: float) -> float:
        """When this share of the budget is spent, by the monotonic clock."""
        return math.inf if self._budget_s is None else self._begin + share * self._budget_s

    def is_over(self, share: float) -> bool:
        return time.monotonic() > self.end(share)
