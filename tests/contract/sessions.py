"""Sessions to put into a database, for the suites of its views and queries."""

from __future__ import annotations

from typing import Any

from tilesight.database import Store, query
from tilesight.session import Baseline, Context, Decision, Effort, State
from tilesight.space import Census
from tilesight.trial import TrialRecord
from tilesight.workload import Workload

SMALL = Workload("matmul", {"m": 64, "n": 64, "k": 64}, "float16")


def told(store: Store, context: Context, *trials: TrialRecord, vendor_us: float | None = None, decision: Decision | None = None) -> int:
    """A complete session that recorded `trials`; its id."""
    session_id = store.begin(context, Effort.QUICK, 0, {}, Census(9, 9, {}), flops=2_000_000_000, min_bytes=30_000_000)
    store.record_many(session_id, context, trials)
    if vendor_us is not None:
        store.record_baselines(session_id, [Baseline("slow", (2 * vendor_us,)), Baseline("cuBLAS", (vendor_us,))])
    store.finish(session_id, State.COMPLETE, decision=decision)
    return session_id


def rows(store: Store, sql: str) -> list[tuple[Any, ...]]:
    return query(store, sql)[1]
