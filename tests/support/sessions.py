"""Sessions for the tests of views and queries."""

from __future__ import annotations

from typing import Any

from tilesight.database import Store, query
from tilesight.problem.space import Census
from tilesight.problem.workload import Workload
from tilesight.records.session import Baseline, Context, Decision, Effort, SessionState
from tilesight.records.trial import TrialRecord

SMALL = Workload("matmul", {"m": 64, "n": 64, "k": 64}, "float16")


def add_session(
    store: Store,
    context: Context,
    *trials: TrialRecord,
    vendor_us: float | None = None,
    decision: Decision | None = None,
) -> int:
    """Record a complete session with `trials`; its id."""
    session_id = store.begin(
        context, Effort.QUICK, 0, {}, Census(9, 9, {}), flops=2_000_000_000, min_bytes=30_000_000
    )
    store.record_many(session_id, context, trials)
    if vendor_us is not None:
        store.record_baselines(
            session_id, [Baseline("slow", (2 * vendor_us,)), Baseline("cuBLAS", (vendor_us,))]
        )
    store.finish(session_id, SessionState.COMPLETE, decision=decision)
    return session_id


def rows(store: Store, sql: str) -> list[tuple[Any, ...]]:
    return query(store, sql)[1]
