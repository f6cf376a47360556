"""How long a session takes without caches: seconds to its first measurement, within 1 % of the best, in all.

Runs `tilesight tune` in a process of its own with an empty database and an empty kernel cache, and reads from
the database
when each measurement was made: python experiments/measuring/sessions.py "matmul M0 quick" "matmul M0 full" >
    sessions.csv
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
from pathlib import Path
from tempfile import TemporaryDirectory

from tilesight.settings import available_cores

NEAR = 0.99  # of the best


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sessions", nargs="+", metavar="'KERNEL SHAPE EFFORT'")
    parser.add_argument("--target", default="h200")
    parser.add_argument("--out", type=Path, help="folder for what the sessions print")
    options = parser.parse_args()
    print(f"# {datetime.now(UTC):%Y-%m-%d}, target {options.target}, {available_cores()} cores")
    print("kernel,shape,effort,seconds,first_s,near_s,measured_before_near,measured,best_us,busy")
    for session in options.sessions:
        kernel, shape, effort = session.split()
        with TemporaryDirectory() as folder:
            database = Path(folder) / "sessions.db"
            environment = {
                **os.environ,
                "TILESIGHT_DB": f"sqlite:///{database}",
                "TILESIGHT_CACHE_DIR": folder,
            }
            command = ["tune", kernel, "--shape", shape, "--target", options.target, "--effort", effort]
            begin = time.time()
            program = "from tilesight.cli.main import main; main()"
            done = subprocess.run(
                [sys.executable, "-c", program, *command],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            seconds = time.time() - begin
            if done.returncode:
                sys.exit(done.stderr)
            if options.out:
                (options.out / f"{effort}-{kernel}-{shape}.txt").write_text(
                    done.stderr + done.stdout, encoding="utf-8"
                )
            times = measured(database, begin)
        best_us = min(us for _, us in times)
        near = next(at for at, us in times if us <= best_us / NEAR)
        before = sum(at < near for at, _ in times)
        busy = re.search(r"busy (\d+)%", done.stderr)
        figures = (
            f"{seconds:.1f}",
            f"{times[0][0]:.1f}",
            f"{near:.1f}",
            before,
            len(times),
            f"{best_us:.2f}",
            busy[1] if busy else "",
        )
        print(kernel, f'"{shape}"', effort, *figures, sep=",", flush=True)


def measured(database: Path, begin: float) -> list[tuple[float, float]]:
    """(seconds after `begin`, time in us) of each measurement, in the order in which they were made."""
    with sqlite3.connect(database) as connection:
        rows = connection.execute(
            "SELECT created_at, latency_us FROM measurements WHERE latency_us IS NOT NULL ORDER BY created_at"
        )
        return [(datetime.fromisoformat(at).replace(tzinfo=UTC).timestamp() - begin, us) for at, us in rows]


if __name__ == "__main__":
    main()
