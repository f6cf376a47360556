"""Real worker processes: what candidates do wrong is their own outcome, what the machine lacks ends the run."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.fakes import AxpyTemplate, profile_of
from tilesight import jobs
from tilesight.build import build_kernel
from tilesight.candidate import Candidate
from tilesight.errors import Failure, FailureKind, ToolchainError
from tilesight.executor import LocalExecutor, blames_the_cache
from tilesight.jobs import Profiled
from tilesight.kernels import operator, template_for
from tilesight.protocol import Protocol
from tilesight.session import Comparison
from tilesight.space import Config
from tilesight.target import load_target
from tilesight.work import Build, Built, Compare, Compared, Event, Job, Measure, Measured, OneLane, lower_all
from tilesight.workers import TimeLimit
from tilesight.workload import Workload

CPU = load_target("cpu")


class Faulty(AxpyTemplate):
    """Does to its process what the block size says."""

    name = "faulty"

    def build(self, workload: Workload, config: Config) -> Any:
        match config["block"]:
            case 1:
                raise RuntimeError("layout conflict")
            case 2:
                os.abort()
            case 3:
                os.kill(os.getpid(), signal.SIGKILL)
            case 4:
                while True:
                    pass
            case 5:
                raise ToolchainError("no device of that target is here")
        return "not a PrimFunc"


def candidates(template: AxpyTemplate, *blocks: int) -> list[Candidate]:
    workload = template.operator.workload("X0")
    return [Candidate(workload, CPU, template, Config({"block": b, "stages": 1, "swizzle": True})) for b in blocks]


def done(executor: LocalExecutor, *jobs: Job) -> list[Event]:
    return list(executor.stream(OneLane(jobs)))


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalExecutor]:
    """One for many tests: its processes import TileLang once."""
    with LocalExecutor(1, tmp_path_factory.mktemp("cache")) as made:
        yield made


def test_faults_while_lowering_are_outcomes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("tilesight.executor.TimeLimit", lambda _first_s, **_: TimeLimit(5.0, floor_s=5.0))
    with LocalExecutor(2, tmp_path) as executor:
        found = {c.config["block"]: outcome for c, outcome in lower_all(executor, candidates(Faulty(), 4, 1, 2, 3))}
    kinds = {block: outcome.kind for block, outcome in found.items() if isinstance(outcome, Failure)}
    assert kinds == {
        1: FailureKind.LOWER_ERROR,
        2: FailureKind.LOWER_CRASH,
        3: FailureKind.LOWER_CRASH,
        4: FailureKind.LOWER_TIMEOUT,
    }
    assert "layout conflict" in found[1].message  # type: ignore[union-attr]
    assert "SIGABRT" in found[2].message  # type: ignore[union-attr]


def test_crash_while_building_is_a_failed_build(executor: LocalExecutor) -> None:
    [event] = done(executor, Build(candidates(Faulty(), 2)[0]))
    assert isinstance(event, Built)
    assert event.result.failure is not None
    assert event.result.failure.kind is FailureKind.BUILD_CRASH


def test_a_machine_without_the_device_ends_the_run(executor: LocalExecutor) -> None:
    with pytest.raises(ToolchainError, match="no device of that target"):
        list(lower_all(executor, candidates(Faulty(), 5)))


def test_items_are_drawn_as_workers_are_free(executor: LocalExecutor) -> None:
    drawn: list[int] = []

    def source() -> Any:
        for candidate in candidates(Faulty(), *[1] * 10):
            drawn.append(1)
            yield candidate

    outcomes = lower_all(executor, source())
    next(outcomes)
    assert len(drawn) <= 2
    outcomes.close()  # type: ignore[attr-defined]


def small_product() -> Candidate:
    template = template_for("matmul", CPU, "float32")
    workload = operator("matmul").workload("m=64,n=64,k=64", "float32")
    config = template.default_config(workload, CPU)
    assert config is not None
    return Candidate(workload, CPU, template, config)


def test_an_unusable_kernel_cache_ends_the_run(tmp_path: Path) -> None:
    taken = tmp_path / "taken"
    taken.write_text("a file where the folder should be")
    with LocalExecutor(1, taken) as executor, pytest.raises(ToolchainError, match="set TILESIGHT_CACHE_DIR"):
        done(executor, Build(small_product()))


def test_a_full_disk_ends_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("tilesight.building.cache.KernelCache.store", full)
    failure = build_kernel(small_product(), tmp_path).failure
    assert failure is not None
    assert blames_the_cache(failure)


def test_a_kernel_that_does_not_compile_does_not() -> None:
    assert not blames_the_cache(Failure(FailureKind.BUILD_ERROR, "nvcc ended with exit code 2: error: no such thing"))


def test_lowers_profiles_builds_and_measures(executor: LocalExecutor) -> None:
    protocol = Protocol.named("default", CPU)
    candidate = small_product()
    [(_, lowered)] = lower_all(executor, [candidate])
    assert isinstance(lowered, Profiled)
    assert lowered.kernels[0].kind == "cpu"
    assert len(lowered.fingerprint) == 16
    [built] = done(executor, Build(candidate))
    assert isinstance(built, Built)
    [found] = done(executor, Measure(candidate, built.result, protocol))
    assert isinstance(found, Measured)
    assert found.measurement.failure is None
    assert found.measurement.relative_error is not None
    assert found.measurement.protocol == protocol.record()
    assert found.device_seconds > 0
    [compared] = done(executor, Compare(((candidate, built.result),), protocol))
    assert isinstance(compared, Compared)
    assert isinstance(compared.found, Comparison)
    assert len(compared.found.measurements) == 1
    assert compared.found.baselines
    assert compared.found.decision is not None
    assert compared.found.decision.winner == candidate.config


def test_a_profile_that_cannot_be_read_is_that_candidates_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tilesight.open_dims.lower_candidate", lambda *_: None)
    monkeypatch.setattr("tilesight.open_dims.at", lambda lowered, _: lowered)
    monkeypatch.setattr("tilesight.costmodel.profile.read_profiles", lambda *_: 1 / 0)
    [candidate] = candidates(Faulty(), 9)
    found = jobs.lower_and_profile(candidate)
    assert isinstance(found, Failure)
    assert found.kind is FailureKind.PROFILE_ERROR


def test_only_a_gpu_can_be_too_small_for_a_kernel() -> None:
    nothing = [replace(profile_of(Config({"block": 1, "stages": 1, "swizzle": True})), roles=())]
    failure = jobs.unfit(nothing, load_target("h200"))
    assert failure is not None
    assert failure.kind is FailureKind.DOES_NOT_FIT
    assert "does nothing" in failure.message
    assert jobs.unfit(nothing, CPU) is None
