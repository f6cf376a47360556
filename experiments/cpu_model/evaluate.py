"""Errors of the cpu model on the kernels that measure.py measured.

    python experiments/cpu_model/evaluate.py ROWS.csv [--target cpu] [--out PREDICTIONS.csv]

For each kernel: the median error of its configs, the speed of the first choice as a share of the best, and
whether a measured time is below the least time that the target's figures allow.
"""

from __future__ import annotations

import argparse
import csv
import math
import statistics
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import measure

from tilesight.costmodel import default_model
from tilesight.costmodel.extract import read_profiles
from tilesight.lowering.lower import lower
from tilesight.problem.candidate import Candidate
from tilesight.records.roofline import roofline
from tilesight.target.spec import Target, load_target


@dataclass(frozen=True)
class Row:
    """One measured config, with its prediction and the least time of its workload."""

    candidate: Candidate
    measured_us: float
    predicted_us: float
    sigma: float
    limit_us: float

    @property
    def error(self) -> float:
        return abs(self.predicted_us / self.measured_us - 1)


def read_times(path: Path) -> dict[tuple[str, str, str], float]:
    """Measured times by operator, shape and config. Noisy times are left out."""
    with path.open(newline="") as file:
        return {
            (row["operator"], row["shape"], row["config"]): float(row["us"])
            for row in csv.DictReader(file)
            if row["status"] == "verified"
        }


def rows(path: Path, target: Target) -> dict[tuple[str, str], list[Row]]:
    """The rows of each kernel (operator and shape)."""
    times, model, found = read_times(path), default_model(), defaultdict(list)
    for shape, candidate in measure.candidates(load_target("cpu")):
        operator, workload = candidate.template.operator, candidate.workload
        time_us = times.get((operator.name, shape, candidate.config.key))
        if time_us is None:
            continue
        lowered = lower(candidate.template.build(workload, candidate.config), target)
        prediction = model.predict(read_profiles(lowered, target), target)
        floor = roofline(target, workload.dtype, operator.flops(workload), operator.min_bytes(workload))
        found[operator.name, shape].append(
            Row(candidate, time_us, prediction.latency_us, prediction.uncertainty, floor.latency_us)
        )
    return found


def report(found: dict[tuple[str, str], list[Row]]) -> None:
    """Print the table."""
    print("| kernel | configs | median error | first choice, of the best | beyond the limit |")
    print("|---|---|---|---|---|")
    everything = [row for part in found.values() for row in part]
    firsts = []
    for (operator, shape), part in found.items():
        best = min(row.measured_us for row in part)
        first = best / min(part, key=lambda row: row.predicted_us).measured_us
        firsts.append(first)
        error = statistics.median(row.error for row in part)
        beyond = sum(row.measured_us < row.limit_us for row in part)
        print(f"| {operator} {shape} | {len(part)} | {error:.1%} | {first:.3f} | {beyond} |")
    error = statistics.median(row.error for row in everything)
    kernels = statistics.median(statistics.median(row.error for row in part) for part in found.values())
    first = math.exp(statistics.fmean(map(math.log, firsts)))
    inside = sum(row.error <= row.sigma for row in everything) / len(everything)
    beyond = sum(row.measured_us < row.limit_us for row in everything)
    totals = (
        f"{error:.1%} of rows, {kernels:.1%} of kernels | {first:.3f} in the mean, {min(firsts):.3f} at worst"
    )
    print(f"| all | {len(everything)} | {totals} | {beyond} |")
    print(f"\n{inside:.0%} of the rows are within one sigma of their prediction.")


def main(path: Path, target: Target, out: Path | None) -> None:
    found = rows(path, target)
    report(found)
    if out is None:
        return
    with out.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["operator", "shape", "config", "measured_us", "predicted_us", "sigma", "limit_us"])
        for (operator, shape), part in found.items():
            for row in part:
                numbers = (row.measured_us, row.predicted_us, row.sigma, row.limit_us)
                writer.writerow([operator, shape, row.candidate.config.key, *(f"{x:.5g}" for x in numbers)])


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description="Errors of the cpu model on measured kernels.")
    parser.add_argument("rows", type=Path)
    parser.add_argument("--target", default="cpu", help="cpu, or the file that `tilesight calibrate` wrote")
    parser.add_argument("--out", type=Path)
    given = parser.parse_args()
    main(given.rows, load_target(given.target), given.out)
