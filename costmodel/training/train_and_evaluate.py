"""Trains a correction on all rows, and evaluates such corrections on held-out groups of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
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
    how = Judging((objective,), constants, False, parameters)
    plans = [EvaluationPlan.of(rows, split, how) for split in splits]
    final = Task("training", f"on {len(rows)} rows", partial(_train, objective=objective, **parameters))
    *folds, estimator = run_tasks(
        rows, [*(task for plan in plans for task in plan.tasks), final], workers=workers, progress=progress
    )
    results = iter(folds)
    return estimator, [plan.evaluation([next(results) for _ in plan.held]) for plan in plans]


def _train(table: RowTable, **parameters: Any) -> LatencyCorrection:
    return train_correction(table.rows, table.described(AnalyticalModel()), **parameters)
