"""Evaluates models: holds out whole groups of cases, trains on the rest, and scores each held-out case."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ..analytical.analytical_model import AnalyticalModel
from ..analytical.constants import DEFAULT
from ..learned.boosting import OBJECTIVES
from . import metrics
from .measured import SPLITS, MeasuredRow, codes, measured_log
from .train import ConstantsFit, Described, describe, train_correction
from .yardsticks import count_features, learned_alone, on_configs

MOST_FOLDS = 10
ANALYTICAL, RANDOM = "analytical", "random"
BOTH, ALONE, CONFIGS = "both", "learned alone", "config boosting"


@dataclass(frozen=True, slots=True)
class CaseScores:
    """The scores of one model on one case."""

    model: str
    case: str
    operator: str
    shape: str
    dtype: str
    target: str
    scores: metrics.Scores


@dataclass(frozen=True, slots=True)
class EvaluationSummary:
    """Scores of one model over all cases: geometric means (means of values that may be 0) and worst cases."""

    model: str
    cases: int
    spearman: float | None
    top1: float
    top1_worst: float
    top8: float
    top8_worst: float
    top5_percent: float
    top5_percent_worst: float
    mape: float | None
    mape_worst: float | None
    pick: float | None  # predicted over measured time of the first picks


@dataclass(frozen=True, slots=True)
class Coverage:
    """Shares of held-out rows within one and two sigma of the prediction; 0.683 and 0.954 are expected."""

    model: str
    target: str | None  # None: of all targets
    one_sigma: float
    two_sigma: float
    median_sigma: float


@dataclass(frozen=True)
class Evaluation:
    """The result of one evaluation."""

    split: str
    folds: int
    rows: int
    refused: int  # measured rows that the analytical model refuses
    unjudged: int  # cases with fewer than FEWEST_ROWS rows, which are only trained on
    constants: str  # origin of the analytical model's constants
    cases: tuple[CaseScores, ...]
    coverage: tuple[Coverage, ...]

    @property
    def models(self) -> list[str]:
        """Names of the evaluated models."""
        return list(dict.fromkeys(case.model for case in self.cases))

    def of(self, model: str, operator: str | None = None, target: str | None = None) -> list[CaseScores]:
        """The scores of one model on all cases, or on those of one operator, or of one target."""
        return [
            c
            for c in self.cases
            if c.model == model and operator in (None, c.operator) and target in (None, c.target)
        ]

    def summary(
        self, model: str, operator: str | None = None, target: str | None = None
    ) -> EvaluationSummary:
        """The summary of one model over all cases, or over those of one operator, or of one target."""
        return _summary(model, [c.scores for c in self.of(model, operator, target)])

    @property
    def operators(self) -> list[str]:
        """Names of the operators, sorted."""
        return sorted({case.operator for case in self.cases})

    @property
    def targets(self) -> list[str]:
        """Names of the targets, sorted."""
        return sorted({case.target for case in self.cases})

    def plain(self) -> dict[str, Any]:
        """The result in JSON types."""
        return {
            "split": self.split,
            "folds": self.folds,
            "rows": self.rows,
            "refused": self.refused,
            "unjudged": self.unjudged,
            "constants": self.constants,
            "summaries": [asdict(self.summary(model)) for model in self.models],
            "operators": [
                {"operator": o, **asdict(self.summary(model, o))}
                for o in self.operators
                for model in self.models
                if self.of(model, o)
            ],
            "targets": [
                {"target": t, **asdict(self.summary(model, target=t))}
                for t in self.targets
                for model in self.models
                if self.of(model, target=t)
            ],
            "coverage": [asdict(c) for c in self.coverage],
            "cases": [
                {**{k: v for k, v in asdict(c).items() if k != "scores"}, **asdict(c.scores)}
                for c in self.cases
            ],
        }


def folds(rows: Sequence[MeasuredRow], split: str, most: int = MOST_FOLDS) -> Iterator[NDArray[np.bool_]]:
    """Masks of the held-out rows, fold by fold. Each row is held out once, with all rows of its group.

    Args:
        rows: the measured rows.
        split: one of `SPLITS`. Shapes are divided over several folds, in turn for each operator; each
            operator or dtype is one fold.
        most: largest number of folds for shapes.

    Raises:
        InputError: there are fewer than two groups, so nothing is left to train on.
    """
    if split not in SPLITS:
        raise InputError(f"split '{split}' is unknown; use one of {', '.join(SPLITS)}")
    names = [row.group(split) for row in rows]
    groups = sorted(
        set(names),
        key=lambda name: (next(r.operator for r, n in zip(rows, names, strict=True) if n == name), name),
    )
    if len(groups) < 2:
        raise InputError(
            f"the datasets have one {split} only ({groups[0]}): nothing is left to train on; "
            "add rows or take another --split"
        )
    count = min(most, len(groups)) if split == "shape" else len(groups)
    fold_of = {name: number % count for number, name in enumerate(groups)}
    fold = np.array([fold_of[name] for name in names])
    for number in range(count):
        yield fold == number


def evaluate(
    rows: Sequence[MeasuredRow],
    split: str,
    *,
    objectives: Sequence[str] = OBJECTIVES[:1],
    fit_constants: ConstantsFit | None = None,
    most_folds: int = MOST_FOLDS,
    yardsticks: bool = True,
    progress: Callable[[str], None] = lambda _: None,
    **parameters: Any,
) -> Evaluation:
    """Evaluate the analytical model and the learned correction of it on held-out groups of cases.

    Args:
        rows: the measured rows.
        split: the groups to hold out, one of `SPLITS`.
        objectives: objectives of the learned model, each evaluated as a model.
        fit_constants: fits the analytical model's constants in each fold. Without it the shipped constants
            are used, which may have been fitted to held-out rows; the result records this.
        most_folds: largest number of folds for split "shape".
        yardsticks: whether to add boosting on plain counts and on config values.
        progress: receives a line for each fold.
        parameters: parameters of `LatencyCorrection`.
    """
    held = list(folds(rows, split, most_folds))
    measured = np.exp(measured_log(rows))
    counts, problems = count_features(rows), codes(row.problem for row in rows)
    logs: dict[str, NDArray[np.float64]] = {}
    orders: dict[str, NDArray[np.float64]] = {}
    sigmas = {objective: np.full(len(rows), np.nan) for objective in objectives}
    suffixes = {objective: "" if len(objectives) == 1 else f", {objective}" for objective in objectives}
    described: dict[str, Described] = {}
    refused: NDArray[np.bool_] = np.zeros(len(rows), dtype=bool)

    def put(model: str, test: NDArray[np.bool_], values: NDArray[np.float64]) -> None:
        logs.setdefault(model, np.full(len(rows), np.nan))[test] = values

    for number, test in enumerate(held):
        progress(
            f"fold {number + 1} of {len(held)}: "
            f"{int((~test).sum())} rows train, {int(test.sum())} are held out"
        )
        model = AnalyticalModel(_constants(rows, ~test, fit_constants))
        if model.version not in described:
            described[model.version] = describe(rows, model)
        seen = described[model.version]
        refused |= test & ~seen.usable
        with np.errstate(divide="ignore"):
            offset = np.log(seen.analytical_us)
        put(ANALYTICAL, test, offset[test])
        for objective in objectives:
            suffix = suffixes[objective]
            chosen = {**parameters, "objective": objective}
            found = train_correction(rows, seen, ~test, **chosen).applied(seen.features[test])
            put(BOTH + suffix, test, offset[test] + found.time)
            orders.setdefault(BOTH + suffix, np.zeros(len(rows)))[test] = found.order
            sigmas[objective][test] = found.sigma
            if yardsticks:
                put(ALONE + suffix, test, learned_alone(rows, counts, ~test, test, **chosen))
                put(CONFIGS + suffix, test, on_configs(rows, test, problems, **chosen))
    # orders learned from counts or configs alone are not times
    ordering = {
        f"{model}{suffix}"
        for model in (ALONE, CONFIGS)
        for o, suffix in suffixes.items()
        if o != "regression"
    }
    cases = [*_judge(rows, measured, logs, orders, ordering)]
    names = sorted({row.target.name for row in rows})
    target_of = np.array([row.target.name for row in rows])
    spread = [
        _coverage(
            BOTH + suffixes[o],
            target,
            measured,
            logs[BOTH + suffixes[o]],
            sigmas[o],
            np.ones(len(rows), dtype=bool) if target is None else target_of == target,
        )
        for target in (None, *(names if len(names) > 1 else ()))
        for o in objectives
    ]
    shipped = "as shipped: may have been fitted to held-out rows"
    origin = "refit in each fold, with the target's figures as they are" if fit_constants else shipped
    unjudged = len({row.case for row in rows} - {case.case for case in cases})
    return Evaluation(
        split, len(held), len(rows), int(refused.sum()), unjudged, origin, tuple(cases), tuple(spread)
    )


def _constants(rows: Sequence[MeasuredRow], train: NDArray[np.bool_], fit: ConstantsFit | None) -> Any:
    if fit is None:
        return DEFAULT
    return fit([row for row, keep in zip(rows, train, strict=True) if keep])


FEWEST_ROWS = 12  # of a case that is scored


def _judge(
    rows: Sequence[MeasuredRow],
    measured: NDArray[np.float64],
    logs: dict[str, NDArray[np.float64]],
    orders: dict[str, NDArray[np.float64]],
    ordering: Collection[str],
) -> Iterator[CaseScores]:
    """Scores of each model on each case. `orders` are added to the log times of models for their ranking."""
    numbers = codes(row.case for row in rows)
    for case in np.unique(numbers):
        own_rows = np.flatnonzero(numbers == case)
        if len(own_rows) < FEWEST_ROWS and len(rows) > FEWEST_ROWS:
            continue  # the best eight of so few candidates mean nothing
        first = rows[own_rows[0]]
        label = (first.case, first.operator, first.shape, first.dtype, first.target.name)
        for model, predicted in logs.items():
            own = predicted[own_rows]
            if not np.isnan(own).any():
                order = own + orders[model][own_rows] if model in orders else own
                found = metrics.scores(
                    np.exp(own), measured[own_rows], order_us=np.exp(order), times=model not in ordering
                )
                yield CaseScores(model, *label, found)
        yield CaseScores(RANDOM, *label, metrics.random_scores(measured[own_rows]))


def _coverage(
    model: str,
    target: str | None,
    measured: NDArray[np.float64],
    log: NDArray[np.float64],
    sigma: NDArray[np.float64],
    among: NDArray[np.bool_],
) -> Coverage:
    """How often sigma holds the errors of the log times `log`, over the rows of the mask `among`."""
    judged = among & np.isfinite(log)
    error = np.abs(np.log(measured[judged]) - log[judged])
    own = sigma[judged]
    return Coverage(
        model, target, float(np.mean(error <= own)), float(np.mean(error <= 2 * own)), float(np.median(own))
    )


def _summary(model: str, found: Sequence[metrics.Scores]) -> EvaluationSummary:
    tops = {name: [getattr(s, name) for s in found] for name in ("top1", "top8", "top5_percent")}
    orders = [s.spearman for s in found if s.spearman is not None]
    errors = [s.mape for s in found if s.mape is not None]
    picks = [s.pick for s in found if s.pick is not None]
    return EvaluationSummary(
        model=model,
        cases=len(found),
        spearman=float(np.mean(orders)) if orders else None,
        **{name: metrics.geometric_mean(values) for name, values in tops.items()},
        **{f"{name}_worst": min(values) for name, values in tops.items()},
        mape=float(np.mean(errors)) if errors else None,
        mape_worst=max(errors, default=None),
        pick=metrics.geometric_mean(picks) if picks else None,
    )
