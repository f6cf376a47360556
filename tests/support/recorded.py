"""An executor that answers every job of a tuning session from the rows of a recorded case. It starts no
process.
"""

from __future__ import annotations

import itertools
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import pandas as pd

from tilesight.costmodel.model import CostModel
from tilesight.datasets.replay.cases import recorded_cases
from tilesight.errors import Failure, FailureKind
from tilesight.executor.jobs import (
    BuildDone,
    BuildJob,
    CompareDone,
    CompareJob,
    Event,
    Job,
    JobSource,
    Lane,
    LowerDone,
    LowerJob,
    MeasureDone,
    MeasureJob,
)
from tilesight.executor.tasks import Profiled
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.profile.codec import profiles_of
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.session import Comparison, Context, Effort
from tilesight.records.trial import BuildResult, Measurement
from tilesight.target.spec import load_target
from tilesight.tuner.loop import Tuner
from tilesight.tuner.observers import Observer
from tilesight.tuner.request import Request
from tilesight.tuner.resolve import find_operator, find_template, find_workloads

FIGURES = ("registers", "spill_bytes", "smem_bytes")


class RecordedExecutor:
    """`rows` maps each config to its row of the dataset."""

    widths: ClassVar[Mapping[Lane, int]] = {Lane.PREPARE: 4, Lane.DEVICE: 1}

    def __init__(self, rows: Mapping[Config, Mapping[str, Any]]) -> None:
        self._rows = rows
        self.explored = 0
        self.measured = 0

    def width(self, lane: Lane) -> int:
        return self.widths[lane]

    def cached(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Profiled | Failure]]:
        return iter(())

    def stream(self, source: JobSource) -> Generator[Event]:
        while jobs := [
            job
            for lane in Lane
            for job in itertools.islice(iter(partial(source.next, lane), None), self.width(lane))
        ]:
            yield from map(self._event, jobs)

    def start(self, *, measures: bool = False) -> None:
        pass

    def close(self) -> None:
        pass

    def _event(self, job: Job) -> Event:
        match job:
            case LowerJob(candidate):
                self.explored += 1
                row = self._rows[candidate.config]
                return LowerDone(job, Profiled(profiles_of(row["profile"]), row["fingerprint"], 0.0))
            case BuildJob(candidate):
                return BuildDone(job, _build(self._rows[candidate.config]))
            case MeasureJob(candidate, _):
                self.measured += 1
                return MeasureDone(job, _measurement(self._rows[candidate.config]), 0.0)
            case CompareJob(finalists):
                return CompareDone(
                    job, Comparison(tuple(_measurement(self._rows[c.config]) for c, _ in finalists), ())
                )


def _build(row: Mapping[str, Any]) -> BuildResult:
    if row["failure_kind"] == FailureKind.BUILD_ERROR:
        return BuildResult(None, Failure(FailureKind.BUILD_ERROR, row["failure"]))
    resources = {name: int(row[name]) for name in FIGURES if row[name] == row[name]}
    return BuildResult(
        "recorded",
        entry="recorded",
        resources=resources,
        binary=row["binary"] if isinstance(row["binary"], str) else "",
    )


def _measurement(row: Mapping[str, Any]) -> Measurement:
    if row["measured_us"] != row["measured_us"]:
        return Measurement(failure=Failure(FailureKind(row["failure_kind"]), row["failure"]))
    return Measurement((float(row["measured_us"]),), relative_error=float(row["relative_error"]))


@dataclass(frozen=True)
class RecordedTuning:
    """What a session found among recorded configs. Times are in microseconds."""

    best_us: float  # of all recorded configs
    chosen_us: float  # of the session's best config
    explored: int
    measured: int

    @property
    def share(self) -> float:
        """Best recorded time over the chosen config's time, 0 .. 1."""
        return self.best_us / self.chosen_us


def tune_recorded(rows: pd.DataFrame, effort: Effort, model: CostModel, seed: int = 0) -> RecordedTuning:
    """Run the tuner on `rows`, the rows of one case."""
    [case], [positions] = recorded_cases(rows.reset_index(drop=True))
    target, operator = load_target(case.target), find_operator(case.operator)
    [workload] = find_workloads(operator, target, case.shape, case.dtype)
    template = find_template(operator, target, workload.dtype)
    facts = target.name, target.fingerprint, target.arch
    context = Context(
        template.name, template.version, workload, *facts, model.version, case.space.fingerprint
    )
    protocol = MeasurementProtocol.named("default", target)
    request = Request(
        workload, target, template, case.space, context, effort, protocol, measures=True, seed=seed
    )
    executor = RecordedExecutor(
        dict(zip(case.times_us, rows.iloc[positions].to_dict("records"), strict=True))
    )
    best = Tuner(request, model, executor, Observer()).run().best
    assert best is not None
    assert best.measured_us is not None
    return RecordedTuning(case.best_us, best.measured_us, executor.explored, executor.measured)
