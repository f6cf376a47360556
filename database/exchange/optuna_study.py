"""A session as a study of Optuna, in a file that Optuna's own tools open, such as optuna-dashboard."""

from __future__ import annotations

import re
import sqlite3
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...errors import InputError
from ...files import check_out, check_replaces, replacing
from ...problem.space import Value
from ...records.recorded_session import RecordedSession, TrialTimes
from ...records.trial import Status, TrialRecord

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.storages import BaseStorage
    from optuna.trial import FrozenTrial

TITLE = "TileSight session"  # begins the names of studies
RDB, JOURNAL = ".db", ".log"  # endings of files
_NAMED = re.compile(rf'"study_name": ?"{TITLE}')  # in the first line of a journal
_HEAD = 4096  # characters of a journal that tell whose it is


@dataclass(frozen=True, slots=True)
class _Objective:
    """What the values of the trials are: the best kind of times that the session has."""

    name: str
    status: Status  # of the trials that have a value

    def value(self, trial: TrialRecord) -> float | None:
        if trial.status is not self.status:
            return None
        return trial.predicted_us if self.status is Status.PREDICTED else trial.timed_us


# a prediction never stands for a measurement: all values of a study are of one kind
_OBJECTIVES = (
    _Objective("measured time, us", Status.VERIFIED),
    _Objective("measured time, results not checked, us", Status.MEASURED),
    _Objective("noisy time, us", Status.NOISY),
    _Objective("predicted time, us", Status.PREDICTED),
)


def check_study_out(path: Path) -> None:
    """Raise `InputError` if no study can be written there, or if another file is there."""
    if path.suffix not in (RDB, JOURNAL):
        raise InputError(f"--out {path} must end in {RDB} (SQLite) or {JOURNAL} (a journal, written faster)")
    check_out(path, path.suffix, "studies of Optuna")
    if path.suffix == JOURNAL:
        check_replaces(path, lambda head: bool(_NAMED.search(head)), "study", _HEAD)
    elif path.exists() and path.stat().st_size and not _is_study(path):
        raise InputError(f"--out {path} is there and no study of TileSight; name another file, or remove it")


def _is_study(path: Path) -> bool:
    """Whether an SQLite file has studies of TileSight alone."""
    try:
        with closing(sqlite3.connect(f"file:{path.absolute().as_posix()}?mode=ro", uri=True)) as connection:
            names = [name for (name,) in connection.execute("SELECT study_name FROM studies")]
    except sqlite3.Error:
        return False
    return all(str(name).startswith(TITLE) for name in names)


def write_study(found: RecordedSession, path: Path) -> int:
    """Write a session as the only study of a file; returns the number of its trials.

    A candidate with a time is a complete trial; its value is the measured time. One that failed is a failed
    trial. One that was only predicted or built is pruned: the model kept it from being measured. If nothing
    was measured, the values are predicted times, and the name of the objective says so. User attributes have
    status, prediction, sigma, what limits, and the kind and message of the failure.

    Args:
        found: The session.
        path: The file; it ends in .db (SQLite) or .log (a journal). A study of TileSight that is there is
            replaced once the new one is complete.

    Raises:
        InputError: The session has no candidates, or the file cannot be written.
    """
    check_study_out(path)
    summary, result = found.summary, found.result
    if not result.trials:
        raise InputError(f"session {summary.id} has no candidates: there is nothing to write")
    statuses = {trial.status for trial in result.trials}
    objective = next((one for one in _OBJECTIVES if one.status in statuses), _OBJECTIVES[-1])
    distributions = _distributions(result.trials)
    times = found.trial_times
    trials = [
        _trial(trial, objective, distributions, times.get(trial.config, TrialTimes()))
        for trial in result.trials
    ]
    trials.sort(key=lambda trial: trial.datetime_complete or datetime.max)
    context = summary.context
    with (
        replacing(path, f"study '{path}' cannot be written") as partial_path,
        _opened(partial_path, path.suffix) as storage,
    ):
        import optuna

        name = f"{TITLE} {summary.id}: {context.workload.label} on {context.target}"
        study = optuna.create_study(storage=storage, study_name=name, direction="minimize")
        with warnings.catch_warnings():
            # its interface may change in later versions than the one that is required
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.set_metric_names([objective.name])
        for key, value in _facts(found, objective).items():
            study.set_user_attr(key, value)
        study.add_trials(trials)
    return len(trials)


