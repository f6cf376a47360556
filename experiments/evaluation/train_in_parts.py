"""Trains and judges a model as `tilesight model train` does, in calls that may be cut off.

    python experiments/evaluation/train_in_parts.py DATASET... --out parts [--workers 18] [--limit-s 560]

Rows are described once, before the worker processes begin. The result of each fit is a file in `--out`: a
further call makes what is missing, so a machine that is lent for minutes is enough. The last call writes the
model (`--out`/model), the scores of all cases (`cases.csv`), and prints the summaries. With `--limit-s` no
fit begins that would probably end after so many seconds.
"""

from __future__ import annotations

import argparse
import os
import pickle
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from tilesight.costmodel.analytical.analytical_model import AnalyticalModel
from tilesight.costmodel.learned import model_file
from tilesight.costmodel.training import card
from tilesight.costmodel.training.evaluation import Evaluation
from tilesight.costmodel.training.fit_constants import ROUGH
from tilesight.costmodel.training.fold import ANALYTICAL, BOTH
from tilesight.costmodel.training.measured import SPLITS, MeasuredRow, measured_rows
from tilesight.costmodel.training.row_table import RowTable
from tilesight.costmodel.training.task_runner import Task
from tilesight.costmodel.training.train import Described, describe
from tilesight.costmodel.training.train_and_evaluate import TrainingPlan
from tilesight.records.dataset import read_dataset
from tilesight.workers import thread_limits

SLICE = 500  # rows that a process describes at once
MARGIN = 1.05  # of the longest fit so far, for the next ones
_shared: list[Any] = []  # what forked processes use: the rows, then their table


class DescribedRows(RowTable):
    """Rows that were described by all models that the fits use."""

    def __init__(self, rows: Sequence[MeasuredRow], known: dict[str, Described]) -> None:
        super().__init__(rows)
        self._known = known

    def described(self, model: AnalyticalModel) -> Described:
        return self._known[model.version]


def file_of(number: int, out: Path) -> Path:
    """The file of the result of a task."""
    return out / f"{number:02}.pickle"


def kept(numbered: tuple[int, Task], out: Path) -> float:
    """Do a task in a forked process, and keep its result. Returns the seconds that it took."""
    from threadpoolctl import threadpool_limits

    number, task = numbered
    begin = time.perf_counter()
    with threadpool_limits(1):
        found = task.function(_shared[0])
    part = file_of(number, out).with_suffix(".part")
    part.write_bytes(pickle.dumps(found))
    os.replace(part, file_of(number, out))
    return time.perf_counter() - begin


def described_slice(model: AnalyticalModel, rows: slice) -> Described:
    """Times and features of some of the shared rows. The predictions, which no fit uses, are left out."""
    return replace(describe(_shared[0][rows], model), predictions=())


def described_rows(rows: Sequence[MeasuredRow], workers: int) -> DescribedRows:
    """Describe the rows with the shipped and with the round constants, in `workers` processes."""
    models = [AnalyticalModel(), AnalyticalModel(ROUGH)]
    slices = [slice(first, first + SLICE) for first in range(0, len(rows), SLICE)]
    _shared[:] = [rows]
    with get_context("fork").Pool(workers) as pool:
        found = pool.starmap(described_slice, product(models, slices), chunksize=1)
    return DescribedRows(
        rows,
        {
            model.version: joined(found[number * len(slices) : (number + 1) * len(slices)])
            for number, model in enumerate(models)
        },
    )


def joined(parts: Sequence[Described]) -> Described:
    """The descriptions of all rows, of those of slices."""
    return Described(
        (),
        np.concatenate([part.analytical_us for part in parts]),
        np.concatenate([part.features for part in parts]),
    )


def run(tasks: Sequence[tuple[int, Task]], table: RowTable, out: Path, workers: int, end: float) -> int:
    """Do the numbered tasks in waves of `workers`, while there is time. Returns how many are left."""
    left, longest = list(tasks), 0.0
    _shared[:] = [table]
    while left and time.time() + MARGIN * longest < end:
        wave, left = left[:workers], left[workers:]
        with get_context("fork").Pool(len(wave), maxtasksperchild=1) as pool:
            seconds = pool.map(partial(kept, out=out), wave, chunksize=1)
        longest = max(longest, *seconds)
        print(f"{', '.join(task.title for _, task in wave)}: {max(seconds):.0f} s", flush=True)
    return len(left)


def write(given: argparse.Namespace, table: RowTable, judged: Sequence[Evaluation], estimator: Any) -> None:
    """Write the model and the scores, and print the summaries."""
    facts = card.facts(read_dataset(given.datasets), table.rows, AnalyticalModel().version, judged)
    model_file.save(given.out / "model", estimator, facts, card.text)
    scores = pd.concat(pd.DataFrame(one.plain()["cases"]).assign(split=one.split) for one in judged)
    scores[scores["model"].isin((ANALYTICAL, BOTH))].round(4).to_csv(given.out / "cases.csv", index=False)
    for one in judged:
        for model in (ANALYTICAL, BOTH):
            for target in (None, *one.targets):
                print(one.split, target or "all", one.summary(model, target=target))
        print(*one.coverage, sep="\n")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("datasets", nargs="+")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--workers", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--limit-s", type=float, default=float("inf"))
    parser.add_argument("--rounds", type=int, help="of the trees, to try this program [default: the model's]")
    given = parser.parse_args()
    end = time.time() + given.limit_s
    os.environ.update(thread_limits(1))
    given.out.mkdir(parents=True, exist_ok=True)
    rows = measured_rows(read_dataset(given.datasets))
    less = {} if given.rounds is None else {"rounds": given.rounds, "epochs": 1}
    plan = TrainingPlan.of(rows, SPLITS[:2], objective="regression", constants=ROUGH, random_state=0, **less)
    numbered = list(enumerate(plan.tasks))
    missing = [one for one in numbered if not file_of(one[0], given.out).exists()]
    table = described_rows(rows, given.workers)
    if left := run(missing, table, given.out, given.workers, end):
        sys.exit(f"{left} of {len(numbered)} fits are left: call again")
    estimator, judged = plan.results(
        [pickle.loads(file_of(number, given.out).read_bytes()) for number, _ in numbered]
    )
    write(given, table, judged, estimator)


if __name__ == "__main__":
    main()
