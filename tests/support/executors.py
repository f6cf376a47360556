"""Support for tests of executors: candidates that harm their process, a source of jobs, local clusters."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.sample_kernels import Scale, ScaleTemplate
from tilesight.errors import Failure, FailureKind, ToolchainError
from tilesight.executor.jobs import (
    BuildDone,
    CompareDone,
    Event,
    Executor,
    Job,
    Lane,
    LowerDone,
    LowerJob,
    MeasureDone,
    lane_of,
)
from tilesight.executor.local import LocalExecutor
from tilesight.kernels import operator, template_for
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.records.protocol import MeasurementProtocol
from tilesight.target.spec import load_target

CPU = load_target("cpu")
USUAL = replace(MeasurementProtocol.named("default", CPU), warmup_ms=1.0, max_ms=30.0, max_samples=8)


@dataclass(frozen=True)
class Behaviour:
    """What a candidate does to its process, after it has written the process id to `note`."""

    name: str
    note: Path | None = None

    def act(self) -> None:
        if self.note is not None:
            written = self.note.with_suffix(
                ".writing"
            )  # the note appears complete: its process may then be killed at any moment
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
    name = "faulty_scale"  # by this name the bench keeps its inputs apart from those of `Scale`

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
    return Candidate(
        template.operator.workload("S0", "float32"), CPU, template, Config({"block": block, "fault": fault})
    )


def products(count: int) -> list[Candidate]:
    template = template_for("matmul", CPU, "float32")
    workload = operator("matmul").workload("m=64,n=64,k=64", "float32")
    return [
        Candidate(workload, CPU, template, config) for config in template.space(workload, CPU).sample(count)
    ]


class Queue:
    """A source of jobs, to which `follow` adds jobs after each event.

    It records the most jobs in progress, by lane.
    """

    def __init__(
        self, jobs: Iterable[Job], follow: Callable[[Event], Iterable[Job]] = lambda _event: ()
    ) -> None:
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
    """The outcome of each job, in the order of `jobs`."""
    found = {}
    for event in Queue(jobs).run(executor):
        match event:
            case LowerDone():
                found[id(event.job)] = event.outcome
            case BuildDone():
                found[id(event.job)] = event.result
            case MeasureDone():
                found[id(event.job)] = event.measurement
            case CompareDone():
                found[id(event.job)] = event.found
    return [found[id(job)] for job in jobs]


def kinds(outcomes: Iterable[Any]) -> list[FailureKind | None]:
    failures = [
        found if isinstance(found, Failure) else getattr(found, "failure", None) for found in outcomes
    ]
    return [failure.kind if failure else None for failure in failures]


def start_cluster() -> Any:
    pytest.importorskip("ray", reason="Ray is not installed")
    from ray.cluster_utils import Cluster

    # a killed node counts as gone after some 1 s instead of 15
    health = {"initial_delay_ms": 0, "period_ms": 300, "timeout_ms": 5000, "failure_threshold": 3}
    return Cluster(
        True,
        head_node_args={
            "num_cpus": 0,
            "include_dashboard": False,
            "object_store_memory": 80 << 20,
            "_system_config": {f"health_check_{name}": value for name, value in health.items()},
        },
    )


def add_node(cluster: Any, cache: Path, **options: Any) -> Any:
    """A node with a kernel cache of its own."""
    environment = {
        "TILESIGHT_CACHE_DIR": str(cache),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RAY_worker_niceness": "0",
    }
    return cluster.add_node(
        **{"num_cpus": 1, "object_store_memory": 80 << 20, "env_vars": environment, **options}
    )


def on_this_machine(cache: Path) -> LocalExecutor:
    return LocalExecutor(2, cache)


def on_cluster(address: str, cache: Path, **options: Any) -> Any:
    from tilesight.executor.ray import RayExecutor

    return RayExecutor(address, CPU, cache, **options)


def wait_until(holds: Callable[[], bool], seconds: float = 30.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "the condition did not come true in time"
        time.sleep(0.02)


def is_gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def lower_and_close(address: str, cache: str, note: str) -> None:
    made = on_cluster(address, Path(cache)) if address else on_this_machine(Path(cache))
    with made as executor:
        results(executor, LowerJob(candidate(FaultyToLower("none", Path(note)))))
