"""How long `tilesight serve` takes for its pages of a large database.

    python experiments/database/fill.py sqlite:////scratch/million.db
    python experiments/pages/first_page.py /scratch/million.db pages.csv

Starts the server in a process of its own, for each page anew, and asks for the page as a browser does: from
the request to the last byte. `first_s` is the first request after the start, which also imports and opens the
database; the page was read by earlier runs, so that the system may have parts of the file in memory. With
`--cold` (as root, on Linux) the system's memory of files is emptied before each start. `median_s` and `max_s`
are of the requests after it. `cpu_s` is the CPU time of the server for one of these, and `load` the load
average of the machine.
"""

from __future__ import annotations

import csv
import os
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from urllib.request import urlopen

import psutil

from tilesight.database import open_store

REPEATS = 15
ROOT = Path(__file__).resolve().parents[2]
CACHES = Path("/proc/sys/vm/drop_caches")


def main(file: str, out: str, *, is_cold: bool) -> None:
    with open_store(file, read_only=True) as store:
        found = store.session_summaries(limit=10_000)
        records = store.database.read(
            lambda connection: connection.exec_driver_sql("SELECT COUNT(*) FROM trials").scalar_one()
        )
    middle = found[len(found) // 2]
    pages = {
        "first page": "",
        "sessions of a kernel": f"?kernel={middle.context.workload.operator}",
        "sessions in the middle": f"?before={middle.id}",
        "records": "records",
        "records of a session": f"records?session={middle.id}",
        "records in the middle": f"records?after=%5B{middle.id}%2C0%5D",
        "report of a session": f"session/{middle.id}",
        "tables": "tables",
        "rows of trials": "table/trials",
        "rows of predictions": "table/predictions",
    }
    for name, path in pages.items():
        facts = {**where(), "records": records, "page": name, "cold": is_cold}
        row = {**facts, **timed(file, path, is_cold)}
        print(row, flush=True)
        is_new = not Path(out).exists()
        with Path(out).open("a", encoding="utf-8", newline="") as written:
            writer = csv.DictWriter(written, list(row))
            if is_new:
                writer.writeheader()
            writer.writerow(row)


def timed(file: str, path: str, is_cold: bool) -> Mapping[str, object]:
    if is_cold:
        os.sync()
        CACHES.write_text("3", encoding="utf-8")
    command = [sys.executable, "-m", "tilesight.cli.main", "serve", "--db", file]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as server:
        assert server.stdout is not None
        try:
            address = server.stdout.readline().strip()
            first_s, size = asked(address + path)
            before = psutil.Process(server.pid).cpu_times()
            times = [asked(address + path)[0] for _ in range(REPEATS)]
            after = psutil.Process(server.pid).cpu_times()
        finally:
            server.terminate()
    cpu_s = (after.user + after.system - before.user - before.system) / REPEATS
    figures = {"first_s": first_s, "median_s": statistics.median(times), "max_s": max(times), "cpu_s": cpu_s}
    return {
        "bytes": size,
        **{name: round(value, 4) for name, value in figures.items()},
        "load": round(os.getloadavg()[0], 2),
    }


def asked(address: str) -> tuple[float, int]:
    begin = time.perf_counter()
    with urlopen(address, timeout=120) as answer:
        size = len(answer.read())
    return time.perf_counter() - begin, size


def where() -> Mapping[str, str]:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")
    cores = f"{os.cpu_count()} cores of {model}"
    today = datetime.now(UTC).date().isoformat()
    return {"date": today, "machine": cores, "python": platform.python_version()}


if __name__ == "__main__":
    given = [argument for argument in sys.argv[1:] if argument != "--cold"]
    main(*given, is_cold="--cold" in sys.argv)
