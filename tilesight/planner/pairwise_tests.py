"""Pairwise tests: a chosen kernel that is not clearly faster than the default is timed in turns with it.

The ratio of their times turn by turn counts from then on. A new choice replaces the default only beyond the
noise.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from ..errors import WRONG, Failure
from ..executor.jobs import CompareDone, CompareJob, Executor, SingleLaneSource
from ..problem.space import Config
from ..records.intervals import median_interval
from ..records.protocol import MeasurementProtocol
from ..records.trial import Measurement, TrialRecord
from .plan_state import PlanState
from .size_predictions import Pair

CLEAR_FACTOR = 1.05  # a default config that takes this much longer in separate measurements needs no test
CONFIDENCE = 0.99
NO_DIFFERENCE = "no different"  # begins the result of a test without a difference

Record = Callable[[int, Sequence[TrialRecord]], None]


@dataclass(frozen=True, slots=True)
class PairwiseTest:
    """The chosen and the default config at one size."""

    size: int
    chosen: Config
    default: Config


def find_pairwise_tests(
    state: PlanState, serves: Sequence[Pair], known: Sequence[PairwiseTest]
) -> list[PairwiseTest]:
    """Tests where the chosen config is not clearly faster than the default, closest times first.

    Args:
        state: of the plan.
        serves: the chosen config of each size.
        known: tests that were run already.
    """
    found: dict[PairwiseTest, float] = {}
    for chosen, size in serves:
        default = state.problem.default(size)
        if (
            default is None
            or default == chosen
            or state.is_excluded(default)
            or PairwiseTest(size, chosen, default) in known
        ):
            continue
        builds = [state.build_of(config, size) for config in (chosen, default)]
        chosen_us, default_us = state.measured_us(chosen, size), state.measured_us(default, size)
        if (
            chosen_us is None
            or default_us is None
            or any(build is None or build.artifact is None for build in builds)
        ):
            continue
        if default_us < CLEAR_FACTOR * chosen_us:
            found[PairwiseTest(size, chosen, default)] = default_us / chosen_us
    return sorted(found, key=lambda test: found[test])


def run_pairwise_tests(
    state: PlanState,
    tests: Sequence[PairwiseTest],
    executor: Executor,
    protocol: MeasurementProtocol,
    record: Record,
) -> dict[PairwiseTest, str]:
    """Time both configs of each test in turns, and note the times in the state.

    Returns:
        The result of each test in words.
    """
    pairs = {}
    for test in tests:
        finalists = []
        for config in (test.chosen, test.default):
            build = state.build_of(config, test.size)
            assert build is not None  # both were measured
            finalists.append((state.problem.candidate(test.size, config), build))
        pairs[test] = CompareJob(tuple(finalists), protocol)
    by_job = {id(job): test for test, job in pairs.items()}
    found: dict[PairwiseTest, str] = {}
    for event in executor.stream(SingleLaneSource(pairs.values())):
        assert isinstance(event, CompareDone)
        test = by_job[id(event.job)]
        if isinstance(event.found, Failure):
            found[test] = f"could not be compared: {event.found.message}"
            continue
        found[test] = _note_result(state, test, event.found.measurements, record)
    return found


def _note_result(
    state: PlanState, test: PairwiseTest, measurements: Sequence[Measurement], record: Record
) -> str:
    for config, measurement in zip((test.chosen, test.default), measurements, strict=True):
        if not measurement.failure or measurement.failure.kind in WRONG:
            record(test.size, [state.measured(config, test.size, measurement)])
    failed = [m.failure for m in measurements if m.failure]
    if failed:
        return f"could not be compared: {failed[0].message}"
    if any(m.is_noisy for m in measurements):
        return f"too noisy to tell (± {max(m.spread for m in measurements):.0%}): the machine was busy"
    chosen_us, default_us = (m.samples_us for m in measurements)
    ratios = [chosen / default for chosen, default in zip(chosen_us, default_us, strict=True)]
    low, high = median_interval(ratios, CONFIDENCE)
    # both times of a turn were taken at the same clock
    state.paired_us[test.chosen, test.size] = median(default_us) * median(ratios)
    share = 100 * (median(ratios) - 1)
    if high < 1:
        return f"certainly faster than the default, by {-share:.1f} %"
    if low > 1:
        return f"certainly slower than the default, by {share:.1f} %"
    return f"{NO_DIFFERENCE} from the default beyond the noise"
