"""Runs the tasks of a training one after another, or at once in worker processes."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from ...errors import FailureKind, TileSightError
from ...workers import Done, Outcome, Raised, WorkerPool, failure_of, thread_limits
from .measured import MeasuredRow
from .row_table import RowTable

_FAULTS = (FailureKind.RUN_ERROR, FailureKind.RUN_CRASH, FailureKind.RUN_TIMEOUT)


@dataclass(frozen=True)
class Task:
    """One fit of a training, independent of the others.

    Args:
        title: names it in reports.
        begins: what is reported when it begins.
        function: computes its result from the rows. With several workers it must be possible to pickle it:
            a module-level function, or a `functools.partial` of one.
    """

    title: str
    begins: str
    function: Callable[[RowTable], Any]


def run_tasks(
    rows: Sequence[MeasuredRow],
    tasks: Sequence[Task],
    *,
    workers: int = 1,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Any]:
    """The results of `tasks`, in their order.

    Each task has one thread for linear algebra and for boosting, so results do not depend on `workers`.

    Args:
        rows: the measured rows, which all tasks read.
        tasks: they begin in this order.
        workers: tasks at once, each in a process of its own; one runs in this process.
        progress: receives a line when a task begins, and with several workers one when it is done.

    Raises:
        TileSightError: a worker process crashed or had too little memory.
        RuntimeError: a task raised in a worker process.
    """
    count = min(workers, len(tasks))
    if count <= 1:
        return list(_in_this_process(rows, tasks, progress))
    return _in_workers(rows, tasks, count, progress)


def _in_this_process(
    rows: Sequence[MeasuredRow], tasks: Sequence[Task], progress: Callable[[str], None]
) -> Iterator[Any]:
    table = RowTable(rows)
    for task in tasks:
        progress(f"{task.title}: {task.begins}")
        with _single_thread():
            found = task.function(table)
        yield found


def _in_workers(
    rows: Sequence[MeasuredRow], tasks: Sequence[Task], count: int, progress: Callable[[str], None]
) -> list[Any]:
    found: dict[int, Any] = {}

    def begun() -> Iterator[Task]:
        for task in tasks:
            progress(f"{task.title}: {task.begins}")
            yield task

    with TemporaryDirectory(prefix="tilesight-") as folder:
        # The fork server reads the rows once, and the workers that it forks share its memory.
        path = Path(folder) / "rows.pickle"
        with path.open("wb") as file:
            pickle.dump(rows, file, pickle.HIGHEST_PROTOCOL)
        with WorkerPool(
            count,
            timeout_s=float("inf"),  # of a fit that works, no limit is known
            preload=partial(_load, path),
            environment=thread_limits(1),
        ) as pool:
            for number, outcome in pool.run(_run, begun()):
                found[number] = _value(tasks[number], outcome)
                left = len(tasks) - len(found)
                progress(f"{tasks[number].title}: done in {outcome.seconds:.0f} s, {left} left")
    return [found[number] for number in range(len(tasks))]


def _value(task: Task, outcome: Outcome[Any]) -> Any:
    if isinstance(outcome, Done):
        return outcome.value
    if isinstance(outcome, Raised):
        raise RuntimeError(
            f"{task.title}: {outcome.type_name}: {outcome.message}\n{outcome.traceback}".rstrip()
        )
    raise TileSightError(
        f"{task.title} failed: {failure_of(outcome, *_FAULTS).message}; try fewer processes (--workers)"
    )


_loaded: list[RowTable] = []  # of a worker process: the rows of its pool


def _load(path: Path) -> None:
    """Import what tasks need, and read the rows; called in the fork server."""
    _import_libraries()
    _loaded[:] = [RowTable(pickle.loads(path.read_bytes()))]


def _run(task: Task) -> Any:
    return task.function(_loaded[0])


def _import_libraries() -> None:
    import scipy.stats  # noqa: F401
    import xgboost  # noqa: F401


def _single_thread() -> AbstractContextManager[object]:
    from threadpoolctl import threadpool_limits

    _import_libraries()  # only libraries that are loaded can be limited
    limit: AbstractContextManager[object] = threadpool_limits(1)
    return limit
