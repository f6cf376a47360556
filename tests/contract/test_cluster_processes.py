"""Ray's own processes are killed while their jobs run; the nodes stay. Needs Ray."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.executors import (
    USUAL,
    FaultyInputs,
    FaultyToLower,
    FaultyToRun,
    candidate,
    kinds,
    on_cluster,
    results,
    wait_until,
)
from tilesight.errors import FailureKind, ToolchainError
from tilesight.executor.jobs import BuildJob, Job, LowerJob, MeasureJob
from tilesight.executor.ray import RayExecutor
from tilesight.target.spec import load_target

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def shared(cluster: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """An executor on two nodes that stay during all tests."""
    with on_cluster(cluster, tmp_path_factory.mktemp("driver")) as executor:
        yield executor


@pytest.mark.parametrize("of", ["a build", "a device"])
def test_a_killed_process_of_ray_costs_no_job(of: str, shared: Any, tmp_path: Path) -> None:
    note = tmp_path / "killed"
    [build] = results(shared, BuildJob(candidate()))
    job: Job = (
        BuildJob(candidate(KillsItsRayProcess(note, times=1), block=256))
        if of == "a build"
        else MeasureJob(candidate(KillsWhenRun(note, times=1)), build, USUAL)
    )
    [found] = results(shared, job)
    assert found.failure is None
    assert len(note.read_text().split()) > 1, "the job was not retried"


def test_a_candidate_that_kills_its_process_twice_has_failed(shared: Any, tmp_path: Path) -> None:
    note = tmp_path / "killed"
    guilty, innocent = results(
        shared, LowerJob(candidate(KillsItsRayProcess(note, times=99))), LowerJob(candidate())
    )
    assert kinds([guilty, innocent]) == [FailureKind.LOWER_CRASH, None]
    assert "2 times" in guilty.message
    assert len(note.read_text().split()) == 2


def test_a_cluster_without_the_device_is_refused_at_once(cluster: str, tmp_path: Path) -> None:
    with pytest.raises(
        ToolchainError, match=r"no node has a GPU of target h200 \(NVIDIA H200\); it has: .*1 CPU;"
    ):
        RayExecutor(cluster, load_target("h200"), tmp_path)


def kill_ray_process(note: Path, times: int) -> None:
    """Kill the process of Ray above this worker, the first `times` times."""
    before = note.read_text().split() if note.exists() else []
    note.write_text(" ".join([*before, "x"]))
    if len(before) >= times:
        return
    pid = os.getpid()
    while not Path(f"/proc/{pid}/comm").read_text().startswith("ray::"):
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(pid, signal.SIGKILL)
    wait_until(lambda: False)  # this worker ends with it


class KillsItsRayProcess(FaultyToLower):
    def __init__(self, note: Path, times: int) -> None:
        super().__init__("none")
        self.kill = note, times

    def build(self, workload: Any, config: Any) -> Any:
        kill_ray_process(*self.kill)
        return super().build(workload, config)


class KillsWhenRun(FaultyToRun):
    def __init__(self, note: Path, times: int) -> None:
        super().__init__("none")
        self.operator = KillingInputs(note, times, self.operator.behaviour)


class KillingInputs(FaultyInputs):
    name = "killing_scale"

    def __init__(self, note: Path, times: int, behaviour: Any) -> None:
        super().__init__(behaviour)
        self.kill = note, times

    def inputs(self, workload: Any, device: str, seed: int) -> Any:
        kill_ray_process(*self.kill)
        return super().inputs(workload, device, seed)
