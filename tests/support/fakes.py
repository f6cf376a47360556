"""A line without TileLang: operator, template, model and executor that answer from a formula."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

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
from tilesight.problem.axes import Axes
from tilesight.problem.candidate import Candidate
from tilesight.problem.operator import Operator, Tensors
from tilesight.problem.space import Config, Constraint, Parameter, SearchSpace
from tilesight.problem.template import KernelTemplate
from tilesight.problem.workload import Workload
from tilesight.profile.values import KernelProfile, Phase, Role, Trips, Work
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.session import Baseline, Comparison, Context, Effort
from tilesight.records.trial import BuildResult, Measurement, Prediction, TrialRecord
from tilesight.target.spec import Target, load_target
from tilesight.tuner.observers import Observer
from tilesight.tuner.request import Request


class Axpy(Operator):
    name = "axpy"
    dims = ("n",)
    dtypes = ("float32",)
    axes: ClassVar[Axes] = {"y": ("n",)}
    named: ClassVar[Mapping[str, Mapping[str, bool | int]]] = {"X0": {"n": 1024}, "X1": {"n": 4096}}
    default_names = ("X0",)

    def inputs(self, workload: Workload, device: str, seed: int) -> dict[str, Any]:
        return {}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"y": (workload.dims["n"],)}

    def reference(self, workload: Workload, inputs: Tensors) -> dict[str, Any]:
        return {}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        return {}

    def flops(self, workload: Workload) -> int:
        return 2 * workload.dims["n"]

    def min_bytes(self, workload: Workload) -> int:
        return 12 * workload.dims["n"]

    def max_relative_error(self, workload: Workload) -> float:
        return 1e-5


class AxpyTemplate(KernelTemplate):
    operator = Axpy()
    name = "axpy"
    target_kinds = ("cpu", "cuda")
    dtypes = ("float32",)
    blocks: ClassVar[tuple[int, ...]] = tuple(range(1, 41))

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        def even_with_two_stages(config: Config) -> str | None:
            if config["stages"] == 2 and config.int("block") % 2:
                return f"block={config['block']} must be even for stages=2"
            return None

        parameters = (
            Parameter("block", self.blocks),
            Parameter("stages", (1, 2, 3)),
            Parameter("swizzle", (False, True)),
        )
        return SearchSpace(parameters, [Constraint("even_stages", even_with_two_stages)])

    def build(self, workload: Workload, config: Config) -> Any:
        raise NotImplementedError

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        return Config({"block": 20, "stages": 1, "swizzle": False})


def true_us(config: Config) -> float:
    """Least at block=30, stages=3, swizzle=true: 10 us."""
    return (
        10.0
        + abs(config.int("block") - 30)
        + 2.0 * (3 - config.int("stages"))
        + (0.0 if config.get("swizzle") else 0.5)
    )


def profile_of(config: Config) -> KernelProfile:
    """Stands for the IR: says the config in its notes."""
    work = Work(vector_ops=10.0 * config.int("block"))
    role = Role("all", 1, (Phase(Trips((4.0,)), work, config.int("stages"), is_loop=True),))
    return KernelProfile("cpu", "native", (64, 1, 1), 1, 1, 0, (role,), (), notes=(config.key,))


class FakeModel:
    """Three times too slow, and blind for swizzle."""

    version = "fake-1"

    def __init__(self) -> None:
        self.calls = 0

    def predict(self, kernels: Sequence[Any], target: Target, built: Any = None) -> Prediction:
        self.calls += 1
        config = Config(json.loads(kernels[0].notes[0]))
        if config["block"] == 13:
            raise ZeroDivisionError("thirteen")
        latency_us = 3 * true_us(Config({**config, "swizzle": True}))
        terms = {"launch": 1.0, "vector": latency_us - 1.0}
        return Prediction(
            latency_us, {"vector": 0.5, "dram": 0.25}, "vector", terms, uncertainty=0.2, model=self.version
        )


def measured(candidate: Candidate) -> Measurement:
    return Measurement((true_us(candidate.config),), relative_error=0.0)


class FakeExecutor:
    """Counts what it is asked. `on_stage(stage, config)` may raise or return a failure."""

    def __init__(self, on_stage: Callable[[str, Config], Failure | None] | None = None) -> None:
        self._on_stage = on_stage
        self.is_closed = self.waited = False
        self.done: dict[str, list[Config]] = {"lower": [], "build": [], "measure": [], "compare": []}

    widths: ClassVar[Mapping[Lane, int]] = {Lane.PREPARE: 4, Lane.DEVICE: 1}

    def width(self, lane: Lane) -> int:
        return self.widths[lane]

    def cached(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Profiled | Failure]]:
        return iter(())

    def stream(self, source: JobSource) -> Generator[Event]:
        """As many jobs as there is room for, then their answers."""
        while jobs := [
            job
            for lane in Lane
            for job in itertools.islice(iter(partial(source.next, lane), None), self.width(lane))
        ]:
            for job in self.in_order(jobs):
                yield self.event(job)

    def in_order(self, jobs: list[Job]) -> Iterable[Job]:
        """The order in which they are answered."""
        return jobs

    def event(self, job: Job) -> Event:
        match job:
            case LowerJob(candidate):
                return LowerDone(job, self.lowered(candidate))
            case BuildJob(candidate):
                return BuildDone(job, self.built(candidate))
            case MeasureJob(candidate, build):
                assert build.artifact
                failure = self._stage("measure", candidate.config)
                return MeasureDone(
                    job, Measurement(failure=failure) if failure else measured(candidate), 0.25
                )
            case CompareJob(finalists):
                return CompareDone(job, self.compared([candidate for candidate, _ in finalists]))

    def lowered(self, candidate: Candidate) -> Profiled | Failure:
        failure = self._stage("lower", candidate.config)
        return failure or Profiled((profile_of(candidate.config),), f"code-{candidate.config}", 0.01)

    def built(self, candidate: Candidate) -> BuildResult:
        failure = self._stage("build", candidate.config)
        return (
            BuildResult(None, failure) if failure else BuildResult(f"/cache/{candidate.config}.so", entry="f")
        )

    def compared(self, candidates: Sequence[Candidate]) -> Comparison | Failure:
        for candidate in candidates:
            failure = self._stage("compare", candidate.config)
            if failure:
                return failure
        return Comparison(tuple(measured(c) for c in candidates), (Baseline("vendor", (12.0,)),))

    def start(self, *, measures: bool = False, wait: bool = False) -> None:
        self.waited = wait

    def close(self) -> None:
        self.is_closed = True

    def _stage(self, stage: str, config: Config) -> Failure | None:
        failure = self._on_stage(stage, config) if self._on_stage else None
        self.done[stage].append(config)
        return failure


class DisturbedExecutor(FakeExecutor):
    """Times are those of a busy machine: of single kernels, of finalists, or of the vendor's library."""

    def __init__(self, *stages: str) -> None:
        super().__init__()
        self._stages = stages

    def event(self, job: Job) -> Event:
        match super().event(job):
            case MeasureDone(same, found, seconds) if "measure" in self._stages:
                return MeasureDone(same, _noisy(found), seconds)
            case CompareDone(same, Comparison() as found):
                if "compare" in self._stages:
                    found = replace(found, measurements=tuple(map(_noisy, found.measurements)))
                if "vendor" in self._stages:
                    found = replace(found, baselines=(Baseline("vendor", (10.0, 20.0, 30.0)),))
                return CompareDone(same, found)
            case event:
                return event


