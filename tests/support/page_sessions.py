"""Recorded sessions of any size for the tests of pages: times from a formula, no kernel runs."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from itertools import product

from tilesight.database import open_store
from tilesight.errors import Failure, FailureKind
from tilesight.problem.config import Config
from tilesight.problem.space import Census
from tilesight.problem.workload import Workload
from tilesight.records.recorded_session import RecordedSession, SessionSummary, TrialTimes
from tilesight.records.session import (
    Baseline,
    Context,
    Decision,
    Effort,
    SessionResult,
    SessionState,
    ranked,
)
from tilesight.records.trial import DEVICE_S, BuildResult, Measurement, Prediction, Status, TrialRecord
from tilesight.target.spec import load_target

BEGAN = datetime(2026, 11, 27, 14, 0)
WORKLOAD = Workload("matmul", {"m": 4096, "n": 4096, "k": 4096}, "float16", name="M4")
FLOPS, MIN_BYTES = 2 * 4096**3, 3 * 2 * 4096**2
PARAMETERS = {
    "block_m": (64, 128, 192, 256),
    "block_n": (64, 96, 128, 160, 192, 256),
    "block_k": (32, 64, 128),
    "stages": (2, 3, 4, 5, 6),
    "threads": (128, 256, 384),
    "block_order": ("by_row", "by_column", "swizzled"),
    "split_k": (1, 2),
    "persistent": (False, True),
}
HOSTILE = (
    '</script><script>alert("hostile")</script><img src=x onerror=alert(1)> & "quoted" \'single\' \x1b[31m'
)


def recorded_session(
    count: int, measured: int = 40, hostile: str = "", state: SessionState = SessionState.COMPLETE
) -> RecordedSession:
    """A session of `count` candidates, of which `measured` have times and every twentieth failed.

    `hostile`: a text that stands in a parameter, the messages and the names of others.
    """
    target = load_target("h200")
    context = Context(
        "matmul", "v1", WORKLOAD, target.name, target.fingerprint, target.arch, "model-1", "",
        {"tilelang": "0.1.15", "driver": "580.159.04", **({hostile: hostile} if hostile else {})},
        device="NVIDIA H200", protocol="default",
    )  # fmt: skip
    trials = dict(_trials(count, measured, hostile))
    verified = [trial for trial in trials.values() if trial.status is Status.VERIFIED]
    fastest = min(verified, key=lambda trial: trial.measured_us or 0.0, default=None)
    decision = None if fastest is None else Decision(fastest.config, reason=f"it is the fastest {hostile}")
    result = SessionResult(
        context,
        Effort.FULL,
        state,
        Census(6480, 5400, {"shared memory": 1080}),
        ranked({config.key: trial for config, trial in trials.items()}, decision),
        baselines=(Baseline(f"cuBLAS {hostile}", (208.0, 209.0, 208.5, 208.2, 208.7, 208.4)),),
        flops=FLOPS,
        min_bytes=MIN_BYTES,
        seconds=120.0,
        from_database=True,
        messages=(hostile,) if hostile else (),
        decision=decision,
    )
    summary = SessionSummary(
        7, context.key, context, Effort.FULL, 0, state, BEGAN, BEGAN + timedelta(seconds=120), 120.0,
        {}, decision and decision.winner, None, bool(verified),
    )  # fmt: skip
    return RecordedSession(summary, result, dict(_times(trials)))


def record(found: RecordedSession, url: str) -> int:
    """The id of the session in a database."""
    context, result = found.summary.context, found.result
    with open_store(url) as store:
        made = store.begin(context, Effort.FULL, 0, {}, result.census, flops=FLOPS, min_bytes=MIN_BYTES)
        store.record_many(made, context, result.trials)
        store.record_baselines(made, result.baselines)
        store.finish(made, SessionState.COMPLETE, decision=result.decision)
    return made


def _trials(count: int, measured: int, hostile: str) -> Iterator[tuple[Config, TrialRecord]]:
    draw = random.Random(0)
    values = [dict(zip(PARAMETERS, chosen, strict=True)) for chosen in product(*PARAMETERS.values())]
    every = max(1, count // max(1, measured))
    for place, chosen in enumerate(draw.sample(values, count)):
        config = Config({**chosen, **({"name": hostile} if hostile and place % 2 else {})})
        trial = TrialRecord(config, Status.PREDICTED, _prediction(chosen, draw), lowering_seconds=0.7)
        if place % 20 == 7:
            kind = FailureKind.DOES_NOT_FIT if place % 40 == 7 else FailureKind.LOWER_ERROR
            trial = TrialRecord(
                config, Status.FAILED, failure=Failure(kind, f"too much shared memory {hostile}")
            )
        elif place % every == 0 and measured:
            trial = _measured(trial, place < 6 * every, draw)
        yield config, trial


def _prediction(chosen: dict[str, object], draw: random.Random) -> Prediction:
    tile = int(str(chosen["block_m"])) * int(str(chosen["block_n"]))
    makespan = 190 * (1 + 20000 / tile) * (1 + 0.4 / int(str(chosen["stages"])))
    terms = {
        "launch": 2.0, "fill": 1.0, "dram": 40.0 + draw.random() * 30, "matrix": 170.0,
        "shared": makespan * 0.8, "l2": 90.0 + draw.random() * 20, "vector": 12.0, "makespan": makespan,
    }  # fmt: skip
    latency_us = 3.0 + makespan
    used = {name: min(1.0, terms[name] / latency_us) for name in ("matrix", "shared", "l2", "vector", "dram")}
    limiting = "matrix" if makespan < 230 else "shared"
    return Prediction(latency_us, used, limiting, terms, 0.12, model="model-1")


def _measured(trial: TrialRecord, in_turns: bool, draw: random.Random) -> TrialRecord:
    assert trial.prediction is not None
    us = trial.prediction.latency_us * draw.uniform(0.9, 1.15)
    samples = tuple(us * draw.uniform(0.995, 1.005) for _ in range(12))
    measurement = Measurement(
        samples,
        relative_error=1e-3,
        environment={"device": "NVIDIA H200", "uuid": "GPU-1"},
        protocol={"name": "default", "l2": "cold"},
        observed={"samples": 12.0, **({"in_turns": 1.0} if in_turns else {DEVICE_S: 0.4})},
    )
    return replace(
        trial,
        status=Status.VERIFIED,
        measurement=measurement,
        build=BuildResult("kernel.so", entry="main", seconds=2.0),
    )


def _times(trials: dict[Config, TrialRecord]) -> Iterator[tuple[Config, TrialTimes]]:
    step = 60 / max(1, len(trials))
    for place, (config, trial) in enumerate(trials.items()):
        predicted = BEGAN + timedelta(seconds=place * step) if trial.prediction else None
        measured = BEGAN + timedelta(seconds=60 + place * step) if trial.measurement else None
        yield config, TrialTimes(predicted, measured, predicted, measured and measured - timedelta(seconds=3))
