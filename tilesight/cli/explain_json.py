"""The JSON of `tilesight explain`: the fields of an explanation."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..costmodel.analytical.headroom import Headroom
    from ..explanation import CandidateView, Explanation


def fields(found: Explanation) -> dict[str, Any]:
    """The fields beside `schema_version` and `kind`; docs/cli.md describes them."""
    return {
        "kernel": found.kernel if found.workload is None else found.workload.operator,
        "workload": None if found.workload is None else found.workload.key,
        "target": found.target.name,
        "this": _view_fields(found.this),
        "best": None if found.best is None else _view_fields(found.best),
        "notes": found.notes,
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
        "roles": [
            {
                "kernel": a.kernel,
                "role": a.role,
                "threads": a.threads,
                "per_block": a.quantities,
                "matrix_instructions": a.matrix_instructions,
                "unknown_calls": a.unknown_calls,
            }
            for a in view.requested
        ],
    }


def _headroom(found: Headroom) -> dict[str, Any]:
    return {"name": found.name, "without_us": found.without_us, "gain": found.gain}
