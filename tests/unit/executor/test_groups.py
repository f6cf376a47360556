"""Kernels of two ranks through the executor: every stage, and a rank that waits for ever."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.executors import kinds, results
from tests.support.group_kernels import cpu_pair, sum_candidate
from tests.unit.runner.test_measure import FAST
from tilesight.errors import FailureKind
from tilesight.executor.jobs import BuildJob, CompareJob, Lane, LowerJob, MeasureJob
from tilesight.executor.local import LEAST_LIMIT_S, LIMITS, LocalExecutor, time_limits
from tilesight.executor.tasks import Profiled
from tilesight.machine.devices import Device, restricted_to
from tilesight.target.spec import Target
from tilesight.workers import TimeLimit


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Target:
    return cpu_pair(tmp_path_factory.mktemp("target"))


@pytest.fixture(scope="module")
def executor(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalExecutor]:
    with LocalExecutor(1, tmp_path_factory.mktemp("cache"), world=2) as made:
        yield made


@pytest.mark.full
def test_all_stages_and_a_rank_that_waits_for_ever(executor: LocalExecutor, pair: Target) -> None:
    ways = [
        sum_candidate(pair, way="push"),
        sum_candidate(pair, way="library"),
        sum_candidate(pair, way="push", first="waits for ever"),
    ]
    lowered = results(executor, *map(LowerJob, ways))
    assert all(isinstance(outcome, Profiled) for outcome in lowered)
    builds = results(executor, *map(BuildJob, ways))
    pairs = list(zip(ways, builds, strict=True))
    usual, executor._limits[MeasureJob] = executor._limits[MeasureJob], TimeLimit(4.0, floor_s=4.0)
    [hung] = results(executor, MeasureJob(*pairs[2], FAST))
    executor._limits[MeasureJob] = usual
    assert kinds([hung]) == [FailureKind.RUN_TIMEOUT]
    assert hung.failure.message == "stopped after 4 s; a rank may wait for another one for ever"
    measured = results(executor, *(MeasureJob(candidate, build, FAST) for candidate, build in pairs[:2]))
    assert kinds(measured) == [None, None]
    [compared] = results(executor, CompareJob(tuple(pairs[:2]), FAST))
    assert kinds(compared.measurements) == [None, None]
    assert len(compared.baselines) == 1


def test_each_group_of_gpus_has_one_process(tmp_path: Path) -> None:
    gpus = [Device("NVIDIA H200", f"GPU-{index}", "580", "cuda", index, 1) for index in range(4)]
    with LocalExecutor(1, tmp_path, gpus, world=2) as pairs, LocalExecutor(1, tmp_path, gpus) as single:
        assert pairs.width(Lane.DEVICE) == 2
        assert single.width(Lane.DEVICE) == 4
    assert restricted_to(*gpus[:2]) == {"CUDA_VISIBLE_DEVICES": "GPU-0,GPU-1"}
    amd = [Device("MI300X", "", "6", "hip", index, 1) for index in range(2)]
    assert restricted_to(*amd) == {"HIP_VISIBLE_DEVICES": "0,1"}


def test_limits_grow_with_the_number_of_devices() -> None:
    one, eight = time_limits(), time_limits(8)
    assert one[MeasureJob].seconds == LIMITS[MeasureJob]
    assert eight[MeasureJob].seconds == LIMITS[MeasureJob] + 70
    assert eight[BuildJob].seconds == LIMITS[BuildJob]
    for _ in range(8):
        one[MeasureJob].record(0.1)
        eight[MeasureJob].record(0.1)
    assert (one[MeasureJob].seconds, eight[MeasureJob].seconds) == (LEAST_LIMIT_S, LEAST_LIMIT_S + 70)
