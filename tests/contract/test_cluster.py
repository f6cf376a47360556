"""A Ray cluster that loses processes and nodes: the remaining nodes do the work. Needs Ray."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.executors import (
    USUAL,
    FaultyToLower,
    Queue,
    add_node,
    candidate,
    kinds,
    on_cluster,
    products,
    results,
    start_cluster,
    wait_until,
)
from tests.support.sample_kernels import ScaleTemplate
from tilesight.errors import FailureKind, ToolchainError
from tilesight.executor.jobs import (
    BuildDone,
    BuildJob,
    Event,
    Job,
    Lane,
    LowerDone,
    LowerJob,
    MeasureDone,
    MeasureJob,
)
from tilesight.executor.ray import RayExecutor
from tilesight.executor.ray.ray_connection import RayConnection
from tilesight.files import file_hash
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult
from tilesight.target.spec import load_target

pytest.importorskip("ray", reason="Ray is not installed")
pytestmark = pytest.mark.full


class Nodes:
    """A cluster with a driver, nodes that tests share, and the messages of a test's executor about them."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._made = folder, 0
        self.nodes: list[Any] = []
        self._plain: list[Any] = []
        self.messages: list[str] = []
        self._start()

    def _start(self) -> None:
        self.cluster = start_cluster()
        # the executors use it: the processes that Ray has for a driver serve one after the other
        self._driver = RayConnection(self.cluster.address)

    def ready(self, count: int) -> Nodes:
        """Have so many nodes of one core; those that other tests left are taken."""
        if self.head.poll() is not None:
            self.close()
            self._start()
        kept = [node for node in self.nodes if node in self._plain][:count]
        for node in [node for node in self.nodes if node not in kept]:
            self.remove(node.node_id)
        for _ in range(count - len(kept)):
            self._plain.append(self.add(wait=False))
        wait_until(lambda: {row["NodeID"] for row in self._living()} == {node.node_id for node in self.nodes})
        self.messages.clear()
        return self

    def _living(self) -> list[Any]:
        head = self.cluster.head_node.node_id
        return [row for row in self._driver.ray.nodes() if row["Alive"] and row["NodeID"] != head]

    @property
    def head(self) -> Any:
        """The process without which the cluster is lost."""
        [found] = self.cluster.head_node.all_processes["gcs_server"]
        return found.process

    def add(self, **options: Any) -> Any:
        self._made += 1
        self.nodes.append(add_node(self.cluster, self._folder / f"node{self._made}", **options))
        return self.nodes[-1]

    def remove(self, node_id: str) -> None:
        """Remove a node as by a power failure, without a clean end of its processes."""
        [gone] = [node for node in self.nodes if node.node_id == node_id]
        self.nodes.remove(gone)
        self.cluster.remove_node(gone, allow_graceful=False)

    def executor(self) -> Any:
        return on_cluster(self.cluster.address, self._folder / "driver", message=self.messages.append)

    def close(self) -> None:
        self._driver.close()
        self.cluster.shutdown()
        self.nodes.clear()


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Nodes]:
    made = Nodes(tmp_path_factory.mktemp("nodes"))
    yield made
    made.close()


def measuring_node(executor: Any) -> str:
    [actor] = executor._actors.actors
    return str(actor.node.id)


def follow_to_the_end(event: Event) -> Iterator[Job]:
    match event:
        case LowerDone(job, _):
            yield BuildJob(job.candidate)
        case BuildDone(job, result) if result.failure is None:
            yield MeasureJob(job.candidate, result, USUAL)


def outcomes(events: list[Event]) -> list[tuple[str, FailureKind | None]]:
    found: list[tuple[str, FailureKind | None]] = []
    for event in events:
        outcome = (
            event.outcome
            if isinstance(event, LowerDone)
            else event.result
            if isinstance(event, BuildDone)
            else event.measurement
        )  # type: ignore[union-attr]
        found.append((type(event).__name__, kinds([outcome])[0]))
    return sorted(found, key=str)


ALL_WELL = sorted(
    [(kind, None) for kind in ("LowerDone", "BuildDone", "MeasureDone") for _ in range(4)], key=str
)


@pytest.mark.parametrize("lost", ["the one that measures", "one that builds"])
def test_a_node_that_dies_costs_no_job(lost: str, nodes: Nodes, capfd: pytest.CaptureFixture[str]) -> None:
    nodes.ready(2)
    seen: list[Event] = []
    first, later = products(8)[:4], products(8)[4:]

    def follow(event: Event) -> Iterator[Job]:
        seen.append(event)
        if isinstance(event, MeasureDone) and not any(isinstance(e, MeasureDone) for e in seen[:-1]):
            measuring = measuring_node(executor)
            builder = next(node.node_id for node in nodes.nodes if node.node_id != measuring)
            nodes.remove(measuring if lost == "the one that measures" else builder)
            yield from map(LowerJob, later)  # work is left, however fast the first jobs were
        yield from follow_to_the_end(event)

    with nodes.executor() as executor:
        capfd.readouterr()
        events = Queue(map(LowerJob, first), follow).run(executor)
        printed = capfd.readouterr()
    assert outcomes(events) == sorted(2 * ALL_WELL, key=str)
    assert [text for text in nodes.messages if "has gone; its work is given to others" in text]
    assert printed.out == printed.err == "", "Ray's own reports were printed"


