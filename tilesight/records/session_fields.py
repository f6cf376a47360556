"""The fields of a tuning session, for programs: docs/cli.md lists them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from .roofline import Roofline
from .trial import Status, TrialRecord

if TYPE_CHECKING:
    from .session import Decision, SessionResult


def session_fields(result: SessionResult, top: int) -> dict[str, Any]:
    """Fields of one session with its best `top` candidates."""
    context, workload, floor = result.context, result.context.workload, result.limit
    vendor, best = result.fastest_baseline, result.best
    return {
        "kernel": workload.operator,
        "template": context.template,
        "workload": workload.key,
        "shape": workload.name,
        "dims": workload.dims,
        "attrs": workload.attrs,
        "dtype": workload.dtype,
        "dynamic": list(context.dynamic),
        "target": context.target,
        "device": context.device or None,
        "protocol": context.protocol or None,
        "model": context.model,
        "software": context.software,
        "effort": result.effort.value,
        "state": result.state.value,
        "from_database": result.from_database,
        "seconds": result.seconds,
        "is_measured": result.is_measured,
        "is_noisy": result.is_noisy,
        "space": {
            "size": result.census.size,
            "legal": result.census.legal,
            "rejected": result.census.rejected,
        },
        "counts": Counter(t.status.value for t in result.trials),
        "failures": Counter(t.failure.kind.value for t in result.trials if t.failure),
        "flops": result.flops,
        "min_bytes": result.min_bytes,
        "limit_us": floor.latency_us if floor.is_known else None,
        "candidates": [
            trial_fields(place, trial, floor)
            for place, trial in enumerate(
                [t for t in result.trials if t.status is not Status.FAILED][:top], 1
            )
        ],
        "vendor": [
            {"name": b.name, "latency_us": b.latency_us, "samples_us": b.samples_us} for b in result.baselines
        ],
        "decision": None if result.decision is None else decision_fields(result.decision),
        "speedup_over_vendor": vendor.latency_us / best.measured_us
        if vendor and not vendor.is_noisy and best and best.measured_us
        else None,
        "usage": result.usage or None,
        "messages": result.messages,
    }


def decision_fields(decision: Decision) -> dict[str, Any]:
    return {
        "winner": dict(decision.winner),
        "tied": [dict(config) for config in decision.tied],
        "reason": decision.reason,
    }


def trial_fields(place: int, trial: TrialRecord, floor: Roofline) -> dict[str, Any]:
    measured, predicted, prediction = trial.measured_us, trial.predicted_us, trial.prediction
    return {
        "rank": place,
        "config": dict(trial.config),
        "status": trial.status.value,
        "measured_us": measured,
        "noisy_us": trial.noisy_us,
        "spread": trial.measurement.spread if trial.measurement and trial.measurement.samples_us else None,
        "measured_tflops": floor.tflops(measured) if measured else None,
        "measured_gb_per_s": floor.gb_per_s(measured) if measured else None,
        "measured_limit_share": floor.share(measured) if measured else None,
        "relative_error": trial.measurement.relative_error if trial.measurement else None,
        "predicted_us": predicted,
        "predicted_tflops": floor.tflops(predicted) if predicted else None,
        "predicted_gb_per_s": floor.gb_per_s(predicted) if predicted else None,
        "predicted_limit_share": floor.share(predicted) if predicted else None,
        "predicted_uncertainty": prediction.uncertainty if prediction else None,
        "limiting": prediction.limiting if prediction else None,
        "utilization": prediction.utilization if prediction else None,
    }
