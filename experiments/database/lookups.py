"""How long look-ups of winners take in a database that `fill.py` filled.

    python experiments/database/lookups.py sqlite:////scratch/filled.db lookups.csv
    python experiments/database/lookups.py postgresql://me@server/filled lookups.csv

Adds a line for each question. Each is timed through the store, from the context that a dispatcher has to the
values that it gets. The first few calls of each question are left out of the quantiles; the very first is
`first_ms`. `winners` is the mean number of workloads in an answer. `cpu_p50_ms` and `cpu_p99_ms` are the CPU
time of this thread: with SQLite that of all the work, with PostgreSQL that of the client. `load` is the
machine's load average.
"""

from __future__ import annotations

import csv
import os
import random
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean, quantiles

from fill import LARGE
from records import MODELS, context, where_and_when, workloads

from tilesight.database import Store, open_store, overview
from tilesight.problem.workload import Workload

FIRST = 5
Fixed = Callable[[Workload], Mapping[str, int]]


def main(url: str, out: str) -> None:
    rng = random.Random(2)
    rows = []
    with open_store(url, read_only=True) as store:
        found = overview(store)
    known = workloads(random.Random(1))[: found.tables["sessions"] - 1]  # the fill may have been ended early
    matmuls = [workload for workload in known if workload.operator == "matmul"]
    engine = [workload for workload in matmuls if (workload.dims["n"], workload.dims["k"]) in MODELS]
    with open_store(url, read_only=True) as store:
        facts = {
            "backend": store.database.url.get_backend_name(),
            "records": found.tables["trials"],
            "bytes": found.size_bytes,
        }
        questions: list[tuple[str, Sequence[Workload], Fixed]] = [
            (
                "one n and k of a serving engine, any m",
                rng.choices(engine, k=60),
                lambda w: {"n": w.dims["n"], "k": w.dims["k"]},
            ),
            ("all sizes of an operator", rng.choices(matmuls, k=20), lambda _: {}),
            ("one workload", rng.choices(matmuls, k=200), lambda w: w.dims),
            ("one workload, never decided among 20,000 trials", [LARGE] * 50, lambda w: w.dims),
        ]
        for name, asked, fixed in questions:
            rows.append({**where_and_when(), **facts, "question": name, **timed(store, asked, fixed)})
            print(rows[-1])
    path = Path(out)
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def timed(store: Store, asked: Sequence[Workload], fixed: Fixed) -> dict[str, float | int]:
    times_ms, own_ms, counts = [], [], []
    for workload in asked:
        begin, own_begin = time.perf_counter(), time.thread_time()
        found = store.winners(context(workload), fixed(workload))
        times_ms.append(1e3 * (time.perf_counter() - begin))
        own_ms.append(1e3 * (time.thread_time() - own_begin))
        counts.append(len(found))
    counted = times_ms[FIRST:]
    cuts, own = (quantiles(times[FIRST:], n=100, method="inclusive") for times in (times_ms, own_ms))
    figures = {"winners": fmean(counts), "first_ms": times_ms[0], "p50_ms": cuts[49], "p90_ms": cuts[89]}
    figures |= {"p99_ms": cuts[98], "max_ms": max(counted), "cpu_p50_ms": own[49], "cpu_p99_ms": own[98]}
    figures["load"] = os.getloadavg()[0]
    return {"count": len(counted), **{name: round(value, 3) for name, value in figures.items()}}


if __name__ == "__main__":
    main(*sys.argv[1:])
