"""Fill a database with 1,000,000 records: 20,000 workloads of 50 trials, through the store, a session each.

    python experiments/database/fill.py sqlite:////scratch/million.db
    python experiments/database/fill.py postgresql://me@server/million

Nine sessions in ten end with a decision between finalists, the others were interrupted. One workload besides
has a session of 20,000 measured trials that was interrupted: the most that a look-up may have to look
through.
"""

from __future__ import annotations

import random
import sys
import time

from records import context, trials, workloads

from tilesight.database import Store, open_store
from tilesight.problem.space import Census
from tilesight.problem.workload import Workload
from tilesight.records.session import Decision, Effort, SessionState
from tilesight.records.trial import Status

RECORDS = 1_000_000
OF_ONE = 20_000
LARGE = Workload("matmul", {"m": 777, "n": 7777, "k": 7777}, "bfloat16")


def main(url: str, records: int = RECORDS) -> None:
    rng = random.Random(1)
    chosen = workloads(rng)
    each = (records - OF_ONE) // len(chosen)
    begun = time.perf_counter()
    with open_store(url) as store:
        session(store, rng, LARGE, OF_ONE, decides=False)
        written = OF_ONE
        for number, workload in enumerate(chosen):
            count = each + (number < records - OF_ONE - each * len(chosen))
            session(store, rng, workload, count, decides=number % 10 != 0)
            written += count
            if number % 1000 == 999:
                print(f"{written} records, {written / (time.perf_counter() - begun):.0f}/s", flush=True)


def session(store: Store, rng: random.Random, workload: Workload, count: int, *, decides: bool) -> None:
    here = context(workload)
    found = list(trials(rng, count))
    session_id = store.begin(
        here,
        Effort.QUICK,
        0,
        {"sampler": "tpe"},
        Census(5000, 800, {"smem": 4200}),
        flops=10**9,
        min_bytes=10**6,
    )
    store.record_many(session_id, here, found)
    verified = [trial for trial in found if trial.status is Status.VERIFIED]
    winner = min(verified, key=lambda trial: trial.measured_us or 0.0)
    if decides:
        store.finish(
            session_id, SessionState.COMPLETE, (), 60.0, decision=Decision(winner.config, (), "the fastest")
        )
    else:
        store.finish(session_id, SessionState.INTERRUPTED, (), 60.0)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
