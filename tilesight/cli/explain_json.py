"""The JSON of `tilesight explain`: the fields of an explanation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..costmodel.analytical.headroom import Headroom
    from ..explanation import CandidateView, Explanation
    from ..explanation.own_configs import OwnConfig


def fields(found: Explanation) -> dict[str, Any]:
    """The fields beside `schema_version` and `kind`; docs/cli.md describes them."""
    return {
        "kernel": found.kernel if found.workload is None else found.workload.operator,
        "workload": None if found.workload is None else found.workload.key,
        "target": found.target.name,
        "this": _view_fields(found.this),
        "best": None if found.best is None else _view_fields(found.best),
        "notes": found.notes,
        "own_configs": own_fields(found.own_configs),
        "lesson": found.largest_step,
        "verdict": found.verdict,
        "steps": [
            {
                "changes": [{"name": name, "this": a, "best": b} for name, (a, b) in step.changes.items()],
                "predicted_us": step.predicted_us,
                "measured_us": step.measured_us,
                "terms": [
                    {"name": t.name, "before_us": t.before_us, "after_us": t.after_us} for t in step.terms
                ],
            }
            for step in found.steps
        ],
        "differences": [
            {"kind": d.kind, "name": d.name, "this": d.this, "best": d.best} for d in found.differences
        ],
    }


def own_fields(configs: Sequence[OwnConfig]) -> list[dict[str, Any]]:
    """The fields of each config of a kernel's own `@autotune`."""
    found = []
    for each in configs:
        predicted = each.prediction
        found.append(
            {
                "number": each.number,
                "config": each.config,
                "predicted_us": None if predicted is None else predicted.latency_us,
                "predicted_uncertainty": None if predicted is None else predicted.uncertainty,
                "limiting": None if predicted is None else predicted.limiting,
                "failure": each.failure or None,
            }
        )
    return found


def _view_fields(view: CandidateView) -> dict[str, Any]:
    prediction = view.prediction
    return {
        "config": view.config,
        "measured_us": view.measured_us,
        "predicted_us": prediction.latency_us,
        "predicted_uncertainty": prediction.uncertainty,
        "limiting": prediction.limiting,
        "largest_cost": view.largest_cost,
        "second_cost": view.second_cost,
        "costs": [_headroom(h) for h in view.limits.limits],
        "next_cost": None if view.limits.next_limit is None else _headroom(view.limits.next_limit),
        "wastes": [_headroom(h) for h in view.limits.wastes],
        "findings": view.findings,
        "doubts": view.caveats,
        "counters": [{"name": c.name, "predicted": c.predicted, "counted": c.counted} for c in view.counters],
        "compiled": view.compiled,
        "utilization": prediction.utilization,
        "terms_us": prediction.terms_us,
        "notes": prediction.notes,
        "model": prediction.model,
        "launch": view.launch,
        "buffers": [
            {
                "kernel": b.kernel,
                "name": b.name or None,
                "space": b.space,
                "write": b.is_write,
                "transactions": b.transactions,
                "least_transactions": b.least_transactions,
                "l2_bytes": b.l2_bytes,
                "dram_bytes": b.dram_bytes,
                "distinct_bytes": b.distinct_bytes,
            }
            for b in view.buffers
        ],
        "roles": [
            {
                "kernel": a.kernel,
                "role": a.role,
                "threads": a.threads,
                "per_block": a.quantities,
                "matrix_instructions": a.matrix_instructions,
                "unknown_calls": a.unknown_calls,
                "registers": a.registers,
            }
            for a in view.requested
        ],
    }


def _headroom(found: Headroom) -> dict[str, Any]:
    return {"name": found.name, "without_us": found.without_us, "gain": found.gain}