def test_a_library_outlives_the_node_that_built_it(nodes: Nodes) -> None:
    built = candidate(block=512)  # no test before has left its library on a node
    with nodes.ready(2).executor() as executor:
        [build] = results(executor, BuildJob(built))
        executor.start(measures=True)
        builder = next(node.node_id for node in nodes.nodes if node.node_id != measuring_node(executor))
        nodes.remove(builder)
        [measurement] = results(executor, MeasureJob(built, build, USUAL))
        assert measurement.failure is None


def test_a_node_that_joins_later_is_used(nodes: Nodes) -> None:
    nodes.ready(1)

    def follow(_event: Event) -> Iterator[Job]:
        if len(nodes.nodes) == 1:
            nodes.add(num_cpus=2)
        if executor.width(Lane.PREPARE) < 2:  # until the new node has reported its facts
            yield LowerJob(candidate())

    with nodes.executor() as executor:
        assert executor.width(Lane.PREPARE) == 1
        Queue([LowerJob(candidate())], follow).run(executor)
        assert executor.width(Lane.PREPARE) == 2, "the first node only measures from now on"
        busy = Queue([LowerJob(candidate())] * 4)
        busy.run(executor)
        assert busy.most_out[Lane.PREPARE] == 2


def test_without_a_node_left_the_error_lists_the_cluster(
    nodes: Nodes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilesight.executor.ray.job_stream.NODES_TIMEOUT_S", 1.0)
    [only] = nodes.ready(1).nodes

    def follow(_event: Event) -> Iterator[Job]:
        nodes.remove(only.node_id)
        yield LowerJob(candidate())

    with (
        nodes.executor() as executor,
        pytest.raises(ToolchainError, match="no node has this machine's processor"),
    ):
        Queue([LowerJob(candidate())], follow).run(executor)


def test_the_process_of_each_device_sees_no_other_device(
    nodes: Nodes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fake driver tool lists two GPUs; without real ones the measurement itself fails."""
    tool = tmp_path / "bin" / "nvidia-smi"
    tool.parent.mkdir()
    rows = [f"{index}, NVIDIA H200, GPU-{index}{index}{index}, 580.1, 143771, Disabled" for index in range(2)]
    tool.write_text("#!/bin/sh\n" + "".join(f"echo '{row}'\n" for row in rows))
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tool.parent}{os.pathsep}{os.environ['PATH']}")
    nodes.ready(0).add(num_gpus=2)
    h200 = load_target("h200")
    with RayExecutor(
        nodes.cluster.address, h200, tmp_path / "driver", message=nodes.messages.append
    ) as executor:
        device = executor.placement.device
        assert device is not None
        assert (device.name, device.driver) == ("NVIDIA H200", "580.1")
        assert executor.software["driver"] == "580.1"
        assert executor.width(Lane.DEVICE) == 2
        executor.start(measures=True)
        executor._cluster.refresh()
        wait_until(lambda: all(devices(executor)))
        assert sorted(actor.device.uuid for actor in executor._actors.actors) == ["GPU-000", "GPU-111"]
        library = tmp_path / "driver" / "kernels" / f"{'0' * 24}.so"
        library.parent.mkdir(parents=True)
        library.write_bytes(b"a library")
        entry = {"resources": {}, "compiler": "nvcc", "binary": "", "sha256": file_hash(library)}
        library.with_suffix(".json").write_text(json.dumps(entry))
        note = tmp_path / "visible"
        job = MeasureJob(candidate(NotesVisibleGpus(note)), BuildResult(str(library)), MeasurementProtocol())
        with pytest.raises(ToolchainError):  # from the worker, which finds no GPU
            results(executor, MeasureJob(replace(job.candidate, target=h200), job.build, job.protocol))
        assert note.read_text() in ("GPU-000", "GPU-111")


def test_a_head_that_dies_ends_the_run(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesight.executor.ray.ray_connection.HEAD_TIMEOUT_S", 1.0)
    nodes.ready(1)

    def follow(_event: Event) -> Iterator[Job]:
        os.kill(nodes.head.pid, signal.SIGKILL)
        yield LowerJob(candidate(FaultyToLower("hang")))

    with (
        nodes.executor() as executor,
        pytest.raises(ToolchainError, match=r"its head is gone.* goes on from there"),
    ):
        Queue([LowerJob(candidate())], follow).run(executor)


def test_a_head_that_dies_during_a_request_is_lost(nodes: Nodes, monkeypatch: pytest.MonkeyPatch) -> None:
    nodes.ready(1)
    connection = RayConnection(nodes.cluster.address)
    assert {row["NodeID"] for row in connection.node_rows() or ()} >= {node.node_id for node in nodes.nodes}
    monkeypatch.setattr("tilesight.executor.ray.ray_connection.HEAD_TIMEOUT_S", 2.0)
    monkeypatch.setattr(RayConnection, "_has_head", lambda _: True)  # it answered just before
    os.kill(nodes.head.pid, signal.SIGKILL)
    nodes.head.wait()
    with pytest.raises(ToolchainError, match="its head is gone"), connection.guarded():
        connection.node_rows()


class NotesVisibleGpus(ScaleTemplate):
    """Writes the visible GPUs of the process that unpickles it to a file."""

    def __init__(self, note: Path) -> None:
        self.note = note

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self.note.write_text(os.environ.get("CUDA_VISIBLE_DEVICES", "all"))


def devices(executor: Any) -> list[Any]:
    ray = executor._connection.ray
    for reference in (
        ray.wait(list(executor._actors.pending), timeout=0)[0] if executor._actors.pending else []
    ):
        executor._actors.receive_device(reference)
    return [actor.device for actor in executor._actors.actors]
