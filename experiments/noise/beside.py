"""Sessions beside other work: what a busy machine does to times, and that none of these becomes a record.

    python experiments/noise/beside.py cpu experiments/noise/cpu.csv
    python experiments/noise/beside.py h100 experiments/noise/h100.csv

For each number of busy processes (each adds to a 32 MB array on a core; for a GPU, each runs matrix products,
one after the other) the session runs twice with --remeasure in a database of its own, then once more
without, which must measure again if the times were noisy. Columns: target, kernel, shape, busy, run, state,
status and time of the best config, its spread, the fastest vendor time, the load that was reported.
"""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

CASES = {"cpu": ("matmul", "m=512,n=512,k=512", (0, 1, 2, 4)), "gpu": ("matmul", "M0", (0, 1))}
COLUMNS = (
    "target",
    "kernel",
    "shape",
    "busy",
    "run",
    "state",
    "status",
    "us",
    "spread",
    "vendor_us",
    "notes",
)
ON_CORE = """
import numpy as np
a = np.random.rand(1 << 22)
while True: a += 1.0
"""
ON_GPU = """
import torch
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
while True:
    for _ in range(20): torch.mm(a, a)
    torch.cuda.synchronize()
"""
TUNE = "from tilesight.cli.main import main; main()"


def main(target: str, out: Path) -> None:
    kernel, shape, numbers = CASES["cpu" if target == "cpu" else "gpu"]
    with out.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        with TemporaryDirectory() as folder:
            for busy in numbers:
                others = [_start(ON_CORE if target == "cpu" else ON_GPU) for _ in range(busy)]
                time.sleep(1 if target == "cpu" else 8 * bool(busy))
                try:
                    for run, extra in (("first", ["--remeasure"]), ("second", ["--remeasure"]), ("same", [])):
                        row = _session(target, kernel, shape, Path(folder), extra)
                        writer.writerow({**row, "busy": busy, "run": run})
                        file.flush()
                        print({**row, "busy": busy, "run": run}, flush=True)
                finally:
                    for process in others:
                        process.kill()
                        process.wait()


def _start(program: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-c", program], env={**os.environ, "OMP_NUM_THREADS": "1"})


def _session(target: str, kernel: str, shape: str, folder: Path, extra: list[str]) -> dict[str, Any]:
    environment = {
        **os.environ,
        "TILESIGHT_DB": f"sqlite:///{folder}/noise.db",
        "TILESIGHT_CACHE_DIR": str(folder),
    }
    command = ["tune", kernel, "--target", target, "--shape", shape, "--json", *extra]
    done = subprocess.run(
        [sys.executable, "-c", TUNE, *command], env=environment, capture_output=True, text=True, check=True
    )
    [found] = json.loads(done.stdout)["sessions"]
    best = found["candidates"][0]
    notes = [line.strip() for line in done.stderr.splitlines() if "busy" in line or "noisy" in line]
    return {
        "target": target,
        "kernel": kernel,
        "shape": shape,
        "state": f"{found['state']}{' (from the database)' if found['from_database'] else ''}",
        "status": best["status"],
        "us": best["measured_us"] or best["noisy_us"],
        "spread": best["spread"],
        "vendor_us": min((vendor["latency_us"] for vendor in found["vendor"]), default=None),
        "notes": "; ".join(notes),
    }


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
