"""How long a session takes without caches: seconds to its first measurement, within 1 % of the best, in all.

    python experiments/measuring/sessions.py "matmul M0 quick" "matmul M0 full" > sessions.csv
    python experiments/measuring/sessions.py "matmul M0 quick" --checkout old=../old --checkout new=.

Each session is `tilesight tune` in a process of its own with an empty database and an empty kernel cache. The
database says when each measurement was made. With several checkouts, each session is run with all of them in
turns, so that a machine that slows down is no difference between them.
"""

from __future__ import annotations

import argparse
import os
import re
import sqlite3
import subprocess
import sys
import time
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from tempfile import TemporaryDirectory

from tilesight.settings import available_cores

NEAR = 0.99  # of the best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sessions", nargs="+", metavar="'KERNEL SHAPE EFFORT'")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--out", type=Path, help="folder for what the sessions print")
    parser.add_argument("--checkout", action="append", default=[], metavar="NAME=DIR", help="a tree to run")
    parser.add_argument("--repeat", type=int, default=1, metavar="N")
    options = parser.parse_args()
    print(f"# {datetime.now(UTC):%Y-%m-%d}, target {options.target}, {available_cores()} cores")
    print("checkout,kernel,shape,effort,seconds,first_s,near_s,measured_before_near,measured,best_us,busy")
    checkouts = [checkout.split("=", 1) for checkout in options.checkout] or [["", ""]]
    for session, _, (name, folder) in product(options.sessions, range(options.repeat), checkouts):
        kernel, shape, effort = session.split()
        printed, figures = run(kernel, shape, effort, options.target, folder)
        print(name, kernel, f'"{shape}"', effort, *figures, sep=",", flush=True)
        if options.out:
            label = "-".join(filter(None, (effort, kernel, shape, name)))
            (options.out / f"{label}.txt").write_text(printed, encoding="utf-8")


def run(kernel: str, shape: str, effort: str, target: str, checkout: str) -> tuple[str, list[object]]:
    """What a session prints, and the figures of its row; `checkout`: the tree that runs it, or this one."""
    with TemporaryDirectory() as folder:
        database = Path(folder) / "sessions.db"
        environment = {
            **os.environ,
            "TILESIGHT_DB": f"sqlite:///{database}",
            "TILESIGHT_CACHE_DIR": folder,
        }
        if checkout:
            paths = [str(Path(checkout).resolve()), os.environ.get("PYTHONPATH", "")]
            environment["PYTHONPATH"] = os.pathsep.join(filter(None, paths))
        program = "from tilesight.cli.main import main; main()"
        command = ["tune", kernel, "--shape", shape, "--target", target, "--effort", effort]
        begin = time.time()
        done = subprocess.run(
            [sys.executable, "-c", program, *command],
            env=environment,
            cwd=folder,
            capture_output=True,
            text=True,
            check=False,
        )
        seconds = time.time() - begin
        if done.returncode:
            sys.exit(done.stderr)
        times = measured(database, begin)
    best_us = min(us for _, us in times)
    near = next(at for at, us in times if us <= best_us / NEAR)
    busy = re.search(r"busy (\d+)%", done.stderr)
    return done.stderr + done.stdout, [
        f"{seconds:.1f}",
        f"{times[0][0]:.1f}",
        f"{near:.1f}",
        sum(at < near for at, _ in times),
        len(times),
        f"{best_us:.2f}",
        busy[1] if busy else "",
    ]


def measured(database: Path, begin: float) -> list[tuple[float, float]]:
    """(seconds after `begin`, time in us) of each measurement, in the order in which they were made."""
    with sqlite3.connect(database) as connection:
        rows = connection.execute(
            "SELECT created_at, latency_us FROM measurements WHERE latency_us IS NOT NULL ORDER BY created_at"
        )
        return [(datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp() - begin, us) for at, us in rows]


if __name__ == "__main__":
    main()
