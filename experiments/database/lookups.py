"""How long exact and nearest look-ups take in a database that `fill.py` filled.

    python experiments/database/lookups.py sqlite:////scratch/million.db lookups.csv
    python experiments/database/lookups.py postgresql://me@server/million lookups.csv

Adds a line for each kind of question. Each is asked of a shape of its own, through the store, from the context that a
dispatcher has to the values that it gets; the first 20 of each kind are left out of the quantiles, the very first is `first_ms`.
`cpu_p50_ms` and `cpu_p99_ms` are what this thread took of a core meanwhile: with SQLite all of the work, with PostgreSQL that of
the client. `load` is the machine's: above the number of its cores, times on the clock are waiting times, too.
"""

from __future__ import annotations

import csv
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from statistics import quantiles

from fill import LARGE
from records import MODELS, attention, context, matmul, where_and_when, workloads

from tilesight.database import Store, open_store, overview
from tilesight.workload import Workload

COUNT = 2000
FIRST = 20


def main(url: str, out: str) -> None:
    rng = random.Random(2)
    known = workloads(random.Random(1))
    keys = {workload.key for workload in known}
    held = [workload for workload in known if workload.operator != "rms_norm"]
    rows = []
    with open_store(url, read_only=True) as store:
        found = overview(store)
        facts = {"backend": store.database.url.get_backend_name(), "records": found.tables["trials"], "bytes": found.size_bytes}
        exact = [rng.choice(held) for _ in range(COUNT)]
        undecided = [rng.choice(known[::10]) for _ in range(COUNT)]
        served = unseen(keys, lambda: serving(rng))
        spread = unseen(keys, lambda: attention(rng) if rng.random() < 0.3 else matmul(rng))
        far = unseen(keys, lambda: Workload("matmul", {"m": rng.randrange(1, 9), "n": 2**30, "k": rng.randrange(1, 9)}, "bfloat16"))
        questions: list[tuple[str, Sequence[Workload], Callable[[Store, Workload], object]]] = [
            ("exact, decided or not", exact, winner),
            ("exact, never decided", undecided, winner),
            ("exact, never decided among 20,000 trials", [LARGE] * 200, winner),
            ("exact, not known", spread, no_winner),
            ("nearest 4, shapes of a serving engine", served, nearest),
            ("nearest 4, spread shapes", spread, nearest),
            ("nearest 4, far from all", far, nearest),
        ]
        for name, asked, ask in questions:
            rows.append({**where_and_when(), **facts, "question": name, **timed(store, asked, ask)})
            print(rows[-1])
    path = Path(out)
    is_new = not path.exists()
    with path.open("a", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        if is_new:
            writer.writeheader()
        writer.writerows(rows)


def winner(store: Store, workload: Workload) -> object:
    found = store.winner(context(workload))
    assert found is not None
    return found


def no_winner(store: Store, workload: Workload) -> object:
    assert store.winner(context(workload)) is None
    return None


def nearest(store: Store, workload: Workload) -> object:
    found = store.nearest(context(workload))
    assert len(found) == 4
    return found


def serving(rng: random.Random) -> Workload:
    n, k = rng.choice(MODELS)
    return Workload("matmul", {"m": rng.randrange(1, 16385), "n": n, "k": k}, "bfloat16")


def unseen(keys: set[str], draw: Callable[[], Workload]) -> list[Workload]:
    found: list[Workload] = []
    while len(found) < COUNT:
        workload = draw()
        if workload.key not in keys:
            found.append(workload)
    return found


def timed(store: Store, asked: Sequence[Workload], ask: Callable[[Store, Workload], object]) -> dict[str, float | int]:
    times_ms, own_ms = [], []
    for workload in asked:
        begin, own_begin = time.perf_counter(), time.thread_time()
        ask(store, workload)
        times_ms.append(1e3 * (time.perf_counter() - begin))
        own_ms.append(1e3 * (time.thread_time() - own_begin))
    counted = times_ms[FIRST:]
    cuts, own = (quantiles(times[FIRST:], n=100, method="inclusive") for times in (times_ms, own_ms))
    figures = {"first_ms": times_ms[0], "p50_ms": cuts[49], "p90_ms": cuts[89], "p99_ms": cuts[98], "max_ms": max(counted)}
    figures |= {"cpu_p50_ms": own[49], "cpu_p99_ms": own[98], "load": os.getloadavg()[0]}
    return {"count": len(counted), **{name: round(value, 3) for name, value in figures.items()}}


if __name__ == "__main__":
    main(*sys.argv[1:])
