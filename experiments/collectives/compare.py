"""Compares predicted times of collectives with measured and published ones.

    python experiments/collectives/compare.py

The times of the trial include the skew with which ranks begin. The predictions do not, so the skew is added
to them: about 70 us on two GPUs, which is known; on four the constant that fits best, which is not.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from tilesight.costmodel.network.collectives import predict_collective
from tilesight.target.spec import load_target, of_world

FOLDER = Path(__file__).parent
SKEW_US = {2: 70.0, 4: 90.0}
KERNELS = {"custom one-shot": "one_shot", "torch two-shot": "two_shot"}  # all others are the library


@dataclass(frozen=True, slots=True)
class Row:
    """A time of others or of the trial, and what is predicted for it.

    Attributes:
        group: What is averaged together.
        fitted: Whether figures of the target were fitted to it.
    """

    group: str
    world: int
    collective: str
    size_bytes: int
    us: float
    predicted_us: float
    fitted: bool

    @property
    def error(self) -> float:
        """(predicted - measured) / measured."""
        return self.predicted_us / self.us - 1


def trial_rows() -> Iterator[Row]:
    """Times of the library on two and four H100s."""
    for world in (2, 4):
        for line in (FOLDER / f"h100x{world}.jsonl").read_text(encoding="utf-8").splitlines():
            yield from _rows_of(json.loads(line), world)


def _rows_of(entry: dict[str, object], world: int) -> Iterator[Row]:
    if "nccl_mb" in entry:
        size = int(float(str(entry["nccl_mb"])) * 2**20)
        # in the rows the size is that of each rank's input; an all-gather's result is as large for all ranks
        for name, whole in (("all_reduce", size), ("reduce_scatter", size), ("all_gather", size * world)):
            yield _row("trial, sweep", world, name, whole, float(str(entry[f"{name}_us"])), True)
    elif "shape" in entry:
        m, n, _ = _shape(entry["shape"])
        us = float(str(entry["reduce_scatter_us"]))
        yield _row("trial, beside products", world, "reduce_scatter", 2 * m * n, us, world == 4)
    elif "ag_shape" in entry:
        m, _, k = _shape(entry["ag_shape"])
        us = float(str(entry["all_gather_us"]))
        yield _row("trial, beside products", world, "all_gather", 2 * m * k, us, False)


def _shape(value: object) -> tuple[int, int, int]:
    assert isinstance(value, list)
    m, n, k = map(int, value)
    return m, n, k


def _row(group: str, world: int, collective: str, size: int, us: float, fitted: bool) -> Row:
    found = predict_collective(load_target(f"h100x{world}"), collective, size)
    return Row(group, world, collective, size, us, found.latency_us + SKEW_US[world], fitted)


def published_rows() -> Iterator[Row]:
    """Times of all-reduces on H100s that others published."""
    with (FOLDER / "published.csv").open(encoding="utf-8") as file:
        for entry in csv.DictReader(file):
            world, size = int(entry["world"]), int(entry["size_kib"]) << 10
            algorithm = KERNELS.get(entry["implementation"], "library")
            target = of_world(load_target("h100"), world)
            found = predict_collective(target, "all_reduce", size, world, algorithm)
            group = f"{entry['source'].split('/')[-1]}, {entry['implementation']}"
            is_fitted = "fitted" in entry["implementation"]
            yield Row(group, world, "all_reduce", size, float(entry["us"]), found.latency_us, is_fitted)


def main() -> None:
    rows = [*trial_rows(), *published_rows()]
    groups = dict.fromkeys((row.group, row.world, row.collective) for row in rows)
    print("| rows | GPUs | collective | number | mean of abs. error | mean error | worst | fitted to these |")
    print("|---|---|---|---|---|---|---|---|")
    for group in groups:
        own = [row for row in rows if (row.group, row.world, row.collective) == group]
        size, bias = fmean(abs(row.error) for row in own), fmean(row.error for row in own)
        worst = max((row.error for row in own), key=abs)
        name, world, collective = group
        print(
            f"| {name} | {world} | {collective} | {len(own)} | {size:.1%} | {bias:+.1%} | {worst:+.1%} | "
            f"{'yes' if own[0].fitted else 'no'} |"
        )
    print()
    print("| rows | GPUs | collective | MiB | us | predicted us | error |")
    print("|---|---|---|---|---|---|---|")
    for row in rows:
        mib = row.size_bytes / 2**20
        print(
            f"| {row.group} | {row.world} | {row.collective} | {mib:g} | {row.us:.1f} | "
            f"{row.predicted_us:.1f} | {row.error:+.1%} |"
        )


if __name__ == "__main__":
    main()
