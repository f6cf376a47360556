"""The figures of a dataset: errors, calibration of sigma, counters against terms, other implementations."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from statistics import NormalDist, median
from typing import Any

from ..explanation.view import compare_counters
from ..records.dataset import Dataset
from ..reports.numbers import sigma as sigma_text
from ..target.spec import Target, load_target
from .predicted_rows import PredictedRow
from .values import (
    Axis,
    Band,
    Bar,
    BarChart,
    Cell,
    Line,
    PageColumn,
    PageFigure,
    PageTable,
    Plane,
    Points,
    Source,
)

ROWS, OPERATORS, SIGMA, CASES, FAILURES, COUNTED = (
    "rows",
    "operators",
    "sigma",
    "cases",
    "failures",
    "counted",
)
BESIDE = "Beside other implementations"
_SHARES = range(5, 100, 5)  # per cent of the rows that should lie within a multiple of sigma


def row_table(rows: Sequence[PredictedRow]) -> PageTable:
    return PageTable(
        "rows",
        {
            "operator": PageColumn("operator", [row.operator for row in rows]),
            "shape": PageColumn("shape", [row.shape for row in rows]),
            "dtype": PageColumn("element type", [row.dtype for row in rows]),
            "target": PageColumn("target", [row.target for row in rows]),
            "measured_us": PageColumn(
                "measured time", [row.measured_us for row in rows], "us", Source.MEASURED
            ),
            "predicted_us": PageColumn(
                "predicted time", [row.prediction.latency_us for row in rows], "us", Source.PREDICTED
            ),
            "sigma": PageColumn(
                "one sigma, share of the time",
                [row.prediction.uncertainty for row in rows],
                "",
                Source.PREDICTED,
            ),
            "error": PageColumn(
                "error, predicted over measured", [100 * math.expm1(row.log_error) for row in rows], "%"
            ),
            "limiting": PageColumn(
                "limiting", [row.prediction.limiting for row in rows], "", Source.PREDICTED
            ),
            "trained": PageColumn("training row", [row.is_training_row for row in rows]),
            "config": PageColumn("config", [row.config for row in rows]),
        },
    )


def operator_table(rows: Sequence[PredictedRow]) -> PageTable:
    groups: dict[str, list[PredictedRow]] = {}
    for row in sorted(rows, key=lambda row: row.operator):
        groups.setdefault(row.operator, []).append(row)

    def of(what: Any) -> list[Cell]:
        return [what(group) for group in groups.values()]

    def errors(group: Sequence[PredictedRow]) -> list[float]:
        return [100 * math.expm1(abs(row.log_error)) for row in group]

    return PageTable(
        "operators",
        {
            "operator": PageColumn("operator", list(groups)),
            "rows": PageColumn("rows", of(len)),
            "cases": PageColumn("cases", of(lambda g: len({(r.shape, r.dtype, r.target) for r in g}))),
            "median": PageColumn("median error", of(lambda g: median(errors(g))), "%", Source.PREDICTED),
            "mean": PageColumn("mean error", of(lambda g: sum(errors(g)) / len(g)), "%", Source.PREDICTED),
            "bias": PageColumn(
                "predicted over measured, geometric mean",
                of(lambda g: 100 * math.expm1(sum(r.log_error for r in g) / len(g))),
                "%",
                Source.PREDICTED,
            ),
            "one": PageColumn(
                "within one sigma",
                of(lambda g: 100 * sum(r.sigmas <= 1 for r in g) / len(g)),
                "%",
                Source.PREDICTED,
            ),
            "two": PageColumn(
                "within two sigma",
                of(lambda g: 100 * sum(r.sigmas <= 2 for r in g) / len(g)),
                "%",
                Source.PREDICTED,
            ),
        },
    )


def operator_figure() -> PageFigure:
    def bars(key: str, axis: str) -> BarChart:
        return BarChart(Axis(axis, "%"), "operator", (Bar(axis, Source.PREDICTED, key),))

    return PageFigure(
        "operators",
        "Errors by operator",
        "The factor between the predicted and the measured time, less one. The bias is above zero where the "
        "model predicts too much time.",
        OPERATORS,
        {
            "median error": bars("median", "median error"),
            "mean error": bars("mean", "mean error"),
            "bias": bars("bias", "predicted over measured"),
            "within one sigma": bars("one", "within one sigma"),
        },
        ("operator", "rows", "cases", "median", "mean", "bias", "one", "two"),
        choice="show",
    )


def row_figure(rows: Sequence[PredictedRow]) -> PageFigure:
    times = [us for row in rows for us in (row.measured_us, row.prediction.latency_us)]
    sigma = median(row.prediction.uncertainty for row in rows)
    ends = (min(times) / 1.1, max(times) * 1.1)
    band = tuple((us, us / (1 + sigma), us * (1 + sigma)) for us in ends)
    layers = (
        Band(f"one sigma, {sigma_text(sigma)} (median)", Source.LIMIT, band),
        Line("equal", Source.LIMIT, tuple((us, us) for us in ends), is_dashed=True),
        Points("predicted time of a measured candidate", Source.PREDICTED, "measured_us", "predicted_us"),
    )
    axes = Axis("measured time", "us", is_log=True), Axis("predicted time", "us", is_log=True)
    return PageFigure(
        "errors",
        "Predicted against measured",
        "Every predicted row.",
        ROWS,
        {"": Plane(*axes, layers)},
        (
            *("operator", "shape", "dtype", "target", "measured_us", "predicted_us", "sigma", "error"),
            *("limiting", "trained", "config"),
        ),
    )


def sigma_table(rows: Sequence[PredictedRow]) -> PageTable:
    """Of a normal distribution, `expected` per cent lie within `multiple` sigma; how many rows do."""
    multiples = [NormalDist().inv_cdf((1 + share / 100) / 2) for share in _SHARES]
    sigmas = sorted(row.sigmas for row in rows)
    observed = [100 * sum(s <= multiple for s in sigmas) / len(rows) for multiple in multiples]
    return PageTable(
        "multiples of sigma",
        {
            "multiple": PageColumn("multiple of sigma", multiples),
            "expected": PageColumn("expected within it", list(_SHARES), "%", Source.LIMIT),
            "observed": PageColumn("rows within it", observed, "%", Source.PREDICTED),
        },
    )


def sigma_figure() -> PageFigure:
    layers = (
        Line("sigma is right", Source.LIMIT, ((0.0, 0.0), (100.0, 100.0)), is_dashed=True),
        Points("rows", Source.PREDICTED, "expected", "observed"),
    )
    return PageFigure(
        "sigma",
        "Calibration of sigma",
        "For multiples of sigma: the share of rows whose measured time lies within, against the share that "
        "should. Above the line sigma is too wide, below it is too narrow.",
        SIGMA,
        {"": Plane(Axis("expected within the multiple of sigma", "%"), Axis("rows within it", "%"), layers)},
        ("multiple", "expected", "observed"),
    )


def counter_table(rows: Sequence[PredictedRow]) -> PageTable | None:
    """Counters beside their predicted values: two columns for each counter, a row for each candidate."""
    counted = [row for row in rows if row.counters]
    if not counted:
        return None
    targets: dict[str, Target] = {row.target: load_target(row.target) for row in counted}
    found = [
        {each.name: each for each in compare_counters(row.prediction, targets[row.target], row.counters)}
        for row in counted
    ]
    columns = {
        "operator": PageColumn("operator", [row.operator for row in counted]),
        "shape": PageColumn("shape", [row.shape for row in counted]),
        "target": PageColumn("target", [row.target for row in counted]),
        "limiting": PageColumn(
            "limiting", [row.prediction.limiting for row in counted], "", Source.PREDICTED
        ),
    }
    for name in dict.fromkeys(name for row in found for name in row):
        scale = [100.0 if name in row and row[name].is_share else 1.0 for row in found]
        unit = "%" if max(scale) == 100 else ""
        columns[f"predicted {name}"] = PageColumn(
            f"{name}, predicted",
            [s * row[name].predicted if name in row else None for s, row in zip(scale, found, strict=True)],
            unit,
            Source.PREDICTED,
        )
        columns[f"counted {name}"] = PageColumn(
            f"{name}, counted",
            [s * row[name].counted if name in row else None for s, row in zip(scale, found, strict=True)],
            unit,
            Source.MEASURED,
        )
    columns["config"] = PageColumn("config", [row.config for row in counted])
    return PageTable("rows with counters", columns)


def counter_figure(table: PageTable) -> PageFigure:
    charts = {}
    for key in (key for key in table.columns if key.startswith("counted ")):
        name = key.removeprefix("counted ")
        counted, predicted = table.columns[key], table.columns[f"predicted {name}"]
        known = [v for c in (counted, predicted) for v in c.values if isinstance(v, int | float)]
        if not known:
            continue
        positive = [v for v in known if v > 0]
        is_log = len(positive) > len(known) / 2 and not counted.unit
        low, high = (min(positive), max(positive)) if is_log else (min(0.0, *known), max(known))
        layers = (
            Line("equal", Source.LIMIT, ((low, low), (high, high)), is_dashed=True),
            Points("predicted value of a counted candidate", Source.PREDICTED, key, f"predicted {name}"),
        )
        charts[name] = Plane(
            Axis(f"{name}, counted", counted.unit, is_log),
            Axis(f"{name}, predicted", counted.unit, is_log),
            layers,
        )
    return PageFigure(
        "counters",
        "Counters against terms",
        "What hardware counters showed of one launch, and what the model predicts for them.",
        COUNTED,
        charts,
        tuple(table.columns),
        choice="counter",
    )


def case_table(dataset: Dataset) -> PageTable | None:
    """The fastest measured candidate of each case beside the fastest other implementation.

    None if there is no time of another implementation.
    """
    rows: list[tuple[str, str, str, str, float, float | None, int]] = []
    for case in dataset.cases():
        measured = case.frame["measured_us"].dropna()
        vendor = case.frame["vendor_us"].dropna()
        if len(measured):
            vendor_us = float(vendor.min()) if len(vendor) else None
            label = (case.operator, case.shape, case.dtype, case.target)
            rows.append((*label, float(measured.min()), vendor_us, len(measured)))
    if all(vendor_us is None for *_, vendor_us, _ in rows):
        return None
    operator, shape, dtype, target, best, vendors, counts = zip(*rows, strict=True)
    ratios = [None if v is None else v / b for v, b in zip(vendors, best, strict=True)]
    return PageTable(
        "cases",
        {
            "operator": PageColumn("operator", operator),
            "shape": PageColumn("shape", shape),
            "dtype": PageColumn("element type", dtype),
            "target": PageColumn("target", target),
            "best_us": PageColumn("fastest measured candidate", best, "us", Source.MEASURED),
            "vendor_us": PageColumn("fastest other implementation", vendors, "us", Source.VENDOR),
            "ratio": PageColumn("times as fast as that", ratios),
            "count": PageColumn("measured candidates", counts),
        },
    )


def case_figure(table: PageTable) -> PageFigure:
    times = [v for key in ("best_us", "vendor_us") for v in table.columns[key].values if isinstance(v, float)]
    ends = (min(times), max(times))
    layers = (
        Line("equally fast", Source.LIMIT, tuple((us, us) for us in ends), is_dashed=True),
        Points("a case, both times measured", Source.VENDOR, "best_us", "vendor_us"),
    )
    axes = (
        Axis("fastest measured candidate", "us", is_log=True),
        Axis("fastest other implementation", "us", is_log=True),
    )
    return PageFigure(
        "cases",
        BESIDE,
        "Above the line the fastest candidate of a case is faster than the fastest other implementation. "
        "Datasets are samples, not searches: the best candidate of a space need not be among them.",
        CASES,
        {"": Plane(*axes, layers)},
        ("operator", "shape", "dtype", "target", "best_us", "vendor_us", "ratio", "count"),
    )


def failure_table(dataset: Dataset) -> PageTable | None:
    failed = dataset.frame[dataset.frame["failure_kind"].notna()]
    counted = Counter(
        (row["failure_kind"], row["operator"], row["failure"] if isinstance(row["failure"], str) else "")
        for row in failed.to_dict("records")
    )
    if not counted:
        return None
    rows = counted.most_common()
    return PageTable(
        "failures",
        {
            "kind": PageColumn("kind of failure", [kind for (kind, _, _), _ in rows]),
            "operator": PageColumn("operator", [operator for (_, operator, _), _ in rows]),
            "count": PageColumn("rows", [count for _, count in rows]),
            "message": PageColumn("message", [message for (_, _, message), _ in rows]),
        },
    )


def failure_figure() -> PageFigure:
    series = (Bar("rows", Source.PLAIN, "count"),)
    return PageFigure(
        "failures",
        "Failures by kind",
        "Rows without a time, by stage and kind of the failure.",
        FAILURES,
        {"": BarChart(Axis("rows"), "kind", series)},
        ("kind", "operator", "count", "message"),
    )
