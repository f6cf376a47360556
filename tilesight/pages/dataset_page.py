"""The page of a dataset: errors of the model, calibration of its sigma, counters against terms."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from statistics import median

from ..costmodel.model import CostModel
from ..errors import InputError
from ..records.dataset import Dataset
from ..records.trial import Status
from ..reports.numbers import percent
from ..target.spec import target_names
from .dataset_figures import (
    BESIDE,
    CASES,
    COUNTED,
    FAILURES,
    OPERATORS,
    ROWS,
    SIGMA,
    case_figure,
    case_table,
    counter_figure,
    counter_table,
    failure_figure,
    failure_table,
    operator_figure,
    operator_table,
    row_figure,
    row_table,
    sigma_figure,
    sigma_table,
)
from .predicted_rows import PredictedRow, chosen_rows, predicted_rows
from .values import Facts, Page, PageFigure, PageTable, Texts


def dataset_page(name: str, dataset: Dataset, model: CostModel) -> Page:
    """The page of a dataset. Its rows are predicted here. Raises `InputError` for an empty one."""
    if not len(dataset):
        raise InputError(f"dataset '{name}' has no rows; `tilesight collect` writes some")
    chosen = chosen_rows(dataset)
    rows = predicted_rows(chosen, model)
    tables: dict[str, PageTable] = {}
    parts: list[PageFigure | Facts | Texts] = [_summary(dataset, rows)]
    if warnings := list(_warnings(dataset, chosen, rows)):
        parts.append(Texts("What to know first", warnings, is_warning=True))
    if rows:
        tables |= {ROWS: row_table(rows), OPERATORS: operator_table(rows), SIGMA: sigma_table(rows)}
        parts += [operator_figure(), row_figure(rows), sigma_figure()]
    if counted := counter_table(rows):
        tables[COUNTED] = counted
        parts.append(counter_figure(counted))
    cases = case_table(dataset)
    if cases is not None:
        tables[CASES] = cases
        parts.append(case_figure(cases))
    elif rows:
        parts.append(
            Texts(BESIDE, ["No row has the time of another implementation: there is nothing to draw."])
        )
    if failures := failure_table(dataset):
        tables[FAILURES] = failures
        parts.append(failure_figure())
    parts += [_runs(dataset), _marks()]
    return Page(f"Dataset {name}", f"Predictions by {model.version}", parts, tables)


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


def _warnings(dataset: Dataset, chosen: Dataset, rows: Sequence[PredictedRow]) -> Iterator[str]:
    trained = sum(row.is_training_row for row in rows)
    if trained:
        yield (
            f"The model was trained on {trained} of the {len(rows)} predicted rows: its errors there are "
            "smaller than on kernels that it has not seen. `tilesight report model` shows held-out errors."
        )
    verified = dataset.verified()
    known = int(verified.frame["target"].isin(target_names()).sum())
    if known < len(verified):
        yield f"{len(verified) - known} verified rows are of targets that are unknown here: left out."
    if len(chosen) < known:
        yield (
            f"{len(chosen)} of {known} verified rows are predicted: those with counters, then in turns of "
            "the cases."
        )
    if len(rows) < len(chosen):
        yield f"The model refuses {len(chosen) - len(rows)} of them, as kernels that do not fit their target."
    if not rows:
        yield "There is nothing to predict: no verified row has the profile of a kernel for a known target."
    if len(targets := sorted({row.target for row in rows})) > 1:
        yield f"Rows of several targets are shown together: {', '.join(targets)}. Tables name that of each."


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
        "Hollow orange diamonds and hatched bars show predictions, against a measured or counted value. "
        "Green squares are measured times beside those of other implementations."
    )
    return Texts("Marks and colours", (line,))
