"""What the performance database knows of a tuning task, without measuring anything."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

from ..errors import headline
from ..problem.space import Config
from ..records.session import ranked
from ..records.trial import Status, TrialRecord
from ..settings import load_settings
from .options import AutotuneOptions
from .tune_task import TuneTask
from .tuned import Tuned, TunedSource

if TYPE_CHECKING:
    from ..database.store import Store


@contextmanager
def opened_store(options: AutotuneOptions) -> Iterator[Store]:
    from ..database.layers import open_layers

    with open_layers(options.database or load_settings().database_url) as store:
        yield store


def checked_task(task: TuneTask, store: Store) -> TuneTask:
    """`task`, under a version of its own if the database's best config makes other code now.

    The version of a task cannot cover all that a function may do to find a helper or a constant. So the best
    config of the database is lowered again, and its code compared with the recorded code."""
    while not task.shares_ir and (best := _best_recorded(task, store)) is not None and best.fingerprint:
        code = _generated_code(task, best.config)
        if code == best.fingerprint:
            break
        task = task.with_code(code)
    return task


def find_recorded(task: TuneTask, store: Store) -> Tuned | None:
    """The choice of a complete session; None if there is none."""
    from ..tuner.recorded import find_answer

    found = find_answer(store, task.request)
    return None if found is None else task.tuned(replace(found, context=task.request.context))


def interim_choice(task: TuneTask, store: Store, reason: str) -> Tuned:
    """The best config known so far: verified, else predicted, else the default config. Nothing is lowered."""
    best = next((r for r in _known(task, store) if r.measured_us or r.prediction), None)
    if best is None:
        return task.default(f"{reason}, and nothing is predicted yet")
    return Tuned(
        best.config,
        task.choices.values(best.config),
        TunedSource.MODEL,
        best.status,
        task.request.workload,
        task.request.target.name,
        best.measured_us,
        best.predicted_us,
        messages=(reason,),
    )


def measured_times(task: TuneTask, store: Store) -> dict[Config, float | None]:
    """Microseconds of the configs that did not fail; None for one that was not measured."""
    return {record.config: record.measured_us for record in _known(task, store)}


def _known(task: TuneTask, store: Store) -> list[TrialRecord]:
    """Records of configs that did not fail, best first."""
    found = store.recall(task.request.context)
    records = {key: record for key, record in found.items() if record.config in task.choices.space}
    return [record for record in ranked(records) if record.status is not Status.FAILED]


def _best_recorded(task: TuneTask, store: Store) -> TrialRecord | None:
    from ..tuner.recorded import find_answer

    answer = find_answer(store, task.request)
    return answer.best if answer is not None else next(iter(_known(task, store)), None)


def _generated_code(task: TuneTask, config: Config) -> str:
    """The fingerprint of a config's device code, or why there is none."""
    from ..lowering.dynamic import lower_candidate

    try:
        return lower_candidate(task.request.candidate(config), only_read=True).fingerprint
    except Exception as error:  # the user's code and TileLang may raise anything
        return f"{type(error).__name__}: {headline(str(error))}"
