"""An operator, template, model and executor without TileLang, with times that depend on a size."""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

from tests.support.fakes import Axpy, FakeExecutor
from tilesight.errors import Failure
from tilesight.executor.jobs import (
    BuildDone,
    BuildJob,
    CompareDone,
    CompareJob,
    Event,
    Job,
    LowerDone,
    LowerJob,
    MeasureDone,
    MeasureJob,
)
from tilesight.executor.tasks import Profiled
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config, Constraint, Parameter, SearchSpace
from tilesight.problem.template import KernelTemplate, Scale
from tilesight.problem.workload import Workload
from tilesight.profile.values import KernelProfile, Phase, Role, Trips, Work
from tilesight.records.session import Baseline, Comparison
from tilesight.records.trial import BuildResult, Measurement, Prediction
from tilesight.target.spec import Target

CORES = 16


class Rows(Axpy):
    name = "rows"
    dims = ("m", "n")
    named: ClassVar[Mapping[str, Mapping[str, bool | int]]] = {"R0": {"m": 512, "n": 1024}}
    default_names = ("R0",)

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"y": (workload.dims["m"], workload.dims["n"])}

    def flops(self, workload: Workload) -> int:
        return 2 * workload.dims["m"] * workload.dims["n"]

    def min_bytes(self, workload: Workload) -> int:
        return 8 * workload.dims["m"] * workload.dims["n"]


class RowsTemplate(KernelTemplate):
    operator = Rows()
    name = "rows"
    target_kinds = ("cpu", "cuda")
    dtypes = ("float32",)
    dynamic_dims = ("m",)
    static_reasons: ClassVar[Mapping[str, str]] = {"n": "a row lies in registers"}
    scales: ClassVar[Mapping[str, Scale]] = {"m": Scale(("block",), (8, 16, 32, 64, 128, 256))}

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        m = workload.dims["m"]

        def wasted(config: Config) -> str | None:
            return (
                f"block={config['block']} is wasted on m={m}" if config.int("block") > max(8, 2 * m) else None
            )

        def crowded(config: Config) -> str | None:
            return "too large" if config.int("block") * config.int("width") > 16384 else None

        parameters = (
            Parameter("block", (8, 16, 32, 64, 128, 256)),
            Parameter("width", (32, 64, 128)),
            Parameter("stages", (1, 2)),
        )
        return SearchSpace(
            parameters, [Constraint("waste", wasted, is_waste=True), Constraint("crowd", crowded)]
        )

    def build(self, workload: Workload, config: Config) -> Any:
        raise NotImplementedError

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        wanted = Config({"block": 32, "width": 64, "stages": 1})
        space = self.space(workload, target)
        return wanted if wanted in space else space.nearest(wanted, 1)[0]


def true_us(config: Config, dims: Mapping[str, int]) -> float:
    """Waves of blocks on `CORES` cores; small blocks are less efficient, two stages a little more."""
    block, width = config.int("block"), config.int("width")
    blocks = math.ceil(dims["m"] / block) * math.ceil(dims["n"] / width)
    per_block = block * width / 512 * (1 + 6 / block + 12 / width) + 1.5
    return 3.0 + math.ceil(blocks / CORES) * per_block * (0.95 if config["stages"] == 2 else 1.0)


def predicted_us(config: Config, dims: Mapping[str, int]) -> float:
    """Predicted time: half as much again as the true one, and wrong by up to an eighth for each config."""
    wrong = zlib.crc32(config.key.encode()) % 1000 / 1000 - 0.5
    return 1.5 * true_us(config, dims) * math.exp(0.25 * wrong)


class RowsModel:
    version = "rows-1"

    def predict(self, kernels: Sequence[KernelProfile], target: Target, built: object = None) -> Prediction:
        config, dims = json.loads(kernels[0].notes[0])
        return Prediction(
            predicted_us(Config(config), dims), {}, "vector", {}, uncertainty=0.1, model=self.version
        )


class RowsExecutor(FakeExecutor):
    """Caches profiles of lowered configs, for all sizes. `factor(candidate)` slows kernels down."""

    def __init__(
        self,
        on_stage: Callable[[str, Config], Failure | None] | None = None,
        *,
        keeps: bool = True,
        factor: Callable[[Candidate], float] = lambda _: 1.0,
    ) -> None:
        super().__init__(on_stage)
        self._keeps, self._factor = keeps, factor
        self._seen: set[Config] = set()
        self.measured: list[tuple[Config, int]] = []
        self.built_for: list[Candidate] = []
        self.compared_at: list[int] = []

    def cached(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Profiled | Failure]]:
        for candidate in candidates:
            if self._keeps and candidate.config in self._seen:
                yield candidate, _profiled(candidate)

    def event(self, job: Job) -> Event:
        match job:
            case LowerJob(candidate):
                failure = self._stage("lower", candidate.config)
                if failure is None:
                    self._seen.add(candidate.config)
                return LowerDone(job, failure or _profiled(candidate))
            case BuildJob(candidate):
                self.built_for.append(candidate)
                failure = self._stage("build", candidate.config)
                return BuildDone(
                    job,
                    BuildResult(None, failure)
                    if failure
                    else BuildResult(f"/cache/{candidate.config}.so", entry="f"),
                )
            case MeasureJob(candidate, _):
                self.measured.append((candidate.config, candidate.workload.dims["m"]))
                failure = self._stage("measure", candidate.config)
                return MeasureDone(
                    job, Measurement(failure=failure) if failure else self._time(candidate), 0.1
                )
            case CompareJob(finalists):
                self.compared_at.append(finalists[0][0].workload.dims["m"])
                found = tuple(self._time(candidate) for candidate, _ in finalists)
                return CompareDone(job, Comparison(found, (Baseline("vendor", (1.0,)),)))

    def _time(self, candidate: Candidate) -> Measurement:
        time_us = true_us(candidate.config, candidate.workload.dims) * self._factor(candidate)
        return Measurement(tuple(time_us * (1 + 0.001 * (n % 3)) for n in range(12)), relative_error=0.0)


def _profiled(candidate: Candidate) -> Profiled:
    role = Role("all", 1, (Phase(Trips((4.0,)), Work(vector_ops=1.0), 1, is_loop=True),))
    note = json.dumps([dict(candidate.config), dict(candidate.workload.dims)])
    profile = KernelProfile("cpu", "native", (64, 1, 1), 1, 1, 0, (role,), (), notes=(note,))
    return Profiled((profile,), f"code-{candidate.config}", 0.01)
