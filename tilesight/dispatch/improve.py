"""Improvement: whether another config serves a workload better, by paired measurements, and the record of them.

The present kernel and its challengers are timed in turns in a fresh process, as the finalists of a session are. What serves is
replaced only by what these samples tell from it for certain.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ..errors import Failure
from ..lookup import find_context
from ..observers import Observer
from ..protocol import Protocol
from ..request import Request
from ..session import Comparison, Decision, Effort, State
from ..space import Config
from ..trial import BuildResult, Measurement, Status, TrialRecord
from ..where import Where
from ..work import Compare, Compared, OneLane
from ..workload import Workload
from .builds import BuiltIndex, build_all
from .choice import Choice, Source
from .problem import Problem
from .workshop import Tools

if TYPE_CHECKING:
    from ..costmodel.model import CostModel
    from ..database.store import Store

CHALLENGERS = 4
EXPLORE_S = 60.0  # that looking for challengers may take
OPTIONS: Mapping[str, str] = {"sampler": "dispatch"}  # of the sessions that record it: they are no answer to any other request


@dataclass(frozen=True)
class Grounds:
    """What explorations and comparisons stand on, and where they are recorded."""

    where: Where
    protocol: Protocol
    model: CostModel
    store: Store


@dataclass(frozen=True, slots=True)
class Improvement:
    """What came of trying to do better. `after` is `before` unless another kernel is certainly faster."""

    before: Choice
    after: Choice
    reason: str
    decision: Decision | None = None


def explored(
    tools: Tools, problem: Problem, grounds: Grounds, workload: Workload, budget_s: float = EXPLORE_S, count: int = CHALLENGERS
) -> list[tuple[Config, float]]:
    """The configs that the model likes best for this workload, with their predicted times: from a session that predicts, which
    the database remembers. Raises `NoCandidateError` where nothing is legal, `DatabaseError`."""
    from ..kept import KeptExecutor
    from ..recorded import run_recorded

    store = grounds.store
    space = problem.template.space(workload, problem.target)
    # as `rank` asks: nothing is measured, so no device counts
    context = find_context(problem.template, workload, Where(problem.target), grounds.model.version, space, grounds.protocol)
    effort = Effort.PREDICT
    request = Request(workload, problem.target, problem.template, space, context, effort, grounds.protocol, budget_s=budget_s)
    result = run_recorded(request, store, grounds.model, lambda: KeptExecutor(tools.executor, store), Observer())
    works = (trial for trial in result.trials if trial.status is not Status.FAILED)
    return [(trial.config, trial.predicted_us) for trial in works if trial.predicted_us][:count]


def improve(
    tools: Tools,
    problem: Problem,
    index: BuiltIndex,
    grounds: Grounds,
    present: Choice,
    challengers: Sequence[Choice],
) -> Improvement:
    """Time `present` and `challengers` in turns, record that, and say who is to serve. Raises `ToolchainError` where nothing can
    be built or measured; all else that goes wrong leaves `present` in place."""
    rivals = {c.config: c for c in challengers if c.config != present.config}
    choices = [present, *rivals.values()]
    candidates = [problem.candidate(c.workload, c.config, c.open) for c in choices]
    built = build_all(tools.executor, index, candidates)
    ready = [(c, candidate, b) for c, candidate, b in zip(choices, candidates, built, strict=True) if b.artifact is not None]
    if not ready or ready[0][0] is not present:
        return Improvement(present, present, "the kernel that serves does not build here: nothing was compared")
    if len(ready) == 1:
        return Improvement(present, present, "there is no other config to compare it with")
    pairs = tuple((candidate, b) for _, candidate, b in ready)
    [event] = tools.executor.stream(OneLane([Compare(pairs, grounds.protocol.careful())]))
    assert isinstance(event, Compared)
    if isinstance(event.found, Failure):
        return Improvement(present, present, f"nothing was compared: {event.found.message}")
    found = replace(event.found, decision=_kept(event.found.decision, present))
    with suppress(Exception):  # a database that takes nothing spoils no result
        _record(problem, grounds, [(c, b) for c, _, b in ready], found)
    return judged(present, [c for c, _, _ in ready], found)


def _kept(decision: Decision | None, present: Choice) -> Decision | None:
    """The decision with the present config as its winner where that cannot be told from the winner: it stays, here and for all
    who read the record."""
    if decision is None or present.config not in decision.tied:
        return decision
    others = tuple(config for config in (decision.winner, *decision.tied) if config != present.config)
    return Decision(present.config, others, "it serves, and cannot be told from the fastest")


def judged(present: Choice, choices: Sequence[Choice], found: Comparison) -> Improvement:
    """What a comparison of `choices`, the present one first, means for who serves."""
    times = {c.config: m for c, m in zip(choices, found.measurements, strict=True)}
    decision, mine = found.decision, times[present.config]
    if decision is None:
        return Improvement(present, present, "no kernel came through the comparison")
    if mine.is_bystander or (mine.failure is not None and not mine.is_wrong):
        assert mine.failure is not None
        return Improvement(present, present, f"the kernel that serves was not timed: {mine.failure.message}", decision)
    if decision.winner == present.config or present.config in decision.tied:
        return Improvement(present, _measured(present, mine), f"the present kernel stays: {decision.reason}", decision)
    won = next(c for c in choices if c.config == decision.winner)
    after = _measured(won, times[won.config])
    why = "which computes wrong results" if mine.failure is not None else f"which took {mine.latency_us:.4g} us in the same turns"
    reason = f"{after.reason}; it replaced {present.config}, {why}"
    return Improvement(present, replace(after, reason=reason), reason, decision)


def _measured(choice: Choice, measurement: Measurement) -> Choice:
    if measurement.failure is not None:
        return choice
    us = measurement.latency_us
    return replace(choice, source=Source.RECORD, reason=f"measured at {us:.4g} us in turns with others", expected_us=us, is_measured=True)


def _record(problem: Problem, grounds: Grounds, timed: Sequence[tuple[Choice, BuildResult]], found: Comparison) -> None:
    """One session for each set of open dimensions among them, since a session has one context."""
    store = grounds.store
    by_open: dict[tuple[str, ...], list[TrialRecord]] = {}
    for (choice, built), measurement in zip(timed, found.measurements, strict=True):
        record = _trial(choice, built, measurement)
        if record is not None:
            by_open.setdefault(choice.open, []).append(record)
    workload, operator = timed[0][0].workload, problem.operator
    space = problem.template.space(workload, problem.target)
    context = find_context(problem.template, workload, grounds.where, grounds.model.version, space, grounds.protocol)
    floor = {"flops": operator.flops(workload), "min_bytes": operator.min_bytes(workload)}
    for open_dims, records in by_open.items():
        there = replace(context, open=open_dims)
        session = store.begin(there, Effort.QUICK, 0, OPTIONS, space.census(), **floor)
        store.record_many(session, there, records)
        store.record_baselines(session, found.baselines)
        store.finish(session, State.COMPLETE, ["kernels compared by a dispatcher"], 0.0, decision=_among(found.decision, records))


def _among(decision: Decision | None, records: Sequence[TrialRecord]) -> Decision | None:
    """The decision as far as it is about `records`; None where another one won."""
    mine = {record.config for record in records}
    if decision is None or decision.winner not in mine:
        return None
    return replace(decision, tied=tuple(config for config in decision.tied if config in mine))


def _trial(choice: Choice, built: BuildResult, measurement: Measurement) -> TrialRecord | None:
    if measurement.failure is None:
        return TrialRecord(choice.config, Status.VERIFIED, build=built, measurement=measurement)
    if measurement.is_bystander:
        return None
    return TrialRecord(choice.config, Status.FAILED, build=built, measurement=measurement, failure=measurement.failure)
