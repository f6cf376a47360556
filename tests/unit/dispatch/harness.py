"""A dispatcher whose kernels are a few lines of C, without TileLang: y[m, n] = factor * x[m, n]."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from tests.unit.database.samples import empty_database
from tilesight.builder.build import ENTRY
from tilesight.database import Store, open_store
from tilesight.dispatch.background_thread import BackgroundThread
from tilesight.dispatch.dispatcher import Dispatcher
from tilesight.dispatch.improve.explore import find_choice
from tilesight.dispatch.improve.improver import Improver
from tilesight.dispatch.improve.tuning_setup import TuningSetup
from tilesight.dispatch.kernels.kernel_builder import KernelBuilder
from tilesight.dispatch.misses import MissLog
from tilesight.dispatch.on_miss import on_miss_named
from tilesight.dispatch.on_unknown import OnUnknown
from tilesight.dispatch.problem import DispatchProblem, make_problem
from tilesight.dispatch.select.cached_predictor import CachedPredictor
from tilesight.dispatch.select.choice import Choice
from tilesight.dispatch.select.loaded_sources import LoadedSources
from tilesight.dispatch.select.selector import Selector
from tilesight.dispatch.select.winner_index import WinnerIndex
from tilesight.dispatch.shape_table import ShapeTable
from tilesight.dispatch.table.table_file import DispatchTable
from tilesight.errors import Failure, FailureKind, WorkloadError
from tilesight.executor.jobs import (
    BuildDone,
    BuildJob,
    CompareDone,
    CompareJob,
    Event,
    JobSource,
    Lane,
    LowerDone,
    LowerJob,
)
from tilesight.machine.placement import Placement
from tilesight.problem.axes import Axes
from tilesight.problem.candidate import Candidate
from tilesight.problem.operator import Operator, Tensors
from tilesight.problem.space import Config, Constraint, Parameter, SearchSpace
from tilesight.problem.template import KernelTemplate
from tilesight.problem.workload import Workload
from tilesight.profile.parametric import ParametricProfile, ProfileKey
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.session import Comparison, Decision
from tilesight.records.trial import BuildResult, Measurement, Prediction
from tilesight.records.winners import Miss, Winner
from tilesight.target.spec import Target, load_target

BLOCKS = (8, 16, 32, 64)
SOURCE = """
#include <stdint.h>
extern "C" int tilesight_arity(void) { return 2; }
extern "C" int tilesight_sizes(void) { return %(sizes)d; }
extern "C" int tilesight_init(void) { return 0; }
extern "C" void tilesight_unload(void) {}
extern "C" const char *tilesight_error(void) { return "the kernel refused"; }
extern "C" int tilesight_call(void **a, void *) {
  const float *x = (const float *)a[0];
  float *y = (float *)a[1];
  int64_t m = %(m)s;
  for (int64_t i = 0; i < m * %(n)d; ++i) y[i] = x[i] * %(factor)s;
  return %(status)d;
}
"""


class Scaling(Operator):
    name = "scaling"
    dims = ("m", "n")
    attrs: ClassVar[Mapping[str, bool | int]] = {"factor": 3}
    dtypes = ("float32",)
    axes: ClassVar[Axes] = {"x": ("m", "n"), "y": ("m", "n")}
    named: ClassVar[Mapping[str, Mapping[str, bool | int]]] = {"S": {"m": 8, "n": 4}}
    default_names = ("S",)

    def validate(self, workload: Workload) -> None:
        if workload.dims["m"] > 5000:
            raise WorkloadError(f"scaling: m={workload.dims['m']} exceeds 5000; split it")

    def inputs(self, workload: Workload, device: str, seed: int) -> dict[str, Any]:
        import torch

        return {"x": torch.randn(workload.dims["m"], workload.dims["n"])}

    def outputs(self, workload: Workload) -> dict[str, tuple[int, ...]]:
        return {"y": (workload.dims["m"], workload.dims["n"])}

    def reference(self, workload: Workload, inputs: Tensors) -> dict[str, Any]:
        return {"y": inputs["x"] * workload.attrs["factor"]}

    def vendor(self, workload: Workload, inputs: Tensors) -> dict[str, Callable[[], object]]:
        return {}

    def flops(self, workload: Workload) -> int:
        return workload.dims["m"] * workload.dims["n"]

    def min_bytes(self, workload: Workload) -> int:
        return 8 * workload.dims["m"] * workload.dims["n"]

    def max_relative_error(self, workload: Workload) -> float:
        return 1e-6


class ScalingTemplate(KernelTemplate):
    """Blocks of at most m rows; `fault=load` builds a broken library, `fault=refuse` a kernel that fails."""

    operator = Scaling()
    name = "scaling"
    target_kinds = ("cpu", "cuda")
    dtypes = ("float32",)
    dynamic_dims = ("m",)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        m = workload.dims["m"]

        def beyond(config: Config) -> str | None:
            block = config.int("block_m")
            return None if block <= max(8, m) else f"block_m={block} exceeds m={m}; take at most {max(8, m)}"

        faults = ("none", "build", "load", "refuse")
        return SearchSpace(
            [Parameter("block_m", BLOCKS), Parameter("fault", faults)],
            [Constraint("within", beyond, is_waste=True)],
        )

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        return config(8)

    def build(self, workload: Workload, config: Config) -> Any:
        raise AssertionError("the executor of the harness builds these kernels")


def config(block: int, fault: str = "none") -> Config:
    return Config({"block_m": block, "fault": fault})


class FakeModel:
    version = "fake"

    def predict(
        self, kernels: Sequence[Any], target: Target, built: Mapping[str, int] | None = None
    ) -> Prediction:
        return Prediction(1.0, {}, "nothing")


@dataclass
class FakeStore:
    """The database of a dispatcher, in memory."""

    known: list[Winner] = field(default_factory=list)
    misses: list[Miss] = field(default_factory=list)
    failure: Exception | None = None

    def winners(self, context: Any, fixed: Mapping[str, int], *, any_dynamic: bool = False) -> list[Winner]:
        return self.known

    def record_misses(self, misses: Iterable[Miss]) -> None:
        if self.failure is not None:
            raise self.failure
        self.misses += misses

    def cached_profiles(self, key: ProfileKey) -> list[ParametricProfile]:
        return []

    def cache_profiles(self, key: ProfileKey, profiles: Iterable[ParametricProfile]) -> None:
        raise AssertionError("a dispatcher caches no profiles")


@dataclass
class CExecutor:
    """Builds the C code, and returns `times_us` by block as measured times, else 10 us."""

    folder: Path
    built: list[Candidate] = field(default_factory=list)
    compared: list[list[Candidate]] = field(default_factory=list)
    times_us: dict[int, float] = field(default_factory=dict)
    hold: Any = None  # an event for which builds wait
    closed: int = 0

    def stream(self, source: JobSource) -> Generator[Event]:
        for lane in Lane:
            while (job := source.next(lane)) is not None:
                if isinstance(job, BuildJob):
                    yield BuildDone(job, self._build(job.candidate))
                elif isinstance(job, CompareJob):
                    yield CompareDone(job, self._compare(job))
                elif isinstance(job, LowerJob):
                    yield LowerDone(job, Failure(FailureKind.LOWER_ERROR, "not here"))

    def width(self, lane: Lane) -> int:
        return 1

    def cached(self, candidates: Iterable[Candidate]) -> Iterator[Any]:
        return iter(())

    def close(self) -> None:
        self.closed += 1

    def _build(self, candidate: Candidate) -> BuildResult:
        if self.hold is not None:
            self.hold.wait(10)
        self.built.append(candidate)
        fault, dims = candidate.config.str("fault"), candidate.workload.dims
        if fault == "build":
            return BuildResult(None, Failure(FailureKind.BUILD_ERROR, "it does not compile"))
        path = self.folder / "kernels" / f"{len(self.built)}-{candidate.config['block_m']}-{fault}.so"
        path.parent.mkdir(exist_ok=True)
        if fault == "load":
            path.write_text("no library")
            return BuildResult(str(path), None, ENTRY)
        m = "(int64_t)a[2]" if candidate.dynamic else str(dims["m"])
        parts = {
            "m": m,
            "sizes": len(candidate.dynamic),
            "n": dims["n"],
            "factor": candidate.workload.attrs["factor"],
        }
        text = SOURCE % {**parts, "status": 7 if fault == "refuse" else 0}
        command = ["g++", "-O1", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
        subprocess.run(command, input=text.encode(), check=True)
        return BuildResult(str(path), None, ENTRY)

    def _compare(self, job: CompareJob) -> Comparison:
        candidates = [candidate for candidate, _ in job.finalists]
        self.compared.append(candidates)
        times = [self.times_us.get(candidate.config.int("block_m"), 10.0) for candidate in candidates]
        least = min(times)
        winner = candidates[times.index(least)].config
        tied = tuple(
            c.config
            for c, us in zip(candidates, times, strict=True)
            if us <= least * 1.005 and c.config != winner
        )
        measured = tuple(Measurement((us,) * 3, relative_error=0.0) for us in times)
        return Comparison(measured, (), (), Decision(winner, tied, "as the formula says"))


@dataclass
class Harness:
    """A dispatcher and its parts. `recorded`: the database in which it explores and compares."""

    d: Dispatcher
    problem: DispatchProblem
    shapes: ShapeTable
    store: FakeStore
    executor: CExecutor
    recorded: Store

    def winner(
        self, m: int, block: int, us: float = 10.0, dynamic_dims: tuple[str, ...] = (), fault: str = "none"
    ) -> Winner:
        return Winner(self.problem.workload((m,)), config(block, fault), us, dynamic_dims)


def make_harness(
    folder: Path,
    *,
    dynamic: Sequence[str] = (),
    on_miss: str = "wait",
    explore: bool = False,
    background: bool = False,
    table: DispatchTable | None = None,
    attrs: Mapping[str, bool | int] | None = None,
    target: str = "cpu",
    on_unknown: OnUnknown | None = None,
    winners: Callable[[Harness], list[Winner]] | None = None,
) -> Harness:
    problem = make_problem(ScalingTemplate(), load_target(target), "float32", attrs or {}, {"n": 4}, dynamic)
    store, executor, model = FakeStore(), CExecutor(folder), FakeModel()
    builds, comparisons = BackgroundThread(lambda: executor), BackgroundThread(lambda: executor)
    recorded = open_store(empty_database(folder / "recorded.db"))
    protocol = MeasurementProtocol.named("default", problem.target)
    setup = TuningSetup(Placement(problem.target), protocol, model, recorded)

    def explore_shape(selector: Selector, workload: Workload) -> Choice | None:
        return builds.submit(partial(find_choice, selector, setup, workload)).result()

    predictor = CachedPredictor(problem, store, model)
    explored = explore_shape if explore else None
    sources = LoadedSources(WinnerIndex(problem), table)
    selector = Selector(problem, sources, predictor, explored, on_unknown=on_unknown)
    builder = KernelBuilder(problem, folder, {"tilelang": "0"}, builds)
    improver = Improver(selector, builder, setup, comparisons, background)
    misses = MissLog(store, target, "a processor", "scaling")
    shapes = ShapeTable(selector, builder, improver, misses, on_miss_named(on_miss))
    d = Dispatcher(shapes, lambda: LoadedSources(WinnerIndex(problem, store.known), table), recorded.close)
    made = Harness(d, problem, shapes, store, executor, recorded)
    if winners is not None:
        store.known = winners(made)
        d.reload()
    return made
