"""Databases with rows in every table."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path

from tests.unit.database import samples
from tilesight.calibration.calibration import Calibration
from tilesight.calibration.readings import reading
from tilesight.database import Store, open_store
from tilesight.errors import FailureKind
from tilesight.machine.devices import Device
from tilesight.problem.space import Census
from tilesight.problem.workload import Workload
from tilesight.profile.parametric import ParametricProfile, ProfileKey, ProfileSample
from tilesight.records.session import Baseline, Context, Decision, Effort, SessionState
from tilesight.records.trial import TrialRecord
from tilesight.records.winners import Miss
from tilesight.target.spec import load_target

FAMILY = ProfileKey("matmul_hopper", "0123456789ab", "sm_90a", "m*n", "reader-1")
LARGE = Workload("matmul", {"m": 8192, "n": 1024, "k": 8192}, "bfloat16", {"transposed": True, "splits": 2})


def add_session(
    store: Store,
    context: Context,
    *trials: TrialRecord,
    effort: Effort = Effort.QUICK,
    state: SessionState = SessionState.COMPLETE,
    decision: Decision | None = None,
) -> int:
    """Record a finished session of these trials; its id."""
    session_id = store.begin(
        context, effort, 0, {}, Census(9, 9, {"smem": 3}), flops=2_000_000_000, min_bytes=30_000_000
    )
    store.record_many(session_id, context, trials)
    store.finish(session_id, state, ["a message"], 1.5, decision=decision)
    return session_id


def miss(workload: Workload = LARGE, count: int = 3, day: int = 1) -> Miss:
    moment = datetime(2026, 1, day)
    return Miss(
        workload,
        "h200",
        "NVIDIA H200",
        "matmul_hopper",
        count,
        samples.config(1),
        "model",
        9.5,
        moment,
        moment,
    )


def calibration() -> Calibration:
    device = Device("NVIDIA H200", "GPU-7", "570.1", "cuda", 0, 1 << 37)
    found = reading("device.memory.dram.gb_per_s", (4000.0, 4100.0, 4050.0), "a copy")
    return Calibration(load_target("h200"), "mine", device, "nvcc 13.0", "2026-01-01", (found,), ("a note",))


def stock(store: Store, seed: int = 1) -> int:
    """Record rows of every table: sessions with all kinds of trials, a baseline, a cached profile, a miss, a
    calibration. Returns the id of the session with most measurements."""
    context = samples.context()
    session_id = add_session(
        store,
        context,
        samples.verified(1, 12.5, 13.0),
        samples.predicted(2),
        samples.failed(3, FailureKind.RUN_ERROR),
        samples.failed(4, FailureKind.BUILD_ERROR),
        samples.failed(5, FailureKind.WRONG_RESULT),
        decision=Decision(samples.config(1), (), "alone"),
    )
    store.record_baselines(session_id, [Baseline("cuBLAS", (11.0, 11.5))])
    add_session(store, samples.context(workload=LARGE, dynamic=("m",)), samples.verified(7, 20.0))
    draw = samples.Draw(seed)
    add_session(
        store,
        samples.context(model="other"),
        *(draw.trial(number) for number in range(12)),
        effort=Effort.FULL,
        state=SessionState.INTERRUPTED,
    )
    store.cache_profiles(
        FAMILY, [ParametricProfile(samples.config(1), "s", (ProfileSample({"m": 1}, "f", [{"grid": [1]}]),))]
    )
    store.record_misses([miss()])
    store.record_calibration(calibration(), context.software)
    return session_id


def stocked(path: Path, seed: int = 1) -> str:
    """The URL of a new SQLite database with rows in every table."""
    url = samples.empty_database(path)
    with open_store(url) as store:
        stock(store, seed)
    return url
