"""The page of a dataset: errors of the model by operator, calibration of its sigma, counters against terms."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import NormalDist, median
from typing import Any

from ..costmodel.model import CostModel, predict_many, was_trained_on
from ..errors import InputError
from ..explanation.view import compare_counters
from ..profile.codec import profiles_of
from ..records.dataset import Dataset
from ..records.trial import Prediction, Status
from ..reports.numbers import percent
from ..target.spec import Target, load_target, target_names
from .values import Axis, Band, Bar, Bars, Cell, Column, Facts, Figure, Line, Page, Plane, Points, Source, Table, Texts

MOST_PREDICTED = 2000  # rows that are predicted; one takes some milliseconds
ROWS, OPERATORS, SIGMA, CASES, FAILURES, COUNTED = "rows", "operators", "sigma", "cases", "failures", "counted"
_SHARES = range(5, 100, 5)  # per cent of the rows that should lie within a multiple of sigma


@dataclass(frozen=True, slots=True)
class PredictedRow:
    """A verified row with the prediction of its candidate."""

    operator: str
    shape: str
    dtype: str
    target: str
    config: str
    measured_us: float
    prediction: Prediction
    is_training_row: bool
    counters: Mapping[str, float]

    @property
    def log_error(self) -> float:
        """log(predicted / measured)."""
        return math.log(self.prediction.latency_us / self.measured_us)

    @property
    def sigmas(self) -> float:
        """The error in multiples of sigma."""
        sigma = math.log1p(self.prediction.uncertainty)
        return abs(self.log_error) / sigma if sigma > 0 else math.inf


def dataset_page(name: str, dataset: Dataset, model: CostModel) -> Page:
    """The page of a dataset. Its rows are predicted here. Raises `InputError` for an empty one."""
    if not len(dataset):
        raise InputError(f"dataset '{name}' has no rows; `tilesight collect` writes some")
    chosen = chosen_rows(dataset)
    rows = predicted_rows(chosen, model)
    tables: dict[str, Table] = {}
    parts: list[Figure | Facts | Texts] = [_summary(dataset, rows)]
    parts.append(Texts("What to know first", list(_warnings(dataset, chosen, rows, model)), is_warning=True))
    if rows:
        tables |= {ROWS: _rows(rows), OPERATORS: _operators(rows), SIGMA: _sigma(rows)}
        parts += [_operator_figure(), _row_figure(rows), _sigma_figure()]
    if counted := _counted(rows):
        tables[COUNTED] = counted
        parts.append(_counter_figure(counted))
    if cases := _cases(dataset):
        tables[CASES] = cases
        parts.append(_case_figure(cases))
    if failures := _failures(dataset):
        tables[FAILURES] = failures
        parts.append(_failure_figure())
    parts += [_runs(dataset), _marks()]
    return Page(f"Dataset {name}", f"Predictions by {model.version}", parts, tables)


def chosen_rows(dataset: Dataset) -> Dataset:
    """The verified rows of known targets that are predicted: all with counters, and the others in turns of
    their cases, at most `MOST_PREDICTED`.
    """
    frame = dataset.verified().frame
    frame = frame[frame["target"].isin(target_names())]
    turn = frame.groupby(["workload", "target"]).cumcount()
    first = turn.mask(frame["counters"].notna(), -1).sort_values(kind="stable").index[:MOST_PREDICTED]
    return Dataset(frame.loc[sorted(first)].reset_index(drop=True), dataset.metadata)


def predicted_rows(dataset: Dataset, model: CostModel) -> list[PredictedRow]:
    """The rows that the model does not refuse, in their order."""
    found: dict[int, PredictedRow] = {}
    frame = dataset.frame
    for name, rows in frame.groupby("target"):
        kernels = [profiles_of(text) for text in rows["profile"]]
        answers = predict_many(model, kernels, load_target(str(name)))
        for place, row, answer in zip(rows.index, rows.to_dict("records"), answers, strict=True):
            if isinstance(answer, Prediction):
                found[int(place)] = _predicted(row, answer, model)
    return [found[place] for place in sorted(found)]


def _predicted(row: Mapping[Any, Any], prediction: Prediction, model: CostModel) -> PredictedRow:
    counters = json.loads(row["counters"]) if isinstance(row["counters"], str) else {}
    trained = was_trained_on(model, row["run"])
    return PredictedRow(
        operator=row["operator"],
        shape=row["shape"],
        dtype=row["dtype"],
        target=row["target"],
        config=row["config"],
        measured_us=float(row["measured_us"]),
        prediction=prediction,
        is_training_row=trained,
        counters=counters,
    )


def _summary(dataset: Dataset, rows: Sequence[PredictedRow]) -> Facts:
    frame = dataset.frame
    facts = [
        ("rows", f"{len(frame)}, of which {int((frame['status'] == Status.VERIFIED).sum())} are verified"),
        ("cases", str(len(frame.groupby(["workload", "target"])))),
        ("operators", ", ".join(sorted(frame["operator"].unique()))),
        ("targets", ", ".join(sorted(frame["target"].unique()))),
        ("rows with hardware counters", str(int(frame["counters"].notna().sum()))),
    ]
    if rows:
        within = sum(row.sigmas <= 1 for row in rows) / len(rows)
        errors = [math.expm1(abs(row.log_error)) for row in rows]
        facts += [
            ("predicted rows", str(len(rows))),
            ("median error of their predictions", percent(median(errors))),
            ("within one sigma", f"{percent(within)}; 68.3 % are expected"),
        ]
    return Facts("Dataset", facts)


def _warnings(
    dataset: Dataset, chosen: Dataset, rows: Sequence[PredictedRow], model: CostModel
) -> Iterator[str]:
    trained = sum(row.is_training_row for row in rows)
    if trained:
        yield (
            f"The model was trained on {trained} of the {len(rows)} predicted rows: its errors there are smaller "
            "than on kernels that it has not seen. `tilesight report model` shows held-out errors."
        )
    verified = dataset.verified()
    known = int(verified.frame["target"].isin(target_names()).sum())
    if known < len(verified):
        yield f"{len(verified) - known} verified rows are of targets that are not known here and are left out."
    if len(chosen) < known:
        yield f"{len(chosen)} of {known} verified rows are predicted: those with counters, then in turns of the cases."
    if len(rows) < len(chosen):
        yield f"The model refuses {len(chosen) - len(rows)} of them, as kernels that do not fit their target."
    if not rows:
        yield "There is nothing to predict: no verified row has the profile of a kernel for a known target."
    if len(targets := sorted({row.target for row in rows})) > 1:
        yield f"Rows of several targets are shown together: {', '.join(targets)}. The tables name that of each."


def _rows(rows: Sequence[PredictedRow]) -> Table:
    return Table(
        "rows",
        {
            "operator": Column("operator", [row.operator for row in rows]),
            "shape": Column("shape", [row.shape for row in rows]),
            "dtype": Column("element type", [row.dtype for row in rows]),
            "target": Column("target", [row.target for row in rows]),
            "measured_us": Column("measured time", [row.measured_us for row in rows], "us", Source.MEASURED),
            "predicted_us": Column(
                "predicted time", [row.prediction.latency_us for row in rows], "us", Source.PREDICTED
            ),
            "sigma": Column(
                "one sigma, share of the time", [row.prediction.uncertainty for row in rows], "", Source.PREDICTED
            ),
            "error": Column("error, predicted over measured", [100 * math.expm1(row.log_error) for row in rows], "%"),
            "limiting": Column("limiting", [row.prediction.limiting for row in rows], "", Source.PREDICTED),
            "trained": Column("training row", [row.is_training_row for row in rows]),
            "config": Column("config", [row.config for row in rows]),
        },
    )


def _operators(rows: Sequence[PredictedRow]) -> Table:
    groups: dict[str, list[PredictedRow]] = {}
    for row in sorted(rows, key=lambda row: row.operator):
        groups.setdefault(row.operator, []).append(row)

    def of(what: Any) -> list[Cell]:
        return [what(group) for group in groups.values()]

    def errors(group: Sequence[PredictedRow]) -> list[float]:
        return [100 * math.expm1(abs(row.log_error)) for row in group]

    return Table(
        "operators",
        {
            "operator": Column("operator", list(groups)),
            "rows": Column("rows", of(len)),
            "cases": Column("cases", of(lambda g: len({(r.shape, r.dtype, r.target) for r in g}))),
            "median": Column("median error", of(lambda g: median(errors(g))), "%", Source.PREDICTED),
            "mean": Column("mean error", of(lambda g: sum(errors(g)) / len(g)), "%", Source.PREDICTED),
            "bias": Column(
                "predicted over measured, geometric mean",
                of(lambda g: 100 * math.expm1(sum(r.log_error for r in g) / len(g))),
                "%",
                Source.PREDICTED,
            ),
            "one": Column(
                "within one sigma", of(lambda g: 100 * sum(r.sigmas <= 1 for r in g) / len(g)), "%", Source.PREDICTED
            ),
            "two": Column(
                "within two sigma", of(lambda g: 100 * sum(r.sigmas <= 2 for r in g) / len(g)), "%", Source.PREDICTED
            ),
        },
    )


def _operator_figure() -> Figure:
    def bars(key: str, axis: str) -> Bars:
        return Bars(Axis(axis, "%"), "operator", (Bar(axis, Source.PREDICTED, key),))

    return Figure(
        "operators",
        "Errors by operator",
        "The factor between the predicted and the measured time, less one. The bias is above zero where the model "
        "predicts too much time.",
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


def _row_figure(rows: Sequence[PredictedRow]) -> Figure:
    times = [us for row in rows for us in (row.measured_us, row.prediction.latency_us)]
    sigma = median(row.prediction.uncertainty for row in rows)
    ends = (min(times) / 1.1, max(times) * 1.1)
    band = tuple((us, us / (1 + sigma), us * (1 + sigma)) for us in ends)
    layers = (
        Band(f"one sigma, {percent(sigma)} (median)", Source.LIMIT, band),
        Line("equal", Source.LIMIT, tuple((us, us) for us in ends), is_dashed=True),
        Points("predicted time of a measured candidate", Source.PREDICTED, "measured_us", "predicted_us"),
    )
    axes = Axis("measured time", "us", is_log=True), Axis("predicted time", "us", is_log=True)
    return Figure(
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


def _sigma(rows: Sequence[PredictedRow]) -> Table:
    """Of a normal distribution, `expected` per cent lie within `multiple` sigma; how many rows do."""
    multiples = [NormalDist().inv_cdf((1 + share / 100) / 2) for share in _SHARES]
    sigmas = sorted(row.sigmas for row in rows)
    observed = [100 * sum(s <= multiple for s in sigmas) / len(rows) for multiple in multiples]
    return Table(
        "multiples of sigma",
        {
            "multiple": Column("multiple of sigma", multiples),
            "expected": Column("expected within it", list(_SHARES), "%", Source.LIMIT),
            "observed": Column("rows within it", observed, "%", Source.PREDICTED),
        },
    )


def _sigma_figure() -> Figure:
    layers = (
        Line("sigma is right", Source.LIMIT, ((0.0, 0.0), (100.0, 100.0)), is_dashed=True),
        Points("rows", Source.PREDICTED, "expected", "observed"),
    )
    return Figure(
        "sigma",
        "Calibration of sigma",
        "For multiples of sigma: the share of rows whose measured time lies within, against the share that should. "
        "Above the line sigma is too wide, below it is too narrow.",
        SIGMA,
        {"": Plane(Axis("expected within the multiple of sigma", "%"), Axis("rows within it", "%"), layers)},
        ("multiple", "expected", "observed"),
    )


def _counted(rows: Sequence[PredictedRow]) -> Table | None:
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
        "operator": Column("operator", [row.operator for row in counted]),
        "shape": Column("shape", [row.shape for row in counted]),
        "target": Column("target", [row.target for row in counted]),
        "limiting": Column("limiting", [row.prediction.limiting for row in counted], "", Source.PREDICTED),
    }
    for name in dict.fromkeys(name for row in found for name in row):
        scale = [100.0 if name in row and row[name].is_share else 1.0 for row in found]
        unit = "%" if max(scale) == 100 else ""
        columns[f"predicted {name}"] = Column(
            f"{name}, predicted",
            [s * row[name].predicted if name in row else None for s, row in zip(scale, found, strict=True)],
            unit,
            Source.PREDICTED,
        )
        columns[f"counted {name}"] = Column(
            f"{name}, counted",
            [s * row[name].counted if name in row else None for s, row in zip(scale, found, strict=True)],
            unit,
            Source.MEASURED,
        )
    columns["config"] = Column("config", [row.config for row in counted])
    return Table("rows with counters", columns)


def _counter_figure(table: Table) -> Figure:
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
            Axis(f"{name}, counted", counted.unit, is_log), Axis(f"{name}, predicted", counted.unit, is_log), layers
        )
    return Figure(
        "counters",
        "Counters against terms",
        "What hardware counters showed of one launch, and what the model predicts for them.",
        COUNTED,
        charts,
        tuple(table.columns),
        choice="counter",
    )


def _cases(dataset: Dataset) -> Table | None:
    """The fastest measured candidate of each case beside the fastest other implementation."""
    rows: list[tuple[str, str, str, str, float, float | None, int]] = []
    for case in dataset.cases():
        measured = case.frame["measured_us"].dropna()
        vendor = case.frame["vendor_us"].dropna()
        if len(measured):
            vendor_us = float(vendor.min()) if len(vendor) else None
            label = (case.operator, case.shape, case.dtype, case.target)
            rows.append((*label, float(measured.min()), vendor_us, len(measured)))
    if not rows:
        return None
    operator, shape, dtype, target, best, vendors, counts = zip(*rows, strict=True)
    ratios = [None if v is None else v / b for v, b in zip(vendors, best, strict=True)]
    return Table(
        "cases",
        {
            "operator": Column("operator", operator),
            "shape": Column("shape", shape),
            "dtype": Column("element type", dtype),
            "target": Column("target", target),
            "best_us": Column("fastest measured candidate", best, "us", Source.MEASURED),
            "vendor_us": Column("fastest other implementation", vendors, "us", Source.VENDOR),
            "ratio": Column("times as fast as that", ratios),
            "count": Column("measured candidates", counts),
        },
    )


def _case_figure(table: Table) -> Figure:
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
    return Figure(
        "cases",
        "Beside other implementations",
        "Above the line the fastest candidate of a case is faster than the fastest other implementation. Datasets "
        "are samples, not searches: the best candidate of a space need not be among them.",
        CASES,
        {"": Plane(*axes, layers)},
        ("operator", "shape", "dtype", "target", "best_us", "vendor_us", "ratio", "count"),
    )


def _failures(dataset: Dataset) -> Table | None:
    failed = dataset.frame[dataset.frame["failure_kind"].notna()]
    counted = Counter(
        (row["failure_kind"], row["operator"], row["failure"] if isinstance(row["failure"], str) else "")
        for row in failed.to_dict("records")
    )
    if not counted:
        return None
    rows = counted.most_common()
    return Table(
        "failures",
        {
            "kind": Column("kind of failure", [kind for (kind, _, _), _ in rows]),
            "operator": Column("operator", [operator for (_, operator, _), _ in rows]),
            "count": Column("rows", [count for _, count in rows]),
            "message": Column("message", [message for (_, _, message), _ in rows]),
        },
    )


def _failure_figure() -> Figure:
    series = (Bar("rows", Source.PLAIN, "count"),)
    return Figure(
        "failures",
        "Failures by kind",
        "Rows without a time, by stage and kind of the failure.",
        FAILURES,
        {"": Bars(Axis("rows"), "kind", series)},
        ("kind", "operator", "count", "message"),
    )


def _runs(dataset: Dataset) -> Facts:
    """A line for each run: date, program, environment."""
    rows = []
    for name, run in dataset.runs.items():
        known = run if isinstance(run, Mapping) else {}
        environment = known.get("environment")
        facts = [str(known[key]) for key in ("date", "program") if key in known]
        if isinstance(environment, Mapping):
            facts += [f"{key} {value}" for key, value in environment.items()]
        rows.append((str(name), ", ".join(facts) or "nothing is known of it"))
    return Facts("Runs", rows)


def _marks() -> Texts:
    line = (
        "Hollow orange diamonds and hatched bars show predictions, against a measured or counted value. Green "
        "squares are measured times beside those of other implementations."
    )
    return Texts("Marks and colours", (line,))
