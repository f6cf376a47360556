"""The predicted time of a steady iteration beside the measured one, from rows that were measured anyway.

    python experiments/iterations/iterations.py DATASET... > rows.csv

Two measured candidates that differ in one size and by it in the trips of one loop alone, with the same grid,
differ in time by that number of steady iterations in each wave of blocks. So launch, fill and ends cancel,
and no stamps are needed in the kernel. The predicted iteration is that of `tilesight timeline`: the mean of
both candidates'.

Left out are pairs whose times differ by less than `LEAST_DIFFERENCE` of the longer one, as noise, and those
in which what all cores share holds the blocks up by more than `MOST_HELD_UP` of their time, as predicted:
there an iteration of the cores is not what takes the time.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from statistics import geometric_mean, median
from typing import Any

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.profile.codec import profiles_of
from tilesight.profile.values import KernelProfile, Phase
from tilesight.records.dataset import read_dataset
from tilesight.records.timeline import TimelinePart, View
from tilesight.target.spec import load_target

LEAST_DIFFERENCE = 0.2
MOST_HELD_UP = 0.1
MODEL = AnalyticalModel()
COLUMNS = (
    *("operator", "target", "shape", "longer_shape", "dtype", "trips", "longer_trips", "waves"),
    *("measured_us", "predicted_us", "ratio", "config"),
)
SAME = ("operator", "target", "dtype", "attrs", "template_version", "config", "registers", "spill_bytes")


def main(folders: list[str]) -> None:
    rows = [row for folder in folders for row in _pairs(Path(folder))]
    writer = csv.DictWriter(sys.stdout, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        groups[row["operator"], row["target"]].append(row["ratio"])
    for (operator, target), ratios in sorted(groups.items()):
        errors = [math.exp(abs(math.log(ratio))) - 1 for ratio in ratios]
        bias = geometric_mean(ratios)
        shares = ", ".join(f"within {limit:.0%} {_share(errors, limit):.0%}" for limit in (0.1, 0.2))
        print(
            f"{operator} {target}: {len(ratios)} pairs, predicted over measured {bias:.3f}, median error "
            f"{median(errors):.1%}, {shares}",
            file=sys.stderr,
        )


def _share(errors: list[float], limit: float) -> float:
    return sum(error <= limit for error in errors) / len(errors)


def _pairs(path: Path) -> Iterator[dict[str, Any]]:
    groups: dict[tuple[str, ...], list[dict[str, Any]]] = defaultdict(list)
    for row in read_dataset(path).verified().frame.to_dict("records"):
        kernels = profiles_of(row["profile"])
        if len(kernels) == 1 and load_target(row["target"]).is_gpu:
            row["kernel"] = kernels[0]
            groups[(*(str(row[name]) for name in SAME), str(kernels[0].grid))].append(row)
    for rows in groups.values():
        for short, long in _ends_by_size(rows):
            if found := _pair(short, long):
                yield found


def _ends_by_size(rows: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The rows of the smallest and the largest value of each size, where all other sizes are equal."""
    groups: dict[str, dict[int, dict[str, Any]]] = defaultdict(dict)
    for row in rows:
        dims = json.loads(row["dims"])
        for name, size in dims.items():
            groups[f"{name} {sorted((n, s) for n, s in dims.items() if n != name)}"][size] = row
    for found in groups.values():
        if len(found) > 1:
            yield found[min(found)], found[max(found)]


def _pair(short: dict[str, Any], long: dict[str, Any]) -> dict[str, Any] | None:
    place = _only_other_loop(short["kernel"], long["kernel"])
    difference_us = long["measured_us"] - short["measured_us"]
    if place is None or difference_us < LEAST_DIFFERENCE * long["measured_us"]:
        return None
    trips = [_loops(row["kernel"])[place].trips.mean for row in (short, long)]
    found = [_timeline(row["kernel"], row["target"], place) for row in (short, long)]
    predicted_us, waves, held_up = (sum(each) / 2 for each in zip(*found, strict=True))
    if trips[1] <= trips[0] or held_up > MOST_HELD_UP:
        return None
    measured_us = difference_us / (trips[1] - trips[0]) / waves
    return {
        **{name: short[name] for name in ("operator", "target", "shape", "dtype", "config")},
        "longer_shape": long["shape"],
        "trips": trips[0],
        "longer_trips": trips[1],
        "waves": round(waves, 2),
        "measured_us": round(measured_us, 5),
        "predicted_us": round(predicted_us, 5),
        "ratio": round(predicted_us / measured_us, 4),
    }


def _loops(kernel: KernelProfile) -> list[Phase]:
    return [p for r in kernel.roles if r.name != "producer" for p in r.phases if p.is_loop]


def _only_other_loop(a: KernelProfile, b: KernelProfile) -> int | None:
    """The loop whose trips alone differ, by its place among the loops; blocks have equal trips."""
    loops = list(zip(_loops(a), _loops(b), strict=False))
    if len(_loops(a)) != len(_loops(b)) or any(p.trips.axes for pair in loops for p in pair):
        return None
    other = [place for place, (p, q) in enumerate(loops) if p.trips != q.trips]
    return other[0] if len(other) == 1 else None


def _timeline(kernel: KernelProfile, target: str, place: int) -> tuple[float, float, float]:
    """The predicted time of an iteration of a loop, the number of waves of blocks, and the share by which
    they are held up by what all cores share.
    """
    chip = load_target(target)
    parts, prediction = MODEL.timeline([kernel], chip), MODEL.predict([kernel], chip)
    iterations: list[TimelinePart] = [part for part in parts if part.view is View.ITERATION]
    [block] = [part for part in parts if part.view is View.BLOCK]
    terms = prediction.terms_us
    body_us = prediction.latency_us - terms["launch"] - terms["fill"]
    makespan_us = terms["makespan"]
    return iterations[place].us, makespan_us / block.us, body_us / makespan_us - 1


if __name__ == "__main__":
    main(sys.argv[1:])
