"""Profiles of kernels with a dynamic size: one lowering gives the profiles at all sizes."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Iterator

import pytest

from tests.support.operator_shapes import MATMUL_TILE
from tilesight.bounded_dict import BoundedDict
from tilesight.costmodel import default_model
from tilesight.errors import Failure
from tilesight.executor import tasks
from tilesight.executor.caching_executor import CachingExecutor
from tilesight.executor.jobs import Event, JobSource, Lane, LowerDone, LowerJob, SingleLaneSource
from tilesight.executor.profile_cache import ProfileCache
from tilesight.executor.tasks import Profiled, lower_and_profile
from tilesight.kernels import operator, template_for
from tilesight.lowering import dynamic
from tilesight.lowering.dynamic import lower_candidate
from tilesight.lowering.lower import Lowered
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.problem.workload import Workload
from tilesight.profile.parametric import ParametricProfile, ProfileKey
from tilesight.profile.shape_class import ShapeClass
from tilesight.target.spec import load_target


class Here:
    """An executor that lowers in this process, and counts."""

    def __init__(self) -> None:
        self.lowered: list[Candidate] = []

    def stream(self, source: JobSource) -> Generator[Event]:
        while (job := source.next(Lane.PREPARE)) is not None:
            assert isinstance(job, LowerJob)
            self.lowered.append(job.candidate)
            yield LowerDone(job, lower_and_profile(job.candidate))

    def width(self, lane: Lane) -> int:
        return 1

    def cached(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Profiled | Failure]]:
        return iter(())


class Memory:
    def cached_profiles(self, key: ProfileKey) -> list[ParametricProfile]:
        return []

    def cache_profiles(self, key: ProfileKey, profiles: Iterable[ParametricProfile]) -> None:
        pass


TARGET = load_target("h200")
MATMUL = template_for("matmul", TARGET, "bfloat16")


def candidate(m: int, *dynamic: str, swizzle: int = 0) -> Candidate:
    workload = operator("matmul").workload(f"m={m},n=1024,k=512", "bfloat16")
    return Candidate(workload, TARGET, MATMUL, Config({**MATMUL_TILE, "swizzle": swizzle}), dynamic)


def test_dynamic_sizes_of_any_alignment_are_of_one_class() -> None:
    def key(m: int, *dynamic: str) -> str:
        return ShapeClass(MATMUL, candidate(m).workload, dynamic).key

    assert key(1000, "m") == key(5001, "m") == key(8192, "m")
    assert key(1000) != key(5001)
    assert key(1000, "m") != key(1001)  # a static kernel of that class has another IR
    assert key(1, "m") == key(1000, "m")
    assert key(100) != key(101)


@pytest.mark.full
def test_one_inference_serves_dynamic_kernels_at_all_sizes() -> None:
    inner = Here()
    executor = CachingExecutor(inner, ProfileCache(Memory()))
    for m in (1000, 3000, 4000):
        for _ in executor.stream(SingleLaneSource([LowerJob(candidate(m, "m"))])):
            pass
    before, model = len(inner.lowered), default_model()
    assert before <= 5
    for m in (40, 777):
        ((_, found),) = executor.cached([candidate(m, "m")])
        expected = lower_and_profile(candidate(m, "m"))
        assert isinstance(found, Profiled)
        assert isinstance(expected, Profiled)
        assert [kernel.grid for kernel in found.kernels] == [kernel.grid for kernel in expected.kernels]
        # the laws were inferred from whole tiles: they do not know that a tile of 128 rows holds only 40
        assert model.predict(found.kernels, TARGET).latency_us == pytest.approx(
            model.predict(expected.kernels, TARGET).latency_us, rel=0.05 if m < 128 else 0.02
        )
        assert list(executor.cached([candidate(m)])) == []  # nothing is known of static ones
    assert [c.dynamic for c in inner.lowered] == [("m",)] * before


@pytest.mark.parametrize(
    ("m", "config", "works"),
    [
        (64, {**MATMUL_TILE, "swizzle": 8}, True),  # it changes nothing
        (16, {**MATMUL_TILE, "swizzle": 0}, True),  # the tile is too large
        (4096, {**MATMUL_TILE, "swizzle": 0, "block_k": 128, "num_stages": 5}, False),  # the tiles do not fit
    ],
)
def test_a_config_that_is_only_wasteful_at_a_size_works_there(
    m: int, config: dict[str, int | str], works: bool
) -> None:
    space = MATMUL.space(Workload("matmul", {"m": m, "n": 8192, "k": 8192}, "bfloat16"), TARGET)
    assert Config(config) not in space
    assert space.works(Config(config)) is works


def test_a_process_lowers_a_dynamic_kernel_once_for_several_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles in an order of their own have no laws, so each size is asked for."""
    alone = {}
    for m in (1000, 4096):
        monkeypatch.setattr(tasks, "_lowered", BoundedDict(tasks.LOWERED))
        alone[m] = lower_and_profile(candidate(m, "m", swizzle=4))
    calls: list[Candidate] = []

    def counted(asked: Candidate, *, only_read: bool = False) -> Lowered:
        calls.append(asked)
        return lower_candidate(asked, only_read=only_read)

    monkeypatch.setattr(tasks, "_lowered", BoundedDict(tasks.LOWERED))
    monkeypatch.setattr(dynamic, "lower_candidate", counted)
    for m in (1000, 4096):
        found, expected = lower_and_profile(candidate(m, "m", swizzle=4)), alone[m]
        assert isinstance(found, Profiled)
        assert isinstance(expected, Profiled)
        assert (found.kernels, found.fingerprint) == (expected.kernels, expected.fingerprint)
    assert len(calls) == 1
    lower_and_profile(candidate(1000, "m"))
    lower_and_profile(candidate(1000))
    lower_and_profile(candidate(1000))
    assert len(calls) == 4, "another config, and kernels of one size"
