"""Errors of the analytical model under calibrated targets, beside its errors under the base target.

    python experiments/calibration/compare.py TARGET.toml... [--base h200] [--data FOLDER] [--every 8]
    [--each]

Predicts every 8th verified row of the datasets. A cell has the mean absolute error in percent and the median
of predicted over measured time, by operator and over all; the last column is the time of the best of a case's
rows over that of the one predicted best, geometric mean over cases. `--each` changes the base in one figure
of the first TARGET at a time, which tells what each of them does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).parent.parent.parent))

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.profile.values import KernelProfile
from tilesight.records.dataset import profiles_of, read_dataset
from tilesight.target.spec import Figure, Target, load_target

DATA = Path(__file__).parent.parent / "datasets" / "h200"
NAME_WIDTH = 42
MIN_ROWS = 3  # of a case that counts
SAME = 1e-6


@dataclass(frozen=True)
class Rows:
    """Verified rows of the datasets: each has its kernels, measured time, operator and case."""

    kernels: list[tuple[KernelProfile, ...]]
    measured_us: NDArray[np.float64]
    operator: NDArray[np.str_]
    case: NDArray[np.str_]

    @property
    def operators(self) -> list[str]:
        return sorted(set(self.operator))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("targets", nargs="+", type=Path, help="files of calibrated targets")
    parser.add_argument("--base", default="h200", help="the shipped target that they were made of")
    parser.add_argument("--data", type=Path, default=DATA, help="folder of datasets")
    parser.add_argument("--every", type=int, default=8, help="take every n-th row")
    parser.add_argument("--each", action="store_true", help="also one figure of the first target at a time")
    asked = parser.parse_args()
    rows, base = read_rows(asked.data, asked.every), load_target(asked.base)
    print(f"{len(rows.measured_us)} rows, {AnalyticalModel().version}")
    print("MAPE in %, median of predicted / measured; last: best of the sample over the model's pick")
    print(
        " | ".join([" " * NAME_WIDTH, *(f"{name[:12]:>12s}" for name in [*rows.operators, "all"])]), "| pick"
    )
    print(line(asked.base, rows, base), flush=True)
    targets = [load_target(str(path)) for path in asked.targets]
    for path, target in zip(asked.targets, targets, strict=True):
        print(line(path.name, rows, target), flush=True)
    if asked.each:
        print(f"{asked.base} with one figure of the first calibrated target:")
        for path, figure in differing(base, targets[0]):
            before = f"{base[path]}" if path in base.figures else "-"
            changed = replace(base, figures={**base.figures, path: figure})
            print(line(f"{short(path)} {before}>{figure.value}", rows, changed), flush=True)


def read_rows(folder: Path, every: int) -> Rows:
    frame = read_dataset(sorted(folder.glob("*.parquet"))).frame
    frame = frame[frame["measured_us"].notna()].iloc[::every]
    return Rows(
        [profiles_of(text) for text in frame["profile"]],
        frame["measured_us"].to_numpy(float),
        frame["operator"].to_numpy(str),
        frame["workload"].to_numpy(str),
    )


def line(name: str, rows: Rows, target: Target) -> str:
    predicted = predictions(rows, target)
    ratio = predicted / rows.measured_us
    chosen = [*(rows.operator == operator for operator in rows.operators), np.ones(len(ratio), dtype=bool)]
    cells = [cell(ratio[own & ~np.isnan(ratio)]) for own in chosen]
    return " | ".join([f"{name[:NAME_WIDTH]:{NAME_WIDTH}s}", *cells, f"{pick(rows, predicted):.4f}"])


def cell(ratio: NDArray[np.float64]) -> str:
    return f"{100 * np.mean(np.abs(ratio - 1)):6.2f} {np.median(ratio):5.3f}"


def predictions(rows: Rows, target: Target) -> NDArray[np.float64]:
    """(n,) predicted times in us; NaN if the kernel does not fit the target."""
    model = AnalyticalModel()
    found = np.full(len(rows.kernels), np.nan)
    for number, kernels in enumerate(rows.kernels):
        try:
            found[number] = model.predict(kernels, target).latency_us
        except ValueError:
            continue
    return found


def pick(rows: Rows, predicted: NDArray[np.float64]) -> float:
    """Time of the fastest row over that of the row predicted fastest, geometric mean over cases."""
    shares = []
    for case in sorted(set(rows.case)):
        own = np.flatnonzero(rows.case == case)
        if len(own) >= MIN_ROWS:
            measured = rows.measured_us[own]
            shares.append(measured.min() / measured[np.nanargmin(predicted[own])])
    return float(np.exp(np.mean(np.log(shares))))


def differing(base: Target, target: Target) -> Iterator[tuple[str, Figure]]:
    for path, figure in target.figures.items():
        if abs(figure.value - base.get(path)) > SAME * abs(base.get(path)):
            yield path, figure


def short(path: str) -> str:
    return path.replace("core.", "c.").replace("device.", "d.").replace("memory.", "m.")


if __name__ == "__main__":
    main()
