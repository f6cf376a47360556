"""Trains a correction on all rows, and evaluates such corrections on held-out groups of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from ..analytical.analytical_model import AnalyticalModel
from ..analytical.constants import Constants
from ..learned.estimator import LatencyCorrection
from .evaluation import Evaluation, EvaluationPlan
from .fold import Judging
from .measured import MeasuredRow
from .row_table import RowTable
from .task_runner import Task, run_tasks
from .train import train_correction


def train_and_evaluate(
    rows: Sequence[MeasuredRow],
    splits: Sequence[str],
    *,
    objective: str,
    constants: Constants,
    workers: int = 1,
    progress: Callable[[str], None] = lambda _: None,
    **parameters: Any,
) -> tuple[LatencyCorrection, list[Evaluation]]:
    """Train the correction of the shipped analytical model, and evaluate it for each of `splits`.

    The folds of all splits and the training on all rows share the worker processes.

    Args:
        rows: the measured rows.
        splits: the groups that are held out, any of `SPLITS`; may be empty.
        objective: objective of the learned model.
        constants: of the analytical model in the folds; see `evaluate`.
        workers: fits at once, each in a process of its own; results do not depend on it.
        progress: receives lines on each fit.
        parameters: further parameters of `LatencyCorrection`.
    """
    plan = TrainingPlan.of(rows, splits, objective=objective, constants=constants, **parameters)
    return plan.results(run_tasks(rows, plan.tasks, workers=workers, progress=progress))


@dataclass(frozen=True)
class TrainingPlan:
    """A training and its evaluations as tasks that do not depend on each other."""

    evaluations: tuple[EvaluationPlan, ...]
    training: Task

    @classmethod
    def of(
        cls,
        rows: Sequence[MeasuredRow],
        splits: Sequence[str],
        *,
        objective: str,
        constants: Constants,
        **parameters: Any,
    ) -> TrainingPlan:
        """The plan of `train_and_evaluate` with these arguments."""
        how = Judging((objective,), constants, False, parameters)
        final = Task("training", f"on {len(rows)} rows", partial(_train, objective=objective, **parameters))
        return cls(tuple(EvaluationPlan.of(rows, split, how) for split in splits), final)

    @property
    def tasks(self) -> list[Task]:
        """The folds of all evaluations, then the training on all rows."""
        return [*(task for plan in self.evaluations for task in plan.tasks), self.training]

    def results(self, found: Sequence[Any]) -> tuple[LatencyCorrection, list[Evaluation]]:
        """The trained correction and the evaluations, from the results of all tasks in their order."""
        *folds, estimator = found
        results = iter(folds)
        return estimator, [plan.evaluation([next(results) for _ in plan.held]) for plan in self.evaluations]


def _train(table: RowTable, **parameters: Any) -> LatencyCorrection:
    return train_correction(table.rows, table.described(AnalyticalModel()), **parameters)
