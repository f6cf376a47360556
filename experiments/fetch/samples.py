"""For what the warps of measured candidates wait, by the samples of Nsight Compute.

    python experiments/fetch/samples.py LIST.csv DATASET.parquet... --out samples.csv [--limit-s 330]

A row of LIST has the workload and the config of a row of the datasets, as in `samples-h200.csv`. Each
candidate is built as it was measured, launched twice, and sampled in its third launch by a process of its own
(15 s). OUT has its duration under ncu, the instructions of its code, those that warps executed, the number of
samples, and the share of the samples by what the warp waited for.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
COUNTERS = HERE.parent / "counters"
sys.path[:0] = [str(COUNTERS), str(HERE.parents[1])]

import collect_counters  # noqa: E402

SAMPLE_S = 100.0  # limit of one candidate
SECTIONS = ("SourceCounters", "SpeedOfLight")
UNITS = {"us": 1.0, "ms": 1e3}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("list", type=Path)
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit-s", type=float, default=float("inf"))
    given = parser.parse_args()
    until = time.time() + given.limit_s
    frame = chosen(given.list, given.datasets)
    items = collect_counters.pick(frame, len(frame), set())
    cache, workers = given.out.parent / "kernels", os.cpu_count() or 1
    cache.mkdir(exist_ok=True)
    rows = []
    for item in collect_counters.build(items, frame, cache, workers, until):
        if isinstance(item, tuple):
            print(f"row {item[0]}: {item[1]}")
        elif time.time() + SAMPLE_S < until:
            rows.append(
                {"workload": item.case, "config": frame.loc[item.number, "config"]} | sampled(item, cache)
            )
            with given.out.open("w", newline="") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                writer.writeheader()
                writer.writerows(rows)


def chosen(wanted: Path, datasets: list[str]) -> Any:
    """The rows of the datasets that the list names, without their counters, so that they are built."""
    from tilesight.records.dataset import read_dataset

    with wanted.open() as file:
        named = {(row["workload"], row["config"]) for row in csv.DictReader(file)}
    frame = read_dataset(datasets).verified().frame.reset_index(drop=True)
    is_named = [pair in named for pair in zip(frame["workload"], frame["config"], strict=True)]
    return frame[is_named].assign(counters=None)


def sampled(item: collect_counters.Item, folder: Path) -> dict[str, float]:
    """The columns of a candidate from `us` on, from a launch under ncu."""
    job, log, report = (folder / f"{item.number}.{kind}" for kind in ("json", "log", "ncu-rep"))
    log.touch()
    content = {"log": str(log), "deadline": time.time() + SAMPLE_S, "seed": 0, "items": [item.job()]}
    job.write_text(json.dumps(content))
    sections = [part for name in SECTIONS for part in ("--section", name)]
    options = ["--clock-control", "none", "--profile-from-start", "off", "--launch-count", "1", *sections]
    program = [sys.executable, str(COUNTERS / "launch.py"), str(job)]
    subprocess.run(["ncu", *options, "-f", "-o", str(report), *program], check=True, timeout=SAMPLE_S)
    code = list(csv.reader(_page(report, "source", "--csv").splitlines()))
    head = next(number for number, row in enumerate(code) if "Source" in row)
    lines = [
        dict(zip(code[head], row, strict=True)) for row in code[head + 1 :] if len(row) == len(code[head])
    ]
    (duration,) = [line.split() for line in _page(report, "details").splitlines() if "Duration" in line]
    samples = _sum(lines, "# Samples")
    stalls = [name for name in code[head] if name.startswith("stall_") and "Not" not in name]
    return {
        "us": float(duration[-1].replace(",", "")) * UNITS[duration[-2]],
        "instructions": len(lines),
        "executed": _sum(lines, "Instructions Executed"),
        "samples": samples,
        **{name.removeprefix("stall_"): round(_sum(lines, name) / samples, 4) for name in stalls},
    }


def _page(report: Path, name: str, *more: str) -> str:
    command = ["ncu", "-i", str(report), "--page", name, *more]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _sum(lines: list[dict[str, str]], name: str) -> float:
    return sum(float(line[name].replace(",", "") or 0) for line in lines)


if __name__ == "__main__":
    main()