def _facts(found: RecordedSession, objective: _Objective) -> Mapping[str, Any]:
    context, result = found.summary.context, found.result
    return {
        "values": objective.name,
        "session": found.summary.id,
        "state": found.summary.state.value,
        "effort": found.summary.effort.value,
        "workload": context.workload.key,
        "target": context.target,
        "device": context.device,
        "protocol": context.protocol,
        "template": f"{context.template} {context.template_version}",
        "model": context.model,
        "other implementations, us": {each.name: each.latency_us for each in result.baselines},
        "winner": "" if result.decision is None else str(result.decision.winner),
    }


def _trial(
    trial: TrialRecord,
    objective: _Objective,
    distributions: Mapping[str, BaseDistribution],
    times: TrialTimes,
) -> FrozenTrial:
    from optuna.trial import FrozenTrial, TrialState

    value = objective.value(trial)
    state = TrialState.FAIL if trial.failure else TrialState.PRUNED if value is None else TrialState.COMPLETE
    prediction = trial.prediction
    attributes: dict[str, Any] = {"status": trial.status.value}
    if prediction is not None:
        attributes |= {
            "predicted_us": prediction.latency_us,
            "sigma": prediction.uncertainty,
            "limiting (predicted)": prediction.limiting,
        }
    if trial.timed_us is not None:
        attributes[f"{trial.status.value}_us"] = trial.timed_us
    if trial.failure is not None:
        attributes |= {"failure_kind": trial.failure.kind.value, "failure_message": trial.failure.message}
    begin = times.lowered_at or times.predicted_at
    end = times.measured_at or times.built_at or times.predicted_at or begin
    now = datetime.now(UTC).replace(tzinfo=None)
    return FrozenTrial(
        number=-1,  # the storage counts
        trial_id=-1,
        state=state,
        value=value,
        datetime_start=_local(begin or now),
        datetime_complete=_local(max(end or now, begin or now)),
        params=dict(trial.config),
        distributions={name: distributions[name] for name in trial.config},
        user_attrs=attributes,
        system_attrs={},
        intermediate_values={},
    )


def _local(moment: datetime) -> datetime:
    """A UTC time as Optuna writes times: those of the machine, without their zone."""
    return moment.replace(tzinfo=UTC).astimezone().replace(tzinfo=None)


def _distributions(trials: Sequence[TrialRecord]) -> dict[str, BaseDistribution]:
    """The values of each parameter among the candidates. Numbers become ranges, which plots keep in order."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    values: dict[str, dict[tuple[type, Value], Value]] = {}  # True and 1 are equal
    for trial in trials:
        for name, value in trial.config.items():
            values.setdefault(name, {})[type(value), value] = value
    found: dict[str, BaseDistribution] = {}
    for name, seen in values.items():
        types = {kind for kind, _ in seen}
        numbers = [value for value in seen.values() if isinstance(value, int | float)]
        if types == {int}:
            found[name] = IntDistribution(int(min(numbers)), int(max(numbers)))
        elif types <= {int, float}:
            found[name] = FloatDistribution(min(numbers), max(numbers))
        else:
            found[name] = CategoricalDistribution([seen[key] for key in sorted(seen, key=str)])
    return found


@contextmanager
def _opened(path: Path, kind: str) -> Iterator[BaseStorage]:
    """A new storage of Optuna in a file."""
    import optuna

    before = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    try:
        if kind == JOURNAL:
            from optuna.storages.journal import JournalFileBackend

            yield optuna.storages.JournalStorage(JournalFileBackend(str(path)))
            return
        from sqlalchemy.engine import URL

        url = URL.create("sqlite", database=str(path)).render_as_string()
        storage = optuna.storages.RDBStorage(url)
        try:
            yield storage
        finally:
            storage.remove_session()
            storage.engine.dispose()
    finally:
        optuna.logging.set_verbosity(before)
