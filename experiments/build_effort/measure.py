"""What builds without measurements bring: first choices with and without the compiler's figures.

    python experiments/build_effort/measure.py experiments/datasets/*/*.parquet --out cases.csv

Each case of the datasets with at least 12 measured candidates is ranked by the analytical model alone, whose
constants are fitted to these rows. Then its first 8 or 16 candidates are predicted again with the registers
and spills that the dataset has of their builds, as effort `build` does, and the first of these is the choice.
A row of OUT has the measured time of the best over that of each choice.
"""

from __future__ import annotations

import argparse
import csv
import math
from collections import defaultdict
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import numpy as np

from tilesight.costmodel import default_model
from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.learned.hybrid import HybridModel
from tilesight.costmodel.training.metrics import geometric_mean
from tilesight.records.dataset import DatasetCase, profiles_of, read_dataset
from tilesight.target.spec import load_target

FEWEST = 12
BUILT = (8, 16)


def analytical_model() -> AnalyticalModel:
    """The shipped model without its learned part."""
    model = default_model()
    assert isinstance(model, HybridModel)
    return model.analytical


def judged(case: DatasetCase) -> dict[str, object] | None:
    """A row of OUT; None if too few candidates can be predicted."""
    model, target, frame = analytical_model(), load_target(case.target), case.frame
    times, before, after = [], [], []
    for row in frame.to_dict("records"):
        kernels = profiles_of(row["profile"])
        figures = {name: row[name] for name in ("registers", "spill_bytes")}
        known = len(kernels) == 1 and not any(math.isnan(value) for value in figures.values())
        try:
            plain = with_figures = model.predict(kernels, target).latency_us
            if known:
                built = {name: int(value) for name, value in figures.items()}
                with_figures = model.predict(kernels, target, built).latency_us
        except ValueError:
            continue
        times.append(row["measured_us"])
        before.append(plain)
        after.append(with_figures)
    if len(times) < FEWEST:
        return None
    measured, order, corrected = np.array(times), np.argsort(before, kind="stable"), np.array(after)
    found = {
        "case": case.workload,
        "operator": case.operator,
        "target": case.target,
        "candidates": len(times),
    }
    choices = {"predicted": order[0]} | {
        f"built {count}": order[:count][corrected[order[:count]].argmin()] for count in BUILT
    }
    return found | {name: round(float(measured.min() / measured[at]), 4) for name, at in choices.items()}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    cases = list(read_dataset(given.datasets).verified().cases())
    with ProcessPoolExecutor() as pool:
        rows = [row for row in pool.map(judged, cases) if row is not None]
    with given.out.open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    by_target: dict[object, list[dict[str, object]]] = defaultdict(list)
    for row in rows:
        by_target[row["target"]].append(row)
    for target, found in sorted(by_target.items(), key=str):
        for name in ("predicted", *(f"built {count}" for count in BUILT)):
            reached = [float(str(row[name])) for row in found]
            print(f"{target}: {len(found)} cases, {name}: {geometric_mean(reached):.4f} ({min(reached):.2f})")


if __name__ == "__main__":
    main()
