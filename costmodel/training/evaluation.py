"""Evaluates models: holds out whole groups of cases, trains on the rest, and scores each held-out case."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ..analytical.constants import DEFAULT, Constants
from ..learned.boosting import OBJECTIVES
from . import metrics
from .fit_constants import ROUGH
from .fold import ALONE, BOTH, CONFIGS, FoldPredictions, Judging, predict_fold
from .measured import SPLITS, MeasuredRow, codes, measured_log
from .task_runner import Task, run_tasks

MOST_FOLDS = 10
RANDOM = "random"


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
    constants: Constants = DEFAULT,
    most_folds: int = MOST_FOLDS,
    yardsticks: bool = True,
    workers: int = 1,
    progress: Callable[[str], None] = lambda _: None,
    **parameters: Any,
) -> Evaluation:
    """Evaluate the analytical model and the learned correction of it on held-out groups of cases.

    Args:
        rows: the measured rows.
        split: the groups to hold out, one of `SPLITS`.
        objectives: objectives of the learned model, each evaluated as a model.
        constants: of the analytical model. The shipped ones may have been fitted to held-out rows; `ROUGH`
            depends on no measured kernel. The result records this.
        most_folds: largest number of folds for split "shape".
        yardsticks: whether to add boosting on plain counts and on config values.
        workers: folds at once, each in a process of its own; results do not depend on it.
        progress: receives lines on each fold.
        parameters: parameters of `LatencyCorrection`.
    """
    how = Judging(tuple(objectives), constants, yardsticks, parameters)
    plan = EvaluationPlan.of(rows, split, how, most_folds)
    return plan.evaluation(run_tasks(rows, plan.tasks, workers=workers, progress=progress))


@dataclass(frozen=True)
class EvaluationPlan:
    """The folds of one evaluation as tasks, so that those of several evaluations can run together."""

    rows: Sequence[MeasuredRow]
    split: str
    how: Judging
    held: tuple[NDArray[np.bool_], ...]  # masks of the held-out rows

    @classmethod
    def of(
        cls, rows: Sequence[MeasuredRow], split: str, how: Judging, most_folds: int = MOST_FOLDS
    ) -> EvaluationPlan:
        """The plan for `split`; see `folds`."""
        return cls(rows, split, how, tuple(folds(rows, split, most_folds)))

    @property
    def tasks(self) -> list[Task]:
        """A task for each fold; its result is a `FoldPredictions`."""
        return [
            Task(
                f"{self.split}: fold {number} of {len(self.held)}",
                f"{int((~test).sum())} rows train, {int(test.sum())} are held out",
                partial(predict_fold, test=test, how=self.how),
            )
            for number, test in enumerate(self.held, 1)
        ]

    def evaluation(self, found: Sequence[FoldPredictions]) -> Evaluation:
        """The evaluation, from the results of all tasks in their order."""
        rows, objectives = self.rows, self.how.objectives
        measured = np.exp(measured_log(rows))
        logs = self._joined([fold.logs for fold in found])
        orders = self._joined([fold.orders for fold in found])
        sigmas = self._joined([fold.sigmas for fold in found])
        refused = sum(fold.refused for fold in found)
        # orders learned from counts or configs alone are not times
        ordering = {
            self.how.name(model, o) for model in (ALONE, CONFIGS) for o in objectives if o != "regression"
        }
        cases = [*_judge(rows, measured, logs, orders, ordering)]
        names = sorted({row.target.name for row in rows})
        target_of = np.array([row.target.name for row in rows])
        spread = [
            _coverage(
                model,
                target,
                measured,
                logs[model],
                sigmas[model],
                np.ones(len(rows), dtype=bool) if target is None else target_of == target,
            )
            for target in (None, *(names if len(names) > 1 else ()))
            for model in (self.how.name(BOTH, o) for o in objectives)
        ]
        origin = (
            "round figures, which depend on no measured kernel"
            if self.how.constants == ROUGH
            else "may have been fitted to held-out rows"
        )
        unjudged = len({row.case for row in rows} - {case.case for case in cases})
        return Evaluation(
            self.split, len(self.held), len(rows), refused, unjudged, origin, tuple(cases), tuple(spread)
        )

    def _joined(self, parts: Sequence[Mapping[str, NDArray[np.float64]]]) -> dict[str, NDArray[np.float64]]:
        """Values of all rows by model, from the values of each fold's held-out rows."""
        whole: dict[str, NDArray[np.float64]] = {}
        for test, part in zip(self.held, parts, strict=True):
            for model, values in part.items():
                whole.setdefault(model, np.full(len(self.rows), np.nan))[test] = values
        return whole


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
