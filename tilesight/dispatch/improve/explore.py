"""Exploration: lowering configs for one shape in worker processes, so that the model can rank them."""

from __future__ import annotations

import math
from contextlib import suppress
from functools import partial

from ...errors import DatabaseError, Failure, NoCandidateError
from ...executor.jobs import Executor, lower_all
from ...executor.shared_lowering import SharedLowering
from ...machine.placement import Placement
from ...problem.space import Config
from ...problem.workload import Workload
from ...records.session import Effort
from ...records.trial import Status
from ...tuner.observers import Observer
from ...tuner.options import TuneOptions
from ...tuner.request import make_request
from ..problem import DispatchProblem
from ..select.choice import Choice, ChoiceSource
from ..select.selector import Selector
from .tuning_setup import TuningSetup

CHALLENGERS = 4  # configs that are compared with the active one
EXPLORE_S = 60.0  # time for ranking the configs of one shape

_TRIED_FIRST = (ChoiceSource.RECORD, ChoiceSource.TABLE, ChoiceSource.SHIPPED, ChoiceSource.NEIGHBOUR)


def rank_configs(
    executor: Executor,
    problem: DispatchProblem,
    setup: TuningSetup,
    workload: Workload,
    budget_s: float = EXPLORE_S,
    count: int = CHALLENGERS,
) -> list[tuple[Config, float]]:
    """The `count` configs that the model ranks first for a workload, with predicted microseconds.

    This is a session that only predicts; the database remembers it. Raises `NoCandidateError` if no config is
    legal, and `DatabaseError`.
    """
    from ...executor.caching_executor import CachingExecutor
    from ...executor.profile_cache import ProfileCache
    from ...tuner.recorded import run_recorded

    store, model = setup.store, setup.model
    # Like that of `rank`, the context names no device, because nothing is measured.
    placement = Placement(problem.target)
    options = TuneOptions(effort=Effort.PREDICT, budget_s=budget_s)
    request = make_request(problem.template, workload, placement, model.version, options)
    result = run_recorded(
        request, store, model, lambda: CachingExecutor(executor, ProfileCache(store)), Observer()
    )
    works = (trial for trial in result.trials if trial.status is not Status.FAILED)
    return [(trial.config, trial.predicted_us) for trial in works if trial.predicted_us][:count]


def find_choice(
    selector: Selector, setup: TuningSetup, workload: Workload, executor: Executor
) -> Choice | None:
    """The model's choice for a shape, after lowering the profiles that it lacks; None if there is none.

    Lowers the winners of the nearest recorded shapes or, if none of them is predicted then, configs of the
    search space.
    """
    missing = selector.unpredicted(workload)
    if missing:
        candidates = [selector.problem.candidate(shape, config, ()) for config, shape in missing]
        for candidate, outcome in SharedLowering().lower(candidates, partial(lower_all, executor)):
            us = math.inf if isinstance(outcome, Failure) else selector.predictor.time_of(outcome.kernels)
            selector.predictor.set_time(candidate.config, candidate.workload, us)
    first = next(selector.choices(workload), None)
    if first is not None and first.expected_us:
        return first
    ranked = rank_configs(executor, selector.problem, setup, workload)
    return _model_choice(selector.problem, workload, *ranked[0], "first choice") if ranked else None


def find_challengers(
    executor: Executor, selector: Selector, setup: TuningSetup, present: Choice, budget_s: float, count: int
) -> list[Choice]:
    """Up to `count` choices to compare with `present`.

    At most half of them are recorded; the others are those that the model ranks first.
    """
    workload, problem = present.workload, selector.problem
    recorded = [
        c for c in selector.choices(workload) if c.source in _TRIED_FIRST and c.config != present.config
    ]
    found = recorded[: (count + 1) // 2]
    with suppress(NoCandidateError, DatabaseError):
        ranked = rank_configs(executor, problem, setup, workload, budget_s, count + 1)
        found += [_model_choice(problem, workload, config, us, "choice") for config, us in ranked]
    unique: dict[Config, Choice] = {}
    for choice in found:
        if choice.config != present.config:
            unique.setdefault(choice.config, choice)
    return list(unique.values())[:count]


def _model_choice(
    problem: DispatchProblem, workload: Workload, config: Config, us: float, what: str
) -> Choice:
    reason = f"the model's {what} for this shape: it expects {us:.4g} us"
    return Choice(workload, config, ChoiceSource.MODEL, reason, us, False, problem.dynamic)
