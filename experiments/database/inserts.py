"""How many records a second are kept, each in a transaction of its own, by one process and by eight at once.

    python experiments/database/inserts.py sqlite:////scratch/empty.db inserts.csv            # 1 and 8
    processes python experiments/database/inserts.py sqlite:////scratch/million.db inserts.csv 8        # 8
    alone, added to what is there

Each process has a session on a workload of its own and calls `Store.record` for one measured trial after
another, as a session does. The clock runs from the word to go until the last process is done; afterwards the
records are counted. `sync_ms` is what the disk takes for a write of 4 KiB and an fsync: how much of it a
commit waits for depends on the backend.
"""

from __future__ import annotations

import csv
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import median, quantiles

from records import context, trials, where_and_when

from tilesight.database import open_store, overview
from tilesight.problem.space import Census
from tilesight.problem.workload import Workload
from tilesight.records.session import Effort, SessionState

TOGETHER = 16_000  # records of all processes of a run
FIELDS = (
    "backend",
    "before",
    "processes",
    "records",
    "seconds",
    "per_s",
    "p50_ms",
    "p99_ms",
    "max_ms",
    "sync_ms",
    "load",
)


def main(url: str, out: str, *processes: str) -> None:
    for count in map(int, processes or ("1", "8")):
        row = {**where_and_when(), **run(url, count)}
        print(row)
        path = Path(out)
        is_new = not path.exists()
        with path.open("a", encoding="utf-8", newline="") as file:
            writer = csv.DictWriter(file, list(row))
            if is_new:
                writer.writeheader()
            writer.writerow(row)


def run(url: str, processes: int) -> dict[str, object]:
    with open_store(url) as store:
        before, backend = overview(store).tables["trials"], store.database.url.get_backend_name()
    each = TOGETHER // processes
    load = os.getloadavg()[0]
    commands = [
        [sys.executable, __file__, "--writer", url, str(each), f"{time.time_ns()}{number}"]
        for number in range(processes)
    ]
    writers = [
        subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for command in commands
    ]
    for writer in writers:
        assert writer.stdout is not None
        assert writer.stdout.readline() == "ready\n"
    begin = time.perf_counter()
    for writer in writers:
        assert writer.stdin is not None
        writer.stdin.write("go\n")
        writer.stdin.flush()
    answers = [writer.stdout.readline() for writer in writers if writer.stdout is not None]
    seconds = time.perf_counter() - begin
    assert [writer.wait() for writer in writers] == [0] * processes
    with open_store(url) as store:
        assert overview(store).tables["trials"] - before == each * processes
    times_ms = [time_ms for answer in answers for time_ms in json.loads(answer)]
    found = (backend, before, processes, len(times_ms), seconds, len(times_ms) / seconds, median(times_ms))
    values = (*found, quantiles(times_ms, n=100)[98], max(times_ms), sync_ms(url), load)
    return {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in zip(FIELDS, values, strict=True)
    }


def write(url: str, count: int, seed: str) -> None:
    rng = random.Random(seed)
    recorded_in = context(
        Workload("matmul", {"m": rng.randrange(1, 2**20), "n": rng.randrange(1, 2**20), "k": 64}, "bfloat16")
    )
    listed = list(trials(rng, count))
    with open_store(url) as store:
        session_id = store.begin(recorded_in, Effort.QUICK, 0, {}, Census(1, 1, {}))
        print("ready", flush=True)
        sys.stdin.readline()
        times_ms = []
        for trial in listed:
            begin = time.perf_counter()
            store.record(session_id, recorded_in, trial)
            times_ms.append(1e3 * (time.perf_counter() - begin))
        print(json.dumps(times_ms), flush=True)
        store.finish(session_id, SessionState.INTERRUPTED)


def sync_ms(url: str) -> float:
    """Of the folder of an SQLite file, else of the temporary one."""
    folder = Path(url.removeprefix("sqlite:///")).parent if "postgresql" not in url else None
    with tempfile.TemporaryFile(dir=folder) as file:
        times = []
        for _ in range(50):
            begin = time.perf_counter()
            file.write(b"x" * 4096)
            file.flush()
            os.fsync(file.fileno())
            times.append(1e3 * (time.perf_counter() - begin))
    return median(times)


if __name__ == "__main__":
    if sys.argv[1] == "--writer":
        write(sys.argv[2], int(sys.argv[3]), sys.argv[4])
    else:
        main(*sys.argv[1:])
