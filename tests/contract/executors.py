"""What the tests of executors share: candidates that do harm to their process, a source of jobs, clusters of this machine."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from sample_kernels import Scale, ScaleTemplate

from tilesight.candidate import Candidate
from tilesight.errors import Failure, FailureKind, ToolchainError
from tilesight.executor import LocalExecutor
from tilesight.kernels import operator, template_for
from tilesight.protocol import Protocol
from tilesight.space import Config
from tilesight.target import load_target
from tilesight.work import Built, Compared, Event, Executor, Job, Lane, Lower, Lowered, Measured, lane_of
from tilesight.workload import Workload

CPU = load_target("cpu")
USUAL = replace(Protocol.named("default", CPU), warmup_ms=1.0, max_ms=30.0, max_samples=8)


@dataclass(frozen=True)
class Behaviour:
    """What a candidate does to the process that handles it, after it has written the process's id down."""

    name: str
    note: Path | None = None

    def act(self) -> None:
        if self.note is not None:
            written = self.note.with_suffix(".writing")  # the process may be killed as soon as the note is there: it is there whole
            written.write_text(str(os.getpid()))
            written.replace(self.note)
        if self.name == "abort":
            os.abort()
        if self.name == "raise":
            raise RuntimeError("layout conflict")
        if self.name == "no device":
            raise ToolchainError("no device of that target is here")
        while self.name == "hang":
            time.sleep(0.01)


class FaultyToLower(ScaleTemplate):
    def __init__(self, behaviour: str, note: Path | None = None) -> None:
        self.behaviour = Behaviour(behaviour, note)

    def build(self, workload: Workload, config: Config) -> Any:
        self.behaviour.act()
        return super().build(workload, config)


class FaultyInputs(Scale):
    name = "faulty_scale"  # inputs of another operator would be kept for it

    def __init__(self, behaviour: Behaviour) -> None:
        self.behaviour = behaviour

    def inputs(self, workload: Workload, device: str, seed: int) -> Any:
        self.behaviour.act()
        return super().inputs(workload, device, seed)


class FaultyToRun(ScaleTemplate):
    def __init__(self, behaviour: str, note: Path | None = None) -> None:
        self.operator = FaultyInputs(Behaviour(behaviour, note))


def candidate(template: ScaleTemplate | None = None, block: int = 128, fault: str = "none") -> Candidate:
    template = template or ScaleTemplate()
    return Candidate(template.operator.workload("S0", "float32"), CPU, template, Config({"block": block, "fault": fault}))


def products(count: int) -> list[Candidate]:
    template = template_for("matmul", CPU, "float32")
    workload = operator("matmul").workload("m=64,n=64,k=64", "float32")
    return [Candidate(workload, CPU, template, config) for config in template.space(workload, CPU).sample(count)]


class Queue:
    """A source of jobs; `follow` names those that an event brings. It notes how many were out at once, by lane."""

    def __init__(self, jobs: Iterable[Job], follow: Callable[[Event], Iterable[Job]] = lambda _event: ()) -> None:
        self._waiting: dict[Lane, list[Job]] = {lane: [] for lane in Lane}
        self._follow = follow
        self.drawn = 0
        self.out = dict.fromkeys(Lane, 0)
        self.most_out = dict.fromkeys(Lane, 0)
        self._add(jobs)

    def next(self, lane: Lane) -> Job | None:
        if not self._waiting[lane]:
            return None
        self.drawn += 1
        self.out[lane] += 1
        self.most_out[lane] = max(self.most_out[lane], self.out[lane])
        return self._waiting[lane].pop(0)

    def run(self, executor: Executor) -> list[Event]:
        events = []
        for event in executor.stream(self):
            self.out[lane_of(event.job)] -= 1
            events.append(event)
            self._add(self._follow(event))
        return events

    def _add(self, jobs: Iterable[Job]) -> None:
        for job in jobs:
            self._waiting[lane_of(job)].append(job)


def results(executor: Executor, *jobs: Job) -> list[Any]:
    """What came of each job, in their order."""
    found = {}
    for event in Queue(jobs).run(executor):
        match event:
            case Lowered():
                found[id(event.job)] = event.outcome
            case Built():
                found[id(event.job)] = event.result
            case Measured():
                found[id(event.job)] = event.measurement
            case Compared():
                found[id(event.job)] = event.found
    return [found[id(job)] for job in jobs]


def kinds(outcomes: Iterable[Any]) -> list[FailureKind | None]:
    failures = [found if isinstance(found, Failure) else getattr(found, "failure", None) for found in outcomes]
    return [failure.kind if failure else None for failure in failures]


def start_cluster() -> Any:
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    return Cluster(True, head_node_args={"num_cpus": 0, "include_dashboard": False, "object_store_memory": 80 << 20})


def add_node(cluster: Any, cache: Path, **options: Any) -> Any:
    """One that has only its kernel cache for itself."""
    environment = {"TILESIGHT_CACHE_DIR": str(cache), "PYTHONPATH": os.pathsep.join(sys.path), "RAY_worker_niceness": "0"}
    return cluster.add_node(**{"num_cpus": 1, "object_store_memory": 80 << 20, "env_vars": environment, **options})


def on_this_machine(cache: Path) -> LocalExecutor:
    return LocalExecutor(2, cache)


def on_cluster(address: str, cache: Path, **options: Any) -> Any:
    from tilesight.distributed import RayExecutor

    return RayExecutor(address, CPU, cache, **options)


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def lower_and_close(address: str, cache: str, note: str) -> None:
    made = on_cluster(address, Path(cache)) if address else on_this_machine(Path(cache))
    with made as executor:
        results(executor, Lower(candidate(FaultyToLower("none", Path(note)))))
