"""Comparison of the active kernel of a shape with challengers by paired measurements, and the record of it.

The kernels are timed in turns in a fresh process, like the finalists of a session. The active kernel is
replaced only if these samples show that another kernel is faster.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from ...errors import Failure
from ...executor.jobs import CompareDone, CompareJob, Executor, SingleLaneSource
from ...records.session import Comparison, Decision
from ...records.trial import BuildResult, Measurement, TrialRecord
from ...tuner.comparisons import prefer_present, record_comparison
from ...tuner.resolve import find_context
from ..kernels.kernel_builder import KernelBuilder
from ..problem import DispatchProblem
from ..select.choice import Choice, ChoiceSource
from .tuning_setup import TuningSetup

OPTIONS: Mapping[str, str] = {
    "sampler": "dispatch"
}  # no request of a tuner has them, so none reuses these sessions


@dataclass(frozen=True, slots=True)
class Improvement:
    """The outcome of an attempt to find a faster kernel.

    `after` has the config of `before` unless another one is faster.
    """

    before: Choice
    after: Choice
    reason: str
    decision: Decision | None = None


def compare(
    executor: Executor,
    builder: KernelBuilder,
    setup: TuningSetup,
    present: Choice,
    challengers: Sequence[Choice],
) -> Improvement:
    """Time `present` and `challengers` in turns, record the times, and name the winner.

    Raises `ToolchainError` if nothing can be built or measured; any other failure leaves `present` in place.
    """
    others = {c.config: c for c in challengers if c.config != present.config}
    choices = [present, *others.values()]
    built = builder.build_with(choices, executor)
    ready = [(c, b) for c, b in zip(choices, built, strict=True) if b.artifact is not None]
    if not ready or ready[0][0] is not present:
        return Improvement(present, present, "the active kernel does not build here: nothing was compared")
    if len(ready) == 1:
        return Improvement(present, present, "there is no other config to compare it with")
    pairs = tuple((builder.candidate(choice), b) for choice, b in ready)
    job = CompareJob(pairs, setup.protocol.careful(), with_vendor=False)
    [event] = executor.stream(SingleLaneSource([job]))
    assert isinstance(event, CompareDone)
    if isinstance(event.found, Failure):
        return Improvement(present, present, f"nothing was compared: {event.found.message}")
    decision = prefer_present(event.found.decision, present.config, "the active one")
    found = replace(event.found, decision=decision)
    with suppress(Exception):  # the result holds even if the database refuses it
        _record(builder.problem, setup, ready, found)
    return conclude(present, [choice for choice, _ in ready], found)


def conclude(present: Choice, choices: Sequence[Choice], found: Comparison) -> Improvement:
    """What a comparison of `choices`, of which `present` is the first, means for the shape."""
    times = {c.config: m for c, m in zip(choices, found.measurements, strict=True)}
    decision, mine = found.decision, times[present.config]
    if decision is None:
        return Improvement(present, present, "no kernel came through the comparison")
    if mine.is_collateral or (mine.failure is not None and not mine.is_wrong):
        assert mine.failure is not None
        return Improvement(
            present, present, f"the active kernel was not timed: {mine.failure.message}", decision
        )
    noise = max(m.spread for m in (mine, times[decision.winner]) if not m.failure)
    if any(m.is_noisy for m in (mine, times[decision.winner])):
        return Improvement(
            present, present, f"the active kernel stays: too noisy to tell (± {noise:.0%})", decision
        )
    if decision.winner == present.config or present.config in decision.tied:
        reason = f"the active kernel stays: {decision.reason}"
        return Improvement(present, _measured(present, mine), reason, decision)
    winner = next(c for c in choices if c.config == decision.winner)
    after = _measured(winner, times[winner.config])
    why = "which computes wrong results"
    if mine.failure is None:
        why = f"which took {mine.latency_us:.4g} us in the same turns"
    reason = f"{after.reason}; it replaced {present.config}, {why}"
    return Improvement(present, replace(after, reason=reason), reason, decision)


def _measured(choice: Choice, measurement: Measurement) -> Choice:
    if measurement.failure is not None:
        return choice
    us = measurement.latency_us
    reason = f"measured at {us:.4g} us in turns with others"
    return replace(choice, source=ChoiceSource.RECORD, reason=reason, expected_us=us, is_measured=True)


def _record(
    problem: DispatchProblem,
    setup: TuningSetup,
    timed: Sequence[tuple[Choice, BuildResult]],
    found: Comparison,
) -> None:
    """Record one session for each set of dynamic dimensions, since a session has one context."""
    by_dynamic: dict[tuple[str, ...], list[TrialRecord]] = {}
    for (choice, built), measurement in zip(timed, found.measurements, strict=True):
        record = _trial(choice, built, measurement)
        if record is not None:
            by_dynamic.setdefault(choice.dynamic, []).append(record)
    workload, template = timed[0][0].workload, problem.template
    space = template.space(workload, problem.target)
    context = find_context(template, workload, setup.placement, setup.model.version, space, setup.protocol)
    for dynamic_dims, records in by_dynamic.items():
        own_context = replace(context, dynamic=dynamic_dims)
        record_comparison(
            setup.store,
            own_context,
            template,
            space,
            records,
            found,
            OPTIONS,
            "kernels compared by a dispatcher",
        )


def _trial(choice: Choice, built: BuildResult, measurement: Measurement) -> TrialRecord | None:
    if measurement.is_collateral:
        return None
    return TrialRecord(
        choice.config, measurement.status, build=built, measurement=measurement, failure=measurement.failure
    )
