"""Compares predicted collectives of several hosts with published measurements.

    python experiments/pods/compare.py          the errors, as tables of the page
    python experiments/pods/compare.py --fit    the figures of docs/pod.toml that are fitted, fitted again

`points.csv` has the published times (README.md names each source), and which of them the figures were fitted
to. All predictions are those of docs/pod.toml.
"""

from __future__ import annotations

import csv
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from tilesight.costmodel.network import spanning
from tilesight.costmodel.network.collectives import predict_collective
from tilesight.target.fields import Figure
from tilesight.target.network import SPANNING_ALL
from tilesight.target.spec import Target, load_target

FOLDER = Path(__file__).parent
POD = FOLDER.parents[1] / "docs" / "pod.toml"
H800_NVLINK = 160.0  # GB/s, as the source of its rows says
KIND = {"E": "EFA", "F": "kernels"}  # of sources; all others are NCCL over InfiniBand
NORM = "UNITS_NORM"


@dataclass(frozen=True, slots=True)
class Point:
    """A published time.

    Attributes:
        source: A letter of the page.
        machine: The GPU.
        is_fitted: Whether figures were fitted to it.
        algorithm: `library`, or that of a kernel.
        us: The time.
    """

    source: str
    machine: str
    is_fitted: bool
    collective: str
    algorithm: str
    nodes: int
    world: int
    size_bytes: int
    us: float

    @property
    def group(self) -> tuple[str, str, int]:
        return self.source, self.collective, self.nodes

    @property
    def kind(self) -> str:
        return KIND.get(self.source, "InfiniBand")


def points() -> list[Point]:
    """All published times."""
    with (FOLDER / "points.csv").open(encoding="utf-8", newline="") as file:
        return [
            Point(
                row["source"], row["machine"], row["use"] == "fit", row["collective"], row["algorithm"],
                int(row["nodes"]), int(row["world"]), int(row["size_bytes"]), float(row["us"]),
            )
            for row in csv.DictReader(file)
        ]  # fmt: skip


def with_figures(target: Target, level: str, values: Mapping[str, float]) -> Target:
    """`target` with other values of figures of one level."""
    levels = tuple(
        replace(
            one,
            figures={**one.figures, **{path: Figure(value, "predicted") for path, value in values.items()}},
        )
        if one.name == level
        else one
        for one in target.levels
    )
    return replace(target, levels=levels)


def predicted_us(point: Point, target: Target) -> float:
    """The predicted time of a point on a pod of its GPUs."""
    if point.machine == "H800":
        target = with_figures(target, "node", {"network.store.gb_per_s": H800_NVLINK})
    return predict_collective(
        target, point.collective, point.size_bytes, point.world, point.algorithm
    ).latency_us


def error(point: Point, target: Target) -> float:
    """(predicted - published) / published."""
    return predicted_us(point, target) / point.us - 1


def summary(name: Sequence[object], found: Sequence[tuple[Point, float]]) -> str:
    """A row of a table: the number of points and their errors."""
    errors = [value for _, value in found]
    point, worst = max(found, key=lambda one: abs(one[1]))
    cells = [*name, len(errors), f"{100 * fmean(map(abs, errors)):.1f}%", f"{100 * fmean(errors):+.1f}%"]
    return f"| {' | '.join(map(str, cells))} | {100 * worst:+.0f}%, {point.size_bytes / 2**20:g} MiB |"


def table(head: str, rows: Iterable[str]) -> str:
    return "\n".join([head, "|---" * (head.count("|") - 1) + "|", *rows])


def by_use(found: Sequence[tuple[Point, float]]) -> str:
    """Errors of the points that were fitted to, and of the others."""
    kinds = dict.fromkeys((point.kind, point.is_fitted) for point, _ in found)
    rows = [
        summary(
            (kind, "fitted to" if fitted else "judged"),
            [one for one in found if (one[0].kind, one[0].is_fitted) == (kind, fitted)],
        )
        for kind, fitted in sorted(kinds, key=lambda one: (one[0] != "InfiniBand", one[0], not one[1]))
    ]
    return table("| points | use | number | mean of abs. error | mean error | worst |", rows)


def by_group(found: Sequence[tuple[Point, float]]) -> str:
    """Errors by source, collective and number of hosts."""
    groups: dict[tuple[str, str, int, bool], list[tuple[Point, float]]] = {}
    for one in found:
        groups.setdefault((*one[0].group, one[0].is_fitted), []).append(one)
    rows = [
        summary((source, collective, nodes, "yes" if fitted else "no"), rows)
        for (source, collective, nodes, fitted), rows in groups.items()
    ]
    return table(
        "| source | collective | hosts | fitted to | number | mean of abs. error | mean error | worst |", rows
    )


def fit(given: Sequence[Point], start: Mapping[str, float], place: Callable[..., Target]) -> dict[str, float]:
    """The figures with the least squares of errors: one after the other, by smaller and smaller steps."""

    def loss(values: Mapping[str, float]) -> float:
        target = place(values)
        return fmean(math.log(predicted_us(point, target) / point.us) ** 2 for point in given)

    best, least = dict(start), loss(start)
    step = 0.5
    while step > 0.005:
        before = least
        for name in start:
            for factor in (1 + step, 1 / (1 + step)):
                tried = {**best, name: best[name] * factor}
                found = loss(tried)
                if found < least:
                    best, least = tried, found
        if least > before - 1e-7:
            step /= 2
    return best


def fitted_figures() -> dict[str, float]:
    """The figures of the level `pod`, and the norm, fitted again."""
    target = load_target(str(POD))
    given = [point for point in points() if point.is_fitted]

    def of_library(values: Mapping[str, float]) -> Target:
        setattr(spanning, NORM, values[NORM])
        figures = {path: value for path, value in values.items() if path != NORM}
        return with_figures(target, "pod", {**figures, "network.library.fill_bytes": round(figures[half])})

    half = "network.library.fill_bytes"
    norm = spanning.UNITS_NORM
    start = dict(zip(SPANNING_ALL, (50.0, 5.0, 20.0, 1e6), strict=True)) | {NORM: 3.0}
    try:
        found = fit([p for p in given if p.algorithm == "library"], start, of_library)
    finally:
        setattr(spanning, NORM, norm)
    kernels = {"network.put.gb_per_s": 40.0, "network.flag_us": 5.0}
    return found | fit(
        [p for p in given if p.algorithm != "library"], kernels, lambda v: with_figures(target, "pod", v)
    )


def main() -> None:
    if "--fit" in sys.argv[1:]:
        for name, value in fitted_figures().items():
            print(f"{name} = {value:.4g}")
        return
    target = load_target(str(POD))
    found = [(point, error(point, target)) for point in points()]
    print(by_use(found), by_group(found), sep="\n\n")


if __name__ == "__main__":
    main()
