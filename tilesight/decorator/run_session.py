"""Runs the session of a tuning task."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

from ..errors import NoCandidateError
from ..machine.load import notice_load
from ..records.trial import Status
from ..settings import load_settings
from .options import AutotuneOptions
from .trace_configs import first_configs
from .tune_task import TuneTask
from .tuned import Tuned

if TYPE_CHECKING:
    from ..database.store import Store
    from ..executor.local import LocalExecutor


def run_session(task: TuneTask, store: Store, options: AutotuneOptions) -> Tuned:
    """The choice of a new session, or of one that is continued. Raises what `tilesight.tune` raises."""
    from ..tuner.recorded import run_recorded

    settings, observer = load_settings(), options.observer
    opened: list[LocalExecutor] = []

    def executor() -> LocalExecutor:
        from ..executor.local import LocalExecutor

        workers = options.workers or settings.workers
        made = LocalExecutor(workers, settings.cache_dir, task.placement.gpus, notice=observer.message)
        opened.append(made)
        if task.placement.devices:
            notice_load(task.placement.devices, observer.message)
            made.start(measures=True)
            if task.inputs is not None:
                task.inputs.save()
            _build_reference(task, made)
        return made

    observer.started(f"{task.request.workload.label} on {task.placement.target.title}")
    try:
        result = run_recorded(task.request, store, task.model, executor, observer, task.placement.messages)
    finally:
        for made in opened:
            made.close()
        if task.inputs is not None:
            task.inputs.remove()
    observer.answered(result)
    tuned = task.tuned(result)
    if tuned.status is Status.NOISY:
        warnings.warn(
            f"{task.request.workload.label}: other work on the machine disturbed the measured times. "
            f"{tuned.config} is the fastest of noisy times and is not remembered; the next process measures "
            "again",
            stacklevel=2,
        )
    return tuned


def _build_reference(task: TuneTask, executor: LocalExecutor) -> None:
    """Build the config whose results the other configs must agree with, if there is no `ref_prog`."""
    from ..executor.jobs import BuildDone, BuildJob, SingleLaneSource

    operator = task.template.operator
    if operator.has_reference or operator.check.skip:
        return
    failure = ""
    for config in first_configs(task.choices):
        for event in executor.stream(SingleLaneSource([BuildJob(task.request.candidate(config))])):
            assert isinstance(event, BuildDone)
            if event.result.artifact is not None:
                operator.reference_build = event.result.artifact, event.result.entry
                return
            failure = failure or (event.result.failure.message if event.result.failure else "")
    raise NoCandidateError(
        f"{task.template.name}: no config builds whose results others could be compared with; "
        f"{task.choices.first}: {failure}. Give a ref_prog"
    )
