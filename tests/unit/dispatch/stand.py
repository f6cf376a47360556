"""A dispatcher whose kernels are a few lines of C: y[m, n] = factor * x[m, n] on the processor, without TileLang."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from tilesight.axes import Axes
from tilesight.build import ENTRY
from tilesight.candidate import Candidate
from tilesight.database import Store, open_store
from tilesight.dispatch.builds import BuiltIndex
from tilesight.dispatch.dispatcher import Dispatcher
from tilesight.dispatch.forecast import Forecaster
from tilesight.dispatch.improve import Grounds
from tilesight.dispatch.misses import Misses
from tilesight.dispatch.problem import Problem, problem_of
from tilesight.dispatch.records import Records
from tilesight.dispatch.selector import Selector
from tilesight.dispatch.service import Background, Service
from tilesight.dispatch.supply import Supply, on_miss_of
from tilesight.dispatch.table import DispatchTable
from tilesight.dispatch.workshop import Workshop
from tilesight.errors import Failure, FailureKind, WorkloadError
from tilesight.families import FamilyKey, ProfileFamily
from tilesight.known import Known, Miss
from tilesight.protocol import Protocol
from tilesight.session import Comparison, Decision
from tilesight.space import Config, Constraint, Parameter, SearchSpace
from tilesight.target import Target, load_target
from tilesight.template import KernelTemplate, Operator, Tensors
from tilesight.trial import BuildResult, Measurement, Prediction
from tilesight.where import Where
from tilesight.work import Build, Built, Compare, Compared, Event, Lane, Lower, Lowered, Source
from tilesight.workload import Workload

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
    """Blocks of rows, not beyond m; `fault=load` builds a file that is no library, `fault=refuse` a kernel that fails."""

    operator = Scaling()
    name = "scaling"
    target_kinds = ("cpu", "cuda")
    dtypes = ("float32",)
    openable = ("m",)

    def space(self, workload: Workload, target: Target) -> SearchSpace:
        m = workload.dims["m"]

        def beyond(config: Config) -> str | None:
            block = config.int("block_m")
            return None if block <= max(8, m) else f"block_m={block} exceeds m={m}; take at most {max(8, m)}"

        faults = ("none", "build", "load", "refuse")
        return SearchSpace([Parameter("block_m", BLOCKS), Parameter("fault", faults)], [Constraint("within", beyond, is_waste=True)])

    def default_config(self, workload: Workload, target: Target) -> Config | None:
        return config(8)

    def build(self, workload: Workload, config: Config) -> Any:
        raise AssertionError("kernels of the stand are built by its executor")


def config(block: int, fault: str = "none") -> Config:
    return Config({"block_m": block, "fault": fault})


class FakeModel:
    version = "fake"

    def predict(self, kernels: Sequence[Any], target: Target, built: Mapping[str, int] | None = None) -> Prediction:
        return Prediction(1.0, {}, "nothing")


@dataclass
class StandStore:
    """What a dispatcher asks of the database."""

    known: list[Known] = field(default_factory=list)
    misses: list[Miss] = field(default_factory=list)
    failure: Exception | None = None

    def winners(self, context: Any, fixed: Mapping[str, int], *, any_open: bool = False) -> list[Known]:
        return self.known

    def record_misses(self, misses: Iterable[Miss]) -> None:
        if self.failure is not None:
            raise self.failure
        self.misses += misses

    def kept_families(self, key: FamilyKey) -> list[ProfileFamily]:
        return []

    def keep_families(self, key: FamilyKey, families: Iterable[ProfileFamily]) -> None:
        raise AssertionError("a dispatcher keeps no profiles")


@dataclass
class StandExecutor:
    """Builds the C, and times kernels by a formula: `times_us` by block, 10 us where nothing is said."""

    folder: Path
    built: list[Candidate] = field(default_factory=list)
    compared: list[list[Candidate]] = field(default_factory=list)
    times_us: dict[int, float] = field(default_factory=dict)
    hold: Any = None  # an event that builds wait for
    closed: int = 0

    def stream(self, source: Source) -> Generator[Event]:
        for lane in Lane:
            while (job := source.next(lane)) is not None:
                if isinstance(job, Build):
                    yield Built(job, self._build(job.candidate))
                elif isinstance(job, Compare):
                    yield Compared(job, self._compare(job))
                elif isinstance(job, Lower):
                    yield Lowered(job, Failure(FailureKind.LOWER_ERROR, "not here"))

    def width(self, lane: Lane) -> int:
        return 1

    def kept(self, candidates: Iterable[Candidate]) -> Iterator[Any]:
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
        path = self.folder / f"{len(self.built)}-{candidate.config['block_m']}-{fault}.so"
        if fault == "load":
            path.write_text("no library")
            return BuildResult(str(path), None, ENTRY)
        m = "(int64_t)a[2]" if candidate.open else str(dims["m"])
        parts = {"m": m, "sizes": len(candidate.open), "n": dims["n"], "factor": candidate.workload.attrs["factor"]}
        text = SOURCE % {**parts, "status": 7 if fault == "refuse" else 0}
        command = ["g++", "-O1", "-shared", "-fPIC", "-x", "c++", "-", "-o", str(path)]
        subprocess.run(command, input=text.encode(), check=True)
        return BuildResult(str(path), None, ENTRY)

    def _compare(self, job: Compare) -> Comparison:
        candidates = [candidate for candidate, _ in job.finalists]
        self.compared.append(candidates)
        times = [self.times_us.get(candidate.config.int("block_m"), 10.0) for candidate in candidates]
        least = min(times)
        winner = candidates[times.index(least)].config
        tied = tuple(c.config for c, us in zip(candidates, times, strict=True) if us <= least * 1.005 and c.config != winner)
        measured = tuple(Measurement((us,) * 3, relative_error=0.0) for us in times)
        return Comparison(measured, (), (), Decision(winner, tied, "as the formula says"))


class StandTools:
    def __init__(self, executor: StandExecutor) -> None:
        self.executor = executor

    def close(self) -> None:
        self.executor.close()


@dataclass
class Stand:
    """A dispatcher and what stands around it. `recorded`: the database of what it explores and compares."""

    d: Dispatcher
    problem: Problem
    supply: Supply
    service: Service
    store: StandStore
    executor: StandExecutor
    recorded: Store

    def known(self, m: int, block: int, us: float = 10.0, open_dims: tuple[str, ...] = (), fault: str = "none") -> Known:
        return Known(self.problem.workload((m,)), config(block, fault), us, open_dims)


def stand(
    folder: Path,
    *,
    dynamic: Sequence[str] = (),
    on_miss: str = "wait",
    explore: bool = False,
    background: bool = False,
    table: DispatchTable | None = None,
    attrs: Mapping[str, bool | int] | None = None,
    target: str = "cpu",
    known: Callable[[Stand], list[Known]] | None = None,
) -> Stand:
    problem = problem_of(ScalingTemplate(), load_target(target), "float32", attrs or {}, {"n": 4}, dynamic)
    store, executor = StandStore(), StandExecutor(folder)
    forecaster = Forecaster(problem, store, FakeModel())

    def workshop() -> Workshop:
        return Workshop(lambda: StandTools(executor))  # type: ignore[arg-type, return-value]

    index = BuiltIndex(folder, problem.target, {"tilelang": "0"})
    recorded = open_store(f"sqlite:///{folder}/recorded.db")
    grounds = Grounds(Where(problem.target), Protocol.named("default", problem.target), FakeModel(), recorded)
    selector = Selector(problem, Records(problem), forecaster, table)
    supply = Supply(problem, selector, index, workshop(), grounds, on_miss_of(on_miss), explore)
    misses = Misses(store, target, "a processor", "scaling")
    services: list[Service] = []

    def service(switched: Callable[[], None]) -> Service:
        services.append(Service(supply, misses, Background(workshop(), grounds, background), switched))
        return services[-1]

    d = Dispatcher(service, lambda: Records(problem, store.known), recorded.close)
    made = Stand(d, problem, supply, services[0], store, executor, recorded)
    if known is not None:
        store.known = known(made)
        d.refresh()
    return made
