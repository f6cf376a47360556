"""Planning: predict configs over the range, measure those that matter, choose kernels, make the table."""

from __future__ import annotations

from ..costmodel.model import CostModel
from ..errors import NoCandidateError
from ..executor.jobs import Executor
from ..records.session import SessionState
from ..tuner.observers import Observer
from .kernel_choice import ChoiceColumns, KernelChoice
from .plan_measurements import PlanMeasurements
from .plan_options import GivenConfigs, PlanClock, PlanLimits, PlanOptions, limits_for
from .plan_problem import PlanProblem
from .plan_state import PlanState
from .predict_range import RangePredictor
from .record_sessions import PlanRecorder
from .result import PlanResult
from .shortlist import shortlist
from .size_predictions import SizePredictions
from .sizes import sizes_at_jumps, widest_gaps
from .summary import summarize


class Planner:
    """One plan. `limits`: other limits than those of the effort. `given`: configs in place of exploration."""

    def __init__(
        self,
        problem: PlanProblem,
        options: PlanOptions,
        model: CostModel,
        executor: Executor,
        recorder: PlanRecorder,
        observer: Observer,
        limits: PlanLimits | None = None,
        given: GivenConfigs | None = None,
    ) -> None:
        self._problem, self._options, self._executor = problem, options, executor
        self._given = given
        self._recorder, self._observer = recorder, observer
        self._clock = PlanClock(options.budget_s)
        self._limits = limits or limits_for(problem, options.effort)
        self._predictions = SizePredictions(
            problem, model, executor, observer, self._clock.end(PlanClock.EXPLORE)
        )
        self._columns = ChoiceColumns(problem, options)
        self._predictor = RangePredictor(problem, self._predictions, self._columns, self._limits, observer)

    def run(self) -> PlanResult:
        """Make the plan. What was learned is recorded, even if it fails.

        Raises:
            NoCandidateError: no config works.
        """
        session_state = SessionState.INTERRUPTED
        try:
            found = self._plan()
            session_state = SessionState.INTERRUPTED if found.is_cut else SessionState.COMPLETE
        finally:
            self._recorder.close(session_state, self._clock.seconds)
        return found

    def _plan(self) -> PlanResult:
        problem, options, limits, clock = self._problem, self._options, self._limits, self._clock
        if self._given is None:
            self._predictions.explore(limits.explore, options.seed)
        else:
            self._predictions.take(self._given.configs, self._given.predicted_us)
        is_measured = bool(problem.placement.devices) and limits.measure > 0
        sizes, extra = self._first_sizes(is_measured)
        state = self._listed_state(sizes)
        choice = KernelChoice(problem, options, state, self._columns)
        measurements = PlanMeasurements(
            problem,
            options,
            limits,
            state,
            choice,
            self._predictor,
            self._executor,
            self._recorder,
            self._observer,
            clock,
        )
        measurements.begin()
        self._predictor.predict_listed(state.configs, sizes)
        messages: tuple[str, ...] = ()
        if is_measured:
            chosen = measurements.run(extra)
        else:
            chosen = choice.choose()
            messages = problem.placement.messages
            if not limits.measure:  # else they say why nothing is measured
                messages = ("nothing was measured: the table and its losses are predicted", *messages)
        table = choice.table(chosen, measured=is_measured)
        # merging segments may have given a sampled size to a kernel that was not measured there
        left = [(table.kernels[e.kernel], e.size) for e in table.evidence if not e.chosen_measured]
        if is_measured and left and not clock.is_over(PlanClock.MEASURE):
            measurements.measure(left)
            table = choice.table(chosen, measured=is_measured)
        most_kernels = self._options.kernels
        return summarize(problem, state, choice, measurements, table, clock, most_kernels, messages)

    def _first_sizes(self, is_measured: bool) -> tuple[list[int], int]:
        """The first sampled sizes, and the number of sizes that are added later.

        Half of the sizes are added later, if sizes share kernels. Those that an earlier call of this plan
        added are among the first.
        """
        vary, wanted = self._problem.vary, self._options.shapes
        shares_kernels = bool(self._problem.dynamic) and vary.last - vary.first >= wanted
        later = max(0, min(wanted // 2, wanted - 2)) if is_measured and shares_kernels else 0
        first = sizes_at_jumps(vary, wanted - later, self._predictor.outline())
        again = widest_gaps(self._recorder.known_sizes(), first, later) if later else []
        return sorted([*first, *again]), later - len(again)

    def _listed_state(self, sizes: list[int]) -> PlanState:
        """The short list at the first sizes."""
        problem, predictions, columns = self._problem, self._predictions, self._columns
        self._predictor.predict_at(sizes)
        at, weights = columns.sizes(sizes), columns.weights(sizes)
        wanted = self._given.first if self._given is not None else ()
        count, seed = self._limits.listed, self._options.seed
        listed = shortlist(problem, predictions, at, weights, count, seed, wanted)
        if not listed:
            is_late = self._clock.is_over(PlanClock.EXPLORE)
            why = "the time budget ended before anything was predicted" if is_late else "none lowers"
            target = problem.placement.target.name
            raise NoCandidateError(f"{problem.label}: of the configs that are legal on {target} {why}")
        return PlanState(problem, predictions, listed, sizes)
