"""Tasks of a training, in this process and in workers."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from tests.unit.costmodel.measured_samples import FAST, OPERATORS, rows
from tilesight.costmodel.learned import model_file
from tilesight.costmodel.training import task_runner
from tilesight.costmodel.training.evaluation import Evaluation
from tilesight.costmodel.training.fit_constants import ROUGH
from tilesight.costmodel.training.row_table import RowTable
from tilesight.costmodel.training.task_runner import Task, run_tasks
from tilesight.costmodel.training.train_and_evaluate import train_and_evaluate
from tilesight.errors import TileSightError
from tilesight.workers import Crashed


def trained(workers: int, folder: Path) -> tuple[list[Evaluation], dict[str, bytes], list[str]]:
    """The evaluations by shape and operator, the files of the model, and the lines of progress."""
    lines: list[str] = []
    estimator, evaluations = train_and_evaluate(
        rows(OPERATORS[:2], shapes=2),
        ["shape", "operator"],
        objective="regression",
        constants=ROUGH,
        workers=workers,
        progress=lines.append,
        random_state=3,
        **FAST,
    )
    model_file.save(folder, estimator, {"analytical": "analytical-1", "data": {}, "held_out": []}, str)
    return evaluations, {path.name: path.read_bytes() for path in folder.iterdir()}, lines


def test_workers_compute_what_one_process_does(tmp_path: Path) -> None:
    """Every score, and every byte of the model."""
    alone, alone_files, alone_lines = trained(1, tmp_path / "alone")
    several, several_files, several_lines = trained(3, tmp_path / "several")
    assert several == alone
    assert [(e.split, e.folds) for e in several] == [("shape", 4), ("operator", 2)]
    assert all(e.constants.startswith("round figures") for e in several)
    assert several_files == alone_files
    assert any(name.endswith(".ubj") for name in alone_files)
    begun = [*(f"shape: fold {n} of 4" for n in (1, 2, 3, 4)), *(f"operator: fold {n} of 2" for n in (1, 2))]
    assert [line.rsplit(":", 1)[0] for line in alone_lines] == [*begun, "training"]
    assert alone_lines[0].endswith("fold 1 of 4: 72 rows train, 24 are held out")
    done = [line for line in several_lines if ": done in " in line]
    assert [line for line in several_lines if line not in done] == alone_lines
    assert sorted(line.rsplit(":", 1)[0] for line in done) == sorted([*begun, "training"])
    assert [re.search(r"(\d+) left$", line).group(1) for line in done] == list("6543210")  # type: ignore[union-attr]


def say_where(table: RowTable) -> None:
    """Raises an error that tells the process, the rows that it has, and its threads for linear algebra."""
    from threadpoolctl import threadpool_info

    threads = max(pool["num_threads"] for pool in threadpool_info())
    raise ValueError(f"process {os.getpid()}, {len(table.rows)} rows, {threads} threads")


def test_each_task_has_one_thread_and_all_rows_and_its_error_names_it() -> None:
    made = rows(OPERATORS[:1], shapes=1)
    tasks = [Task("one", "begins", say_where), Task("two", "begins", say_where)]
    with pytest.raises(ValueError, match=f"^process {os.getpid()}, 24 rows, 1 threads"):
        run_tasks(made, tasks)
    with pytest.raises(
        RuntimeError, match=r"^(one|two): ValueError: process \d+, 24 rows, 1 threads\nTrace"
    ) as caught:
        run_tasks(made, tasks, workers=2)
    assert f"process {os.getpid()}," not in str(caught.value)
    assert run_tasks(made, []) == []


def test_a_crash_is_one_message() -> None:
    task = Task("two", "begins", say_where)
    with pytest.raises(TileSightError, match=r"^two failed: .* exit code 3; try fewer processes"):
        task_runner._value(task, Crashed(3, "", 1.0))
