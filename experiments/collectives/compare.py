"""Compares predicted times of collectives with measured and published ones.

    python experiments/collectives/compare.py

The times of the trial include the skew with which ranks begin. The predictions do not, so the skew is added
to them: about 70 us on two GPUs, which is known; on four the constant that fits best, which is not. The times
on H200s are those of `tilesight calibrate`, where ranks begin together.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

from tilesight.calibration.network import rows_of
from tilesight.calibration.network.figures import slowest
from tilesight.calibration.network.steps import Kind
from tilesight.costmodel.network.collectives import predict_collective
from tilesight.costmodel.network.transfers import on_curve, sent_share
from tilesight.target.network import COLLECTIVES
from tilesight.target.spec import load_target, of_world

FOLDER = Path(__file__).parent
SKEW_US = {2: 70.0, 4: 90.0}
LEAST_BYTES = 64 << 10  # smaller collectives are on the curves, and not judged here
# (us, GB/s) of the lines of h200x2 and h200x4 before 2026-11-27, from the trial on H100s and public tables
BEFORE = {
    2: {"all_reduce": (10.2, 320), "all_gather": (7.2, 269), "reduce_scatter": (7.2, 250)},
    4: {"all_reduce": (15.0, 320), "all_gather": (8.4, 269), "reduce_scatter": (8.4, 305)},
}
ALL_TO_ALL_BEFORE = (7.2, 303)
STEP_US = 0.6  # a step of NCCL's low-latency ring, by its tuning table
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


def by_h200_rows() -> Iterator[Row]:
    """The library's times on H100s, predicted by the curves of as many H200s."""
    for row in (*trial_rows(), *published_rows()):
        if row.world not in (2, 4) or row.group.split(", ")[1] in KERNELS:
            continue
        us = predict_collective(load_target(f"h200x{row.world}"), row.collective, row.size_bytes).latency_us
        us += SKEW_US[row.world] if row.group.startswith("trial") else 0.0
        yield replace(row, group=f"{row.group}, by h200x{row.world}", predicted_us=us, fitted=False)


def curve_of(world: int, collective: str) -> list[tuple[int, float]]:
    """The size and time of each point on that many H200s, ascending."""
    rows = rows_of((FOLDER / f"h200x{world}.jsonl").read_text(encoding="utf-8").splitlines())
    return sorted(
        (step.size_bytes, median(slowest(row).us))
        for step, row in rows.items()
        if step.kind is Kind.LIBRARY and step.name == collective
    )


def h200_rows() -> Iterator[Row]:
    """Times of the library on two and four H200s, predicted without themselves."""
    for world in (2, 4):
        for collective in COLLECTIVES:
            yield from _h200_rows(world, collective)


def _h200_rows(world: int, collective: str) -> Iterator[Row]:
    points = curve_of(world, collective)
    latency, rate = BEFORE[world].get(collective, ALL_TO_ALL_BEFORE)
    for size, us in points:
        if size < LEAST_BYTES:
            continue
        sent = size * sent_share(collective, world)
        guesses = {"figures before": latency + sent / rate / 1e3}
        guesses["the other sizes"] = on_curve([point for point in points if point[0] != size], size)
        if world == 4:
            guesses["two H200s alone"] = _from_two(collective, size)
        else:
            guesses["four H200s alone"] = predict_collective(
                load_target("h200x4"), collective, size, world
            ).latency_us
        for basis, guess in guesses.items():
            yield Row(basis, world, collective, size, us, guess, False)


def _from_two(collective: str, size: int) -> float:
    """The time on four from that of two which send as many bytes each, and further steps."""
    steps = {"all_reduce": 4, "all_to_all": 0}.get(collective, 2)
    sent = size * sent_share(collective, 4)
    return on_curve(curve_of(2, collective), sent / sent_share(collective, 2)) + steps * STEP_US


def h200_summary() -> Iterator[str]:
    """A table of the errors on H200s, by what the predictions know."""
    rows = list(h200_rows())
    yield f"| predicted from | GPUs | {' | '.join(COLLECTIVES)} | all | worst |"
    yield "|---|---|" + "---|" * (len(COLLECTIVES) + 2)
    for basis, world in dict.fromkeys((row.group, row.world) for row in rows):
        own = [row for row in rows if (row.group, row.world) == (basis, world)]
        each = [
            f"{fmean(abs(row.error) for row in own if row.collective == name):.1%}" for name in COLLECTIVES
        ]
        all_of_them = fmean(abs(row.error) for row in own)
        worst = max(own, key=lambda row: abs(row.error))
        yield (
            f"| {basis} | {world} | {' | '.join(each)} | {all_of_them:.1%} | "
            f"{worst.error:+.0%}, {worst.collective} of {worst.size_bytes >> 10} KiB |"
        )


def main() -> None:
    print("\n".join(h200_summary()))
    print()
    rows = [*trial_rows(), *published_rows(), *by_h200_rows()]
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