def _noisy(found: Measurement) -> Measurement:
    return replace(found, samples_us=tuple(3 * us for us in found.samples_us), observed={"other_load": 0.9})


class Journal(Observer):
    """Keeps the latest record of each config, as the database would, and the events by name."""

    def __init__(self) -> None:
        self.records: dict[Config, TrialRecord] = {}
        self.events: list[tuple[str, Any]] = []

    def phase(self, name: str, total: int | None) -> None:
        self.events.append(("phase", name))

    def trial(self, record: TrialRecord) -> None:
        self.records[record.config] = record

    def message(self, text: str) -> None:
        self.events.append(("message", text))

    def finished(self, result: Any) -> None:
        self.events.append(("finished", result))


def failing(kind: FailureKind, stage: str, detail: str = "") -> Callable[[str, Config], Failure | None]:
    """Every candidate fails at that stage."""
    return lambda at, _config: Failure(kind, f"{stage} failed", detail) if at == stage else None


def request(
    effort: Effort = Effort.QUICK,
    *,
    measures: bool = True,
    template: KernelTemplate | None = None,
    target: str = "cpu",
    **changes: Any,
) -> Request:
    template, chosen = template or AxpyTemplate(), load_target(target)
    workload = template.operator.workload("X0")
    space = template.space(workload, chosen)
    figures = chosen.name, chosen.fingerprint, chosen.arch
    context = Context(template.name, template.version, workload, *figures, "fake-1", space.fingerprint)
    protocol = MeasurementProtocol.named("default", chosen)
    return Request(workload, chosen, template, space, context, effort, protocol, measures, **changes)
