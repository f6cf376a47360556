"""The time of a dispatcher's decision, for a shape that it has seen and for a new one, with cached profiles.

    python experiments/dispatch/decisions.py OUT.csv               # matmul n=8192 k=8192 on h200, no GPU
    python experiments/dispatch/decisions.py OUT.csv --database D  # with the records and profiles of D
    python experiments/dispatch/decisions.py OUT.csv --target cpu --shape n=512,k=512 --recorded 64,256

If the database has no records of the problem, the shapes in --recorded are ranked first, which caches their
profiles. The model's first choices then replace tuned winners, with their predicted times; a decision takes
as long as with tuned ones. Run it alone on its cores: wall time counts; the thread's CPU time is printed
beside it.
"""

from __future__ import annotations

import argparse
import csv
import random
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import tilesight
from tilesight.dispatch.dispatcher import Dispatcher
from tilesight.dispatch.kernels.bound_calls import signature
from tilesight.dispatch.make import dispatcher
from tilesight.dispatch.select.winner_index import WinnerIndex
from tilesight.machine.devices import cpu_name
from tilesight.problem.assignments import parse_assignments
from tilesight.records.winners import Winner

Row = tuple[str, str, str, float, float]  # what, sizes, source, wall_us, cpu_us
SEEN = 5_000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("--kernel", default="matmul")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--shape", default="n=8192,k=8192", help="the fixed dimensions")
    parser.add_argument("--vary", default="m")
    parser.add_argument("--recorded", default="512,1024,2048,4096,8192")
    parser.add_argument("--unseen", type=int, default=500, help="shapes drawn from 1 .. 16384")
    parser.add_argument("--database")
    given = parser.parse_args()
    fixed = {name: int(value) for name, value in parse_assignments(given.shape, "shape").items()}
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        database = given.database or f"{folder}/performance.db"
        began = time.perf_counter()
        made = dispatcher(given.kernel, given.target, database=database, misses=False, **fixed)
        print(f"made in {time.perf_counter() - began:.2f} s: {made!r}")
        if not len(made._shapes.selector.winners):
            made.close()
            ranked = _ranked(given.kernel, given.target, fixed, given.vary, given.recorded, database)
            began = time.perf_counter()
            made = dispatcher(given.kernel, given.target, database=database, misses=False, **fixed)
            print(f"made in {time.perf_counter() - began:.2f} s, once profiles are kept")
            rows = _unseen(made, given.vary, given.unseen, "no record, profiles cached")
            problem = made.problem
            known = [Winner(problem.workload((size,)), config, us) for size, config, us in ranked]
            made._shapes.selector.winners = WinnerIndex(problem, known)
            made._shapes.selector.predictor.load(one.workload for one in known)
            made._shapes.clear()
        rows += [*_unseen(made, given.vary, given.unseen, "records beside it"), *_seen(made, given.vary)]
        made.close()
    with given.out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["what", "sizes", "source", "wall_us", "cpu_us"])
        writer.writerows(rows)
    print(
        f"{cpu_name()}, python with torch {torch.__version__}, {time.strftime('%Y-%m-%d')}; "
        f"{given.target}, {given.kernel} {given.shape}"
    )
    for what in dict.fromkeys(row[0] for row in rows):
        for column, name in ((3, "wall"), (4, "cpu")):
            print(f"  {what:44s} {name:4s} {_spread([row[column] for row in rows if row[0] == what])}")


def _ranked(
    kernel: str, target: str, fixed: dict[str, int], vary: str, recorded: str, database: str
) -> list[tuple[int, tilesight.Config, float]]:
    found = []
    for size in map(int, recorded.split(",")):
        best = tilesight.rank(kernel, target, {**fixed, vary: size}, database=database)[0].best
        assert best is not None
        assert best.predicted_us is not None
        found.append((size, best.config, best.predicted_us))
    return found


def _unseen(made: Dispatcher, vary: str, count: int, what: str) -> list[Row]:
    sizes = random.Random(7).sample(range(1, 16385), count)
    for size in sizes[:20]:  # what Python does the first time
        made.choose(**{vary: size})
    made._shapes.clear()
    made._shapes.selector.predictor._times.clear()
    rows = []
    for size in sizes:
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        chosen = made.choose(**{vary: size})
        cpu, wall = time.thread_time_ns() - cpu, time.perf_counter_ns() - wall
        rows.append((f"unseen shape: {what}", str(size), chosen.source.value, wall / 1e3, cpu / 1e3))
    return rows


def _seen(made: Dispatcher, vary: str) -> list[Row]:
    """The look-up alone; and as a call makes it, with the tensors' signature read first."""
    size = 1000
    made.choose(**{vary: size})
    shapes, key = made._shapes, made.problem.key({vary: size})
    tensors = [torch.empty(8, 8) for _ in made.problem.inputs]
    ready = {tuple(map(signature, [torch.empty(i, 8), *tensors[1:]])): i for i in range(1, 200)}
    ready[tuple(map(signature, tensors))] = 8
    rows: list[Row] = []
    rows += _each("seen shape: by its dimensions", lambda: shapes.choose(key))
    rows += _each("seen shape: by its tensors, as a call does", lambda: ready[tuple(map(signature, tensors))])
    rows += _each("seen shape: choose(), with checks", lambda: made.choose(**{vary: size}))
    return rows


def _each(what: str, act: Callable[[], object]) -> list[Row]:
    clock = time.perf_counter_ns
    for _ in range(2000):
        act()
    bare, times = [], []
    for _ in range(SEEN):
        begin = clock()
        bare.append(clock() - begin)
    for _ in range(SEEN):
        begin = clock()
        act()
        times.append(clock() - begin)
    cost = sorted(bare)[SEEN // 2]  # of reading the clock
    began, thread = time.thread_time_ns(), 0
    for _ in range(SEEN):
        act()
    thread = time.thread_time_ns() - began
    return [(what, "", "", (t - cost) / 1e3, thread / SEEN / 1e3) for t in times]


def _spread(values: list[float]) -> str:
    ordered = sorted(values)
    at = {p: ordered[min(len(ordered) - 1, int(len(ordered) * p / 100))] for p in (50, 90, 99)}
    return "  ".join(f"p{p} {us:9.3f} us" for p, us in at.items())


if __name__ == "__main__":
    main()
