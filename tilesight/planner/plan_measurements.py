"""The measured part of a plan: rounds of measuring, choosing and comparing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..executor.jobs import Executor
from ..problem.space import Config
from ..records.trial import TrialRecord
from ..tuner.observers import Observer
from .extra_sizes import sizes_to_try
from .kernel_choice import KernelChoice
from .measure_loop import MeasureLoop
from .pairwise_tests import PairwiseTest, find_pairwise_tests, run_pairwise_tests
from .plan_options import PlanClock, PlanLimits, PlanOptions
from .plan_problem import PlanProblem
from .plan_state import PlanState
from .predict_range import RangePredictor
from .record_sessions import PlanRecorder
from .shortlist import near_best
from .size_predictions import Pair

CHOICE_ROUNDS = 3  # of choosing, and measuring what was chosen without a measurement
EXTRA_SIZE_ROUNDS = 2  # in which sizes are added near the ends of the choice's segments


class PlanMeasurements:
    """Measures for one plan. `is_cut`: the budget ended before all sizes were added."""

    def __init__(
        self,
        problem: PlanProblem,
        options: PlanOptions,
        limits: PlanLimits,
        state: PlanState,
        choice: KernelChoice,
        predictor: RangePredictor,
        executor: Executor,
        recorder: PlanRecorder,
        observer: Observer,
        clock: PlanClock,
    ) -> None:
        self._problem, self._options, self._limits, self._state = problem, options, limits, state
        self._choice, self._predictor, self._executor = choice, predictor, executor
        self._recorder, self._observer, self._clock = recorder, observer, clock
        self.measured = self.recalled = 0
        self.tests: dict[PairwiseTest, str] = {}  # results in words
        self.is_cut = False

    def begin(self) -> None:
        """Take over what the database knows of the state's configs and sizes."""
        self._record(self._state.begin(self._recall(self._state.sizes)))

    def run(self, extra_sizes: int) -> list[Config]:
        """Measure at the state's sizes and at `extra_sizes` more; the configs that are chosen then."""
        state, choice = self._state, self._choice
        chosen = self._measure_promising(choice.choose())
        wanted = len(state.sizes) + extra_sizes
        for round_number in range(EXTRA_SIZE_ROUNDS):
            count = -(-(wanted - len(state.sizes)) // (EXTRA_SIZE_ROUNDS - round_number))
            if count <= 0:
                break
            if self._clock.is_over(PlanClock.ADD):
                self.is_cut = True
                break
            self._add_sizes(chosen, count)
            chosen = self._measure_promising(choice.choose())
        for _ in range(CHOICE_ROUNDS):
            tests = find_pairwise_tests(state, choice.served(chosen), list(self.tests))
            tests = tests[: self._limits.compare - len(self.tests)]
            if not tests or self._clock.is_over(PlanClock.ALL):
                break
            self._compare(tests)
            chosen = choice.choose()
        self.measure([pair for pair in choice.served(chosen) if not self._is_known(pair)])
        # time was up before all was measured: no kernel enters a measured table by its prediction alone
        return choice.choose(measured_only=True) if self._clock.is_over(PlanClock.MEASURE) else chosen

    def measure(self, pairs: Sequence[Pair]) -> None:
        """Build and measure these pairs of config and size alone."""
        if pairs:
            self._measure(pairs, [config for config, _ in pairs], 0)

    def _measure_promising(self, chosen: list[Config]) -> list[Config]:
        """Measure chosen configs, and those that may be the best of a size, until nothing changes."""
        state = self._state
        required = [*self._predictor.defaults(state.sizes), *self._choice.served(chosen)]
        for round_number in range(1 + CHOICE_ROUNDS):
            new = [pair for pair in required if not self._is_known(pair)]
            if round_number > 1 and not new:
                break
            self._measure(new, state.configs, self._limits.measure)
            if round_number == 0 and not self._clock.is_over(PlanClock.ADD):
                self._list_more()
            chosen = self._choice.choose()
            required = self._choice.served(chosen)
        return chosen

    def _add_sizes(self, chosen: Sequence[Config], count: int) -> None:
        """Sample more sizes where the chosen kernels serve sizes far from all sampled ones."""
        state, table = self._state, self._choice.table(chosen, measured=True)
        new = sizes_to_try(table, state.sizes, self._problem.whole_tiles, count, self._options.weights)
        self._predictor.predict_at(new)
        self._record(state.add_sizes(new, self._recall(new)))
        self._predictor.predict_listed(state.configs, state.sizes)

    def _list_more(self) -> None:
        """List configs that look better since some were measured."""
        state = self._state
        weights = self._choice.columns.sampled_weights(state.sizes)
        near = near_best(state.predictions, state.sizes, ())
        more = state.most_promising(near, weights, self._limits.listed // 2)
        self._record(state.add(more))
        self._predictor.predict_listed(more, state.sizes)

    def _measure(self, required: Sequence[Pair], builds: Sequence[Config], limit: int) -> None:
        state, observer = self._state, self._observer
        end = self._clock.end(PlanClock.MEASURE)
        loop = MeasureLoop(
            state, self._problem.protocol, limit, end, self._recorder.record, observer, required
        )
        observer.phase("measure", None)  # times decide what else is measured
        loop.run(self._executor, builds)
        self.measured += loop.measured
        failed = f", {len(state.failed)} failed" if state.failed else ""
        noisy = f" ({loop.noisy} noisy, which count for nothing)" if loop.noisy else ""
        counts = f"{state.built_count} built{failed}, {loop.measured} measured{noisy}"
        observer.phase_done(f"{counts}; {len(state.sizes)} sizes")

    def _compare(self, tests: Sequence[PairwiseTest]) -> None:
        self._observer.phase("compare", len(tests))
        protocol, record = self._problem.protocol, self._recorder.record
        found = run_pairwise_tests(self._state, tests, self._executor, protocol, record)
        self.tests.update(found)
        slower = sum("slower" in text for text in found.values())
        counts = f"at {len(found)} sizes, slower at {slower}"
        self._observer.phase_done(f"chosen kernels and defaults in turns {counts}")

    def _recall(self, sizes: Sequence[int]) -> Mapping[int, Mapping[str, TrialRecord]]:
        found = self._recorder.recall(sizes)
        count = sum(r.measured_us is not None for records in found.values() for r in records.values())
        if count:
            self._observer.message(f"known from earlier sessions: {count} measurements")
        self.recalled += count
        return found

    def _record(self, new: Mapping[int, Sequence[TrialRecord]]) -> None:
        for size, records in new.items():
            self._recorder.record(size, records)

    def _is_known(self, pair: Pair) -> bool:
        return self._state.is_excluded(pair[0]) or self._state.is_tried(*pair)
