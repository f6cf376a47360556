"""Comparisons of a kernel in use with others: when it stays, and how they are recorded.

Dispatchers compare their active kernels so, and `tilesight recheck` recorded winners.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ..problem.space import Config, SearchSpace
from ..problem.template import KernelTemplate
from ..records.session import Comparison, Context, Decision, Effort, SessionState
from ..records.trial import TrialRecord
from .recorded import interrupts_deferred

if TYPE_CHECKING:
    from ..database.store import Store


def prefer_present(decision: Decision | None, present: Config, name: str) -> Decision | None:
    """The decision with the config in use as winner if it is tied with the winner.

    `name`: of that config in the reason.
    """
    if decision is None or present not in decision.tied:
        return decision
    others = tuple(config for config in (decision.winner, *decision.tied) if config != present)
    return Decision(present, others, f"it is {name} and tied with the fastest")


def record_comparison(
    store: Store,
    context: Context,
    template: KernelTemplate,
    space: SearchSpace,
    records: Sequence[TrialRecord],
    found: Comparison,
    options: Mapping[str, str],
    message: str,
    *,
    is_complete: bool = True,
) -> int:
    """Record a comparison as a session; returns its id.

    Args:
        store: Where it is recorded.
        context: Of all records.
        template: Of all records.
        space: That of the context's workload.
        records: The compared kernels; those that failed may be among them.
        found: Its decision counts if the winner is one of `records`.
        options: By which the session differs from those of the tuner, which re-use none of these.
        message: What the session was for, and its outcome.
        is_complete: Whether the session decides which kernel is used.
    """
    operator, workload = template.operator, context.workload
    floor = {"flops": operator.flops(workload), "min_bytes": operator.min_bytes(workload)}
    state = SessionState.COMPLETE if is_complete else SessionState.INTERRUPTED
    with interrupts_deferred():
        session = store.begin(context, Effort.QUICK, 0, options, space.census(), **floor)
        store.record_many(session, context, records)
        store.record_baselines(session, found.baselines)
        decision = _restricted(found.decision, records) if is_complete else None
        store.finish(session, state, [message], 0.0, decision=decision)
    return session


def _restricted(decision: Decision | None, records: Sequence[TrialRecord]) -> Decision | None:
    """The decision restricted to the configs of `records`; None if the winner is not one of them."""
    configs = {record.config for record in records}
    if decision is None or decision.winner not in configs:
        return None
    return replace(decision, tied=tuple(config for config in decision.tied if config in configs))
