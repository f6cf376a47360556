"""Build and time the candidates of a corpus on the local GPU, and write rows as they come.

    python experiments/outside/measure.py CORPUS --out rows.csv --target h200 [--limit 540] [--builders 15]
        [--subset 150]

Processes build, one process times. A crash or a hang costs one candidate. Groups come at random, one of each
kernel before the second of any, so a run that is cut by `--limit` (seconds) is a fair sample. Candidates that
OUT already has are left out: a second run goes on. `--fake`: no GPU, made-up times (a test of the program).
"""

from __future__ import annotations

import argparse
import csv
import json
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).resolve().parent), str(Path(__file__).resolve().parents[2])]

from corpus import Candidate, Corpus, in_order, subset  # noqa: E402
from gpu_work import (  # noqa: E402
    Built,
    Task,
    Timed,
    build,
    measure,
    preload_builder,
    preload_device,
    quiet_builder,
    row_of,
)

COLUMNS = (
    *("name", "group", "config", "key", "origin", "status", "median_us", "low_us", "high_us", "samples"),
    *("way", "registers", "spill_store_bytes", "spill_load_bytes", "stack_bytes", "smem_bytes"),
    *("wgmma_serialized", "clock_mhz", "disturbed", "bytes", "build_s", "device", "driver", "failure"),
)
BUILD_LIMIT_S, MEASURE_LIMIT_S = 150.0, 20.0
BUILDER_MEMORY, DEVICE_MEMORY = 24 * 2**30, 48 * 2**30
RESERVE_S = 15.0  # of the limit: nothing new is timed
AHEAD = 96  # built candidates that wait


class Rows:
    """The CSV file; used by several threads."""

    def __init__(self, path: Path) -> None:
        known = path.exists()
        self.done = {row["key"] for row in csv.DictReader(path.open())} if known else set()
        self._file = path.open("a", newline="")
        self._writer = csv.DictWriter(self._file, COLUMNS)
        self._lock = threading.Lock()
        self.count: Counter[str] = Counter()
        if not known:
            self._writer.writeheader()

    def add(self, candidate: Candidate, status: str, failure: str = "", **figures: Any) -> None:
        row = {
            "name": candidate.name,
            "group": candidate.group,
            "config": json.dumps(candidate.config),
            "key": candidate.key,
            "origin": candidate.origin,
            "bytes": int(candidate.bytes),
            "status": status,
            "failure": " ".join(failure.split())[-300:],
        }
        with self._lock:
            self._writer.writerow(row | {n: v for n, v in figures.items() if n in COLUMNS})
            self._file.flush()
            self.count[status] += 1


def fake_measure(_: Built) -> Timed:
    """In place of a GPU."""
    return Timed((10.0, 11.0, 12.0, 13.0, 14.0, 15.0, 16.0), {}, {"device": "fake"})


def main(given: argparse.Namespace) -> None:
    from tilesight.workers import Done, WorkerPool

    begin = time.monotonic()
    until = begin + given.limit - RESERVE_S
    corpus = given.corpus.resolve()
    candidates = in_order(Corpus(corpus))
    if given.subset:
        candidates = subset(candidates, given.subset)
    rows = Rows(given.out)
    tasks = [
        Task(candidate, corpus, given.builds.resolve(), given.target)
        for candidate in candidates[: given.most]
        if candidate.key not in rows.done
    ]
    ready: queue.Queue[Built | None] = queue.Queue(AHEAD)
    print(f"{len(tasks)} candidates", flush=True)

    def build_all() -> None:
        building: dict[int, Task] = {}

        def items() -> Iterator[Task]:
            for number, task in enumerate(tasks):
                while ready.full() and time.monotonic() < until:
                    time.sleep(0.1)
                if time.monotonic() > until:
                    return
                building[number] = task
                yield task

        try:
            with WorkerPool(
                given.builders,
                timeout_s=BUILD_LIMIT_S,
                preload=preload_builder,
                initializer=quiet_builder,
                memory_bytes=BUILDER_MEMORY,
            ) as pool:
                for number, outcome in pool.run(build, items()):
                    task = building.pop(number)
                    if isinstance(outcome, Done):
                        ready.put(outcome.value)
                    else:
                        rows.add(task.candidate, "not built", _reason(outcome))
                    if time.monotonic() > until:
                        break
        finally:
            ready.put(None)

    thread = threading.Thread(target=build_all, daemon=True)
    thread.start()
    measuring: dict[int, Built] = {}

    def built() -> Iterator[Built]:
        number = 0
        while time.monotonic() < until:
            try:
                one = ready.get(timeout=max(0.1, until - time.monotonic()))
            except queue.Empty:
                return
            if one is None:
                return
            measuring[number] = one
            number += 1
            yield one

    with WorkerPool(1, timeout_s=MEASURE_LIMIT_S, preload=preload_device, memory_bytes=DEVICE_MEMORY) as pool:
        for number, outcome in pool.run(fake_measure if given.fake else measure, built()):
            one = measuring.pop(number)
            figures = {"way": one.way, "build_s": f"{one.seconds:.1f}", **one.figures}
            candidate = one.task.candidate
            if isinstance(outcome, Done):
                rows.add(candidate, "measured", "", **figures, **row_of(outcome.value))
            else:
                rows.add(candidate, "not run", _reason(outcome), **figures)
            if sum(rows.count.values()) % 50 == 0:
                print(f"{time.monotonic() - begin:.0f} s: {dict(rows.count)}", flush=True)
    print(f"{time.monotonic() - begin:.0f} s: {dict(rows.count)} of {len(tasks)}", flush=True)
    sys.stdout.flush()


def _reason(outcome: Any) -> str:
    """Why a worker has no value."""
    if hasattr(outcome, "type_name"):
        return f"{outcome.type_name}: {outcome.message}"
    said = getattr(outcome, "reason", f"after {outcome.seconds:.0f} s")
    return f"{type(outcome).__name__}: {said} {outcome.output[-150:]}"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Build and time the candidates of a corpus.")
    parser.add_argument("corpus", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--target", default="h200")
    parser.add_argument("--limit", type=float, default=540.0, help="seconds, all in all")
    parser.add_argument("--builders", type=int, default=15)
    parser.add_argument("--builds", type=Path, default=Path("/tmp/outside-builds"))
    parser.add_argument("--subset", type=int, default=0, help="about so many candidates, of all kernels")
    parser.add_argument("--most", type=int, default=10**9, help="the first so many candidates alone")
    parser.add_argument("--fake", action="store_true", help="no GPU: made-up times")
    main(parser.parse_args())
