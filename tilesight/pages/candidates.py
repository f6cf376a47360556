"""The candidates of a session as a table of a page, and what the model says is left without a limit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

from ..costmodel.learned.hybrid import CORRECTION
from ..problem.config import Config
from ..records.recorded_session import RecordedSession, TrialTimes
from ..records.trial import ORDER_TERM, Prediction, TrialRecord
from .levels import MemoryLevel
from .values import Cell, PageColumn, PageTable, Source

# terms that precede all others, contain others, or are none of the hardware
_NO_LIMIT = frozenset({"launch", "fill", "makespan", "loops", CORRECTION, ORDER_TERM})
_ADDED = ("launch", "fill")
PARAMETER = "parameter "  # begins the keys of columns of a config


def next_limit(prediction: Prediction) -> tuple[str, float] | None:
    """The longest term beside the limiting one, and the least time that it leaves, in microseconds.

    The model's time of overlapping terms is at least that of the longest, so no kernel is predicted to be
    faster than that once the limiting term is gone. None if the prediction has no other term.
    """
    terms = prediction.terms_us
    others = {
        name: us
        for name, us in terms.items()
        if name not in _NO_LIMIT and name != prediction.limiting and us > 0
    }
    if not others:
        return None
    name = max(others, key=lambda name: others[name])
    added = sum(terms.get(term, 0.0) for term in _ADDED)
    return name, min(prediction.latency_us, added + others[name])


def candidate_table(found: RecordedSession, levels: Sequence[MemoryLevel]) -> PageTable:
    """All candidates, one row each, in the order of the result."""
    result = found.result
    trials, floor = result.trials, result.limit
    limits = [next_limit(t.prediction) if t.prediction else None for t in trials]
    columns: dict[str, PageColumn] = {
        "rank": PageColumn("rank", range(1, len(trials) + 1)),
        "status": PageColumn("status", [t.status.value for t in trials]),
        "measured_us": PageColumn("measured time", [t.measured_us for t in trials], "us", Source.MEASURED),
        "noisy_us": PageColumn("noisy time", [t.noisy_us for t in trials], "us", Source.NOISY),
        "predicted_us": PageColumn(
            "predicted time", [t.predicted_us for t in trials], "us", Source.PREDICTED
        ),
        "sigma": PageColumn(
            "one sigma, share of the time",
            [t.prediction.uncertainty if t.prediction else None for t in trials],
            "",
            Source.PREDICTED,
        ),
        "limiting": PageColumn(
            "limiting",
            [t.prediction.limiting if t.prediction else None for t in trials],
            "",
            Source.PREDICTED,
        ),
        "next_limit": PageColumn("next limit", [n[0] if n else None for n in limits], "", Source.PREDICTED),
        "left_us": PageColumn(
            "left at least without what limits", [n[1] if n else None for n in limits], "us", Source.PREDICTED
        ),
    }
    if result.flops:
        measured = [t.measured_us and floor.tflops(t.measured_us) for t in trials]
        predicted = [t.predicted_us and floor.tflops(t.predicted_us) for t in trials]
        noisy = [t.noisy_us and floor.tflops(t.noisy_us) for t in trials]
        columns |= {
            "measured_rate": PageColumn("measured rate", measured, "TFLOP/s", Source.MEASURED),
            "noisy_rate": PageColumn("noisy rate", noisy, "TFLOP/s", Source.NOISY),
            "predicted_rate": PageColumn("predicted rate", predicted, "TFLOP/s", Source.PREDICTED),
        }
        for level in levels:
            columns[level.key] = PageColumn(
                f"operations per byte of {level.name}",
                [level.intensity(t.prediction, result.flops) if t.prediction else None for t in trials],
                "FLOP/B",
                Source.PREDICTED,
            )
    columns |= _progress(trials, found.trial_times, found.summary.started_at)
    failures = [t.failure for t in trials]
    if any(failures):
        columns["failure"] = PageColumn("failure", [f.kind.value if f else None for f in failures])
        columns["message"] = PageColumn("message", [f.message if f else None for f in failures])
    for name in dict.fromkeys(name for t in trials for name in t.config):
        values = [t.config.get(name) for t in trials]
        columns[PARAMETER + name] = PageColumn(name, values, is_parameter=True)
    return PageTable("candidates", columns)


def _progress(
    trials: Sequence[TrialRecord], times: Mapping[Config, TrialTimes], started_at: datetime
) -> dict[str, PageColumn]:
    """Place and second in which each candidate was predicted and measured, and the best so far."""
    columns: dict[str, PageColumn] = {}
    for key, source in (("predicted", Source.PREDICTED), ("measured", Source.MEASURED)):
        timed: list[tuple[datetime, int, float]] = []
        for place, trial in enumerate(trials):
            known = times.get(trial.config, TrialTimes())
            at = known.predicted_at if key == "predicted" else known.measured_at
            us = trial.predicted_us if key == "predicted" else trial.measured_us
            if at is not None and us is not None:
                timed.append((at, place, us))
        number: list[Cell] = [None] * len(trials)
        second: list[Cell] = [None] * len(trials)
        best: list[Cell] = [None] * len(trials)
        best_us = float("inf")
        for count, (at, place, us) in enumerate(sorted(timed), 1):
            best_us = min(best_us, us)
            number[place], best[place] = count, best_us
            second[place] = max(0.0, (at - started_at).total_seconds())
        columns |= {
            f"{key}_number": PageColumn(f"{key} as number", number),
            f"{key}_second": PageColumn(f"{key} at", second, "s"),
            f"{key}_best_us": PageColumn(f"best {key} time so far", best, "us", source),
        }
    return columns
