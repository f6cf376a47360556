"""The local executor alone; what every executor does is in tests/contract/test_executor.py."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.fakes import AxpyTemplate, profile_of
from tilesight.builder.build import build_kernel
from tilesight.errors import Failure, FailureKind
from tilesight.executor import tasks
from tilesight.executor.jobs import Lane, MeasureDone, MeasureJob, SingleLaneSource, lower_all
from tilesight.executor.local import LocalExecutor, is_cache_failure
from tilesight.kernels import operator, template_for
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult
from tilesight.target.spec import load_target

CPU = load_target("cpu")


class Unlowerable(AxpyTemplate):
    name = "unlowerable"

    def build(self, workload: Workload, config: Config) -> Any:
        raise RuntimeError("layout conflict")


def candidates(*blocks: int) -> list[Candidate]:
    template = Unlowerable()
    workload = template.operator.workload("X0")
    configs = [Config({"block": block, "stages": 1, "swizzle": True}) for block in blocks]
    return [Candidate(workload, CPU, template, config) for config in configs]


def test_items_are_drawn_as_workers_are_free(session_executor: LocalExecutor) -> None:
    drawn: list[int] = []

    def source() -> Any:
        for candidate in candidates(*[1] * 10):
            drawn.append(1)
            yield candidate

    outcomes = lower_all(session_executor, source())
    next(outcomes)
    assert len(drawn) <= 2
    outcomes.close()  # type: ignore[attr-defined]


def small_product() -> Candidate:
    template = template_for("matmul", CPU, "float32")
    workload = operator("matmul").workload("m=64,n=64,k=64", "float32")
    config = template.default_config(workload, CPU)
    assert config is not None
    return Candidate(workload, CPU, template, config)


def test_a_full_disk_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tilesight.builder.kernel_cache.KernelCache.store", full)
    failure = build_kernel(small_product(), tmp_path).failure
    assert failure is not None
    assert is_cache_failure(failure)


def test_a_kernel_that_does_not_compile_is_no_cache_failure() -> None:
    assert not is_cache_failure(
        Failure(FailureKind.BUILD_ERROR, "nvcc ended with exit code 2: error: no such thing")
    )


def test_a_profile_that_cannot_be_read_is_that_candidates_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesight.lowering.dynamic.lower_candidate", lambda *_, **__: None)
    monkeypatch.setattr("tilesight.lowering.dynamic.at", lambda lowered, _: lowered)
    monkeypatch.setattr("tilesight.costmodel.extract.read_profiles", lambda *_: 1 / 0)
    [candidate] = candidates(9)
    found = tasks.lower_and_profile(candidate)
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.PROFILE_ERROR


def test_only_a_gpu_can_be_too_small_for_a_kernel() -> None:
    nothing = [replace(profile_of(Config({"block": 1, "stages": 1, "swizzle": True})), roles=())]
    failure = tasks.fit_failure(nothing, load_target("h200"))
    assert failure is not None
    assert failure.kind is FailureKind.DOES_NOT_FIT
    assert "does nothing" in failure.message
    assert tasks.fit_failure(nothing, CPU) is None


def test_only_one_process_measures_on_a_processor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesight.executor.local.WAIT_NOTICE_S", 0.2)
    candidate = small_product()
    build = build_kernel(candidate, tmp_path)
    protocol = MeasurementProtocol.named("default", CPU)
    said: list[str] = []

    def hear(text: str) -> None:
        said.append(text)
        holder.send_signal(signal.SIGTERM)

    program = (
        "import time; from tilesight.machine.device_lock import PROCESSOR_LOCK, alone_on\n"
        "with alone_on(PROCESSOR_LOCK): print('held', flush=True); time.sleep(60)"
    )
    holder = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    with LocalExecutor(1, tmp_path, notice=hear) as executor:
        [done] = executor.stream(SingleLaneSource([MeasureJob(candidate, build, protocol)]))
    holder.wait()
    assert said == [f"waiting: process {holder.pid} measures on the processor (processor)"]
    assert isinstance(done, MeasureDone)
    assert done.measurement.failure is None


class Starting:
    """A pool whose worker has started after three looks."""

    count = 1

    def __init__(self) -> None:
        self.looks, self.taken = 3, 0

    @property
    def is_starting(self) -> bool:
        self.looks -= self.looks > 0
        return self.looks > 0

    waiting_for_gate = 0

    def room(self) -> int:
        return 1 - self.taken

    def submit(self, *_: object, **__: object) -> int:
        self.taken = 1
        return 1


def test_a_device_that_starts_takes_no_job_while_others_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job drawn then would be the first that was built, and not the best."""
    executor, device = LocalExecutor(1, tmp_path), Starting()
    monkeypatch.setattr(executor, "_alternates", False)
    monkeypatch.setitem(executor._pools, Lane.DEVICE, device)
    monkeypatch.setattr("tilesight.executor.local.wait_for", lambda *_: [])
    job = MeasureJob(small_product(), BuildResult("x.so"), MeasurementProtocol.named("default", CPU))
    running: dict[Any, Any] = {(Lane.PREPARE, 1): None}
    executor._draw(SingleLaneSource([job]), running)
    assert list(running) == [(Lane.PREPARE, 1)]
    assert executor._finished() == []
    executor._draw(SingleLaneSource([job]), running)
    assert running[Lane.DEVICE, 1] is job
