"""The caching executor: lowers, infers laws, answers other shapes, and lowers again if it must."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.unit.profile.test_inference import sampled
from tests.unit.profile.test_parametric import TEMPLATE, config_of, profile_of
from tilesight import kernels
from tilesight.database import Store, open_store
from tilesight.errors import Failure, FailureKind
from tilesight.executor import profile_cache
from tilesight.executor.caching_executor import CONFIGS_FOR_INFERENCE, CachingExecutor
from tilesight.executor.jobs import (
    BuildDone,
    BuildJob,
    Event,
    Job,
    JobSource,
    Lane,
    LowerDone,
    LowerJob,
    MeasureDone,
    MeasureJob,
    SingleLaneSource,
)
from tilesight.executor.profile_cache import ProfileCache
from tilesight.executor.tasks import Profiled
from tilesight.problem.candidate import Candidate
from tilesight.problem.rasterization import Rasterization
from tilesight.problem.space import Config
from tilesight.problem.template import Scale
from tilesight.problem.workload import Workload
from tilesight.profile.inference import PROBES
from tilesight.profile.values import KernelProfile
from tilesight.records.protocol import MeasurementProtocol
from tilesight.records.trial import BuildResult, Measurement
from tilesight.target.spec import load_target

TARGET = load_target("a100")
MATMUL = kernels.operator("matmul")


class Lowerer:
    """Stands for worker processes; counts what reaches them."""

    def __init__(self) -> None:
        self.lowered: list[Candidate] = []
        self.fails_at: set[str] = set()

    def stream(self, source: JobSource) -> Generator[Event]:
        """One job after the other."""
        while (job := source.next(Lane.PREPARE) or source.next(Lane.DEVICE)) is not None:
            match job:
                case LowerJob(candidate):
                    self.lowered.append(candidate)
                    yield LowerDone(job, self.outcome(candidate))
                case BuildJob():
                    yield BuildDone(job, BuildResult("/cache/x.so"))
                case MeasureJob():
                    yield MeasureDone(job, Measurement((2.0,)))

    def outcome(self, candidate: Candidate) -> Profiled | Failure:
        if candidate.workload.key in self.fails_at:
            return Failure(FailureKind.LOWER_ERROR, "no layout")
        return Profiled(self.kernels(candidate), f"code {candidate.config}", 0.3)

    def kernels(self, candidate: Candidate) -> tuple[KernelProfile, ...]:
        return profile_of(candidate.workload, candidate.config)

    def width(self, lane: Lane) -> int:
        return {Lane.PREPARE: 3, Lane.DEVICE: 2}[lane]

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"{name} is not for a test of lowering")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(f"sqlite:///{tmp_path}/x.db") as opened:
        yield opened


def full(config: Config, swizzle: int = 0) -> Config:
    return Config({**config, "swizzle": swizzle, "threads": 128, "policy": "square", "epilogue": "shared"})


def candidates(workload: Workload, *configs: Config) -> list[Candidate]:
    return [Candidate(workload, TARGET, TEMPLATE, config) for config in configs]


CONFIGS = [
    full(config_of()),
    full(config_of(64)),
    full(config_of(64), swizzle=8),
    full(config_of(128, 64, 32, stages=4)),
]


def kernels_of(answers: Iterable[tuple[Candidate, Profiled | Failure]]) -> dict[Config, Any]:
    return {c.config: outcome.kernels if isinstance(outcome, Profiled) else outcome for c, outcome in answers}


def expected(workload: Workload, config: Config) -> Any:
    order = Rasterization("row", config.int("swizzle")) if config["swizzle"] else Rasterization()
    return tuple(replace(kernel, rasterization=order) for kernel in profile_of(workload, config))


M0, M5, OTHER = MATMUL.workload("M0"), MATMUL.workload("M5"), MATMUL.workload("m=8192,n=2048,k=1280")
BASES = 3  # among CONFIGS, all of one structure


def outcomes(
    executor: CachingExecutor, asked: Iterable[Candidate]
) -> Generator[tuple[Candidate, Profiled | Failure]]:
    with closing(executor.stream(SingleLaneSource(LowerJob(candidate) for candidate in asked))) as events:
        for event in events:
            assert isinstance(event, LowerDone)
            yield event.job.candidate, event.outcome


def lower(executor: CachingExecutor, workload: Workload, *configs: Config) -> dict[Config, Any]:
    return kernels_of(outcomes(executor, candidates(workload, *configs)))


def test_a_first_workload_costs_what_lowering_it_costs(store: Store) -> None:
    workers = Lowerer()
    assert lower(CachingExecutor(workers, ProfileCache(store)), M0, *CONFIGS) == {
        c: expected(M0, c) for c in CONFIGS
    }
    assert [c.workload for c in workers.lowered] == [M0] * BASES
    # and once more nothing at all, in another process too
    assert lower(CachingExecutor(workers, ProfileCache(store)), M0, *CONFIGS) == {
        c: expected(M0, c) for c in CONFIGS
    }
    assert len(workers.lowered) == BASES


def test_a_second_workload_costs_the_probes_of_its_structures_and_others_nothing(store: Store) -> None:
    workers = Lowerer()
    lower(CachingExecutor(workers, ProfileCache(store)), M0, *CONFIGS)
    executor = CachingExecutor(workers, ProfileCache(store))
    assert not list(executor.cached(candidates(OTHER, *CONFIGS)))
    assert lower(executor, OTHER, *CONFIGS) == {c: expected(OTHER, c) for c in CONFIGS}
    assert len(workers.lowered) == BASES + PROBES
    for keeping in (executor, CachingExecutor(workers, ProfileCache(store))):
        assert kernels_of(keeping.cached(candidates(M5, *CONFIGS))) == {c: expected(M5, c) for c in CONFIGS}
        assert lower(keeping, M5, *CONFIGS) == {c: expected(M5, c) for c in CONFIGS}
    new = full(config_of(256, 64))
    assert lower(CachingExecutor(workers, ProfileCache(store)), M5, new) == {new: expected(M5, new)}
    assert lower(CachingExecutor(workers, ProfileCache(store)), M0, new) == {
        new: expected(M0, new)
    }  # one more of a structure that is known
    assert len(workers.lowered) == BASES + PROBES + 1


def test_the_laws_of_a_structure_of_one_config_are_inferred_after_enough_lowerings(store: Store) -> None:
    workers, config = Lowerer(), full(config_of())
    executor = CachingExecutor(workers, ProfileCache(store))
    for workload in (M0, M5, OTHER):
        assert lower(executor, workload, config) == {config: expected(workload, config)}
    assert [c.workload for c in workers.lowered[:2]] == [M0, M5]
    assert len(workers.lowered) == 2 + PROBES


def test_the_laws_of_a_structure_of_many_configs_are_inferred_early(store: Store) -> None:
    workers = Lowerer()
    many = [full(config_of(m, n, k)) for m in (64, 128, 256) for n in (64, 128, 256) for k in (32, 64)][
        :CONFIGS_FOR_INFERENCE
    ]
    lower(CachingExecutor(workers, ProfileCache(store)), M0, *many[:-1])
    assert len(workers.lowered) == CONFIGS_FOR_INFERENCE - 1
    lower(CachingExecutor(workers, ProfileCache(store)), M0, many[-1])
    assert len(workers.lowered) == CONFIGS_FOR_INFERENCE + PROBES
    assert kernels_of(CachingExecutor(workers, ProfileCache(store)).cached(candidates(M5, *many))) == {
        c: expected(M5, c) for c in many
    }


def test_where_numbers_are_sampled_a_second_workload_costs_another_lowering_of_each_config(
    store: Store,
) -> None:
    class Sampling(Lowerer):
        def kernels(self, candidate: Candidate) -> tuple[KernelProfile, ...]:
            return sampled(candidate.workload, candidate.config)

    workers, bases = Sampling(), [c for c in CONFIGS if not c["swizzle"]]
    lower(CachingExecutor(workers, ProfileCache(store)), M0, *bases)
    assert len(workers.lowered) == BASES
    lower(CachingExecutor(workers, ProfileCache(store)), M5, *bases)
    # the config that showed the rule is answered by it, and the others have been seen often enough now
    assert len(workers.lowered) == BASES + PROBES + BASES - 1
    assert len(list(CachingExecutor(workers, ProfileCache(store)).cached(candidates(OTHER, *bases)))) == BASES


def test_profiles_of_an_aborted_stream_are_cached(store: Store) -> None:
    workers = Lowerer()
    answers = outcomes(CachingExecutor(workers, ProfileCache(store)), candidates(M0, *CONFIGS))
    first, _ = next(answers)
    answers.close()
    assert [c for c, _ in CachingExecutor(workers, ProfileCache(store)).cached(candidates(M0, *CONFIGS))] == [
        first
    ]


def test_rasterization_variants_share_their_instances_and_shapes_do_not(store: Store) -> None:
    executor, (base, variant) = (
        CachingExecutor(Lowerer(), ProfileCache(store)),
        (full(config_of(64)), full(config_of(64), swizzle=8)),
    )
    lower(executor, M0, base, full(config_of()))
    lower(executor, M5, base)
    for workload in (M0, M5, OTHER, M0):
        found = kernels_of(executor.cached(candidates(workload, base, variant)))
        assert found == {c: expected(workload, c) for c in (base, variant)}
        assert found[base][0].roles is found[variant][0].roles


def test_codes_differ_between_shapes_and_rasterization_variants(store: Store) -> None:
    executor = CachingExecutor(Lowerer(), ProfileCache(store))
    prints = set()
    for workload in (M0, M5, OTHER, M5):
        for _, outcome in outcomes(executor, candidates(workload, *CONFIGS)):
            assert isinstance(outcome, Profiled)
            prints.add(outcome.fingerprint)
    assert len(prints) == 3 * len(CONFIGS)


def test_another_class_and_another_version_of_the_readers_start_anew(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor = CachingExecutor(Lowerer(), ProfileCache(store))
    list(outcomes(executor, candidates(MATMUL.workload("M0"), *CONFIGS)))
    assert not list(executor.cached(candidates(MATMUL.workload("m=1000,n=1000,k=1000"), *CONFIGS)))
    assert not list(executor.cached(candidates(MATMUL.workload("M0", "float16"), *CONFIGS)))
    monkeypatch.setattr(profile_cache, "reader_version", lambda: "newer")
    assert not list(
        CachingExecutor(Lowerer(), ProfileCache(store)).cached(candidates(MATMUL.workload("M0"), *CONFIGS))
    )


def test_the_version_of_the_readers_follows_all_code_between_a_template_and_its_profiles() -> None:
    found = set(profile_cache.reader_modules())
    for module in (
        "lowering.lower",
        "lowering.dynamic",
        "costmodel.extract.walk",
        "profile.codec",
        "profile.parametric",
        "profile.scaling_laws",
    ):
        assert f"tilesight.{module}" in found
    assert not found & {
        f"tilesight.{module}"
        for module in ("target.spec", "problem.workload", "problem.template", "errors", "costmodel.model")
    }


def test_a_shape_that_makes_another_ir_is_lowered_itself(store: Store) -> None:
    workers = Lowerer()
    executor = CachingExecutor(workers, ProfileCache(store))
    lower(executor, M0, *CONFIGS)
    lower(executor, M5, *CONFIGS)
    short = MATMUL.workload(
        "m=4096,n=4096,k=256"
    )  # four iterations: too few for what was learned of three buffers
    config = CONFIGS[0]
    for _ in range(2):
        assert not list(executor.cached(candidates(short, config)))
        assert lower(executor, short, config) == {config: expected(short, config)}
        assert workers.lowered.pop().workload == short
    assert list(executor.cached(candidates(M5, config)))  # what was learned of longer ones stays


def test_what_fails_at_a_probe_is_tried_at_its_own_shape(store: Store) -> None:
    workers = Lowerer()
    executor = CachingExecutor(workers, ProfileCache(store))
    lower(executor, M0, *CONFIGS)
    workers.fails_at = {profile_cache.ShapeClass(TEMPLATE, M0).probe(1).key}
    assert lower(executor, M5, *CONFIGS) == {c: expected(M5, c) for c in CONFIGS}
    assert len(workers.lowered) == BASES + PROBES + BASES
    assert lower(executor, OTHER, *CONFIGS) == {c: expected(OTHER, c) for c in CONFIGS}
    assert len(workers.lowered) == BASES + PROBES + 2 * BASES  # it is not tried again


def test_a_failure_is_that_of_all_rasterization_variants_and_not_cached(store: Store) -> None:
    workers = Lowerer()
    workers.fails_at = {M0.key}
    executor = CachingExecutor(workers, ProfileCache(store))
    failure = Failure(FailureKind.LOWER_ERROR, "no layout")
    assert lower(executor, M0, *CONFIGS) == dict.fromkeys(CONFIGS, failure)
    assert not list(executor.cached(candidates(M0, *CONFIGS)))


def test_a_structure_without_laws_is_probed_once(store: Store) -> None:
    class Odd(Lowerer):
        def kernels(self, candidate: Candidate) -> tuple[KernelProfile, ...]:
            return profile_of(candidate.workload, candidate.config, extra=candidate.workload.dims["m"] % 700)

    workers = Odd()
    lower(CachingExecutor(workers, ProfileCache(store)), M0, *CONFIGS)
    lower(CachingExecutor(workers, ProfileCache(store)), M5, *CONFIGS)
    assert len(workers.lowered) == 2 * BASES + PROBES
    lower(CachingExecutor(workers, ProfileCache(store)), OTHER, *CONFIGS)
    assert [c.workload for c in workers.lowered[-BASES:]] == [OTHER] * BASES
    assert len(workers.lowered) == 3 * BASES + PROBES
    assert len(
        list(CachingExecutor(workers, ProfileCache(store)).cached(candidates(OTHER, *CONFIGS)))
    ) == len(CONFIGS)  # where it was lowered


def test_two_structures_of_one_config_share_their_probes(store: Store) -> None:
    """While the laws of one structure are inferred, workloads end that give the config another one."""

    class ThreeAtATime(Lowerer):
        def stream(self, source: JobSource) -> Generator[Event]:
            running: deque[LowerJob] = deque()
            while True:
                while len(running) < 3 and isinstance(job := source.next(Lane.PREPARE), LowerJob):
                    running.append(job)
                if not running:
                    return
                job = running.popleft()
                self.lowered.append(job.candidate)
                yield LowerDone(job, self.outcome(job.candidate))

        def kernels(self, candidate: Candidate) -> tuple[KernelProfile, ...]:
            kernels = 2 if candidate.workload.dims["m"] in (4096, 8192) else 1
            return super().kernels(candidate) * (3 if candidate.config == CONFIGS[3] else kernels)

    def at(config: Config, *sizes: int) -> list[Candidate]:
        return [c for m in sizes for c in candidates(MATMUL.workload(f"m={m},n=4096,k=4096"), config)]

    workers = ThreeAtATime()
    executor = CachingExecutor(workers, ProfileCache(store))
    for size in (1024, 2048, 4096):  # the class knows the laws of another structure
        list(outcomes(executor, at(CONFIGS[3], size)))
    list(outcomes(executor, at(CONFIGS[0], 1024)))
    asked = at(CONFIGS[0], 2048, 4096, 8192, 16384, 32768)
    assert {c.key for c, _ in outcomes(executor, asked)} == {c.key for c in asked}


@pytest.mark.parametrize("tree", [[{"kind": "cuda"}], ["text"], [7], None, {"kind": "cuda"}])
def test_a_damaged_profile_is_lowered_again(store: Store, tree: Any) -> None:
    workload, config = MATMUL.workload("M0"), full(config_of())
    executor = CachingExecutor(Lowerer(), ProfileCache(store))
    list(outcomes(executor, candidates(workload, config)))
    (entry,) = executor._cache._entries.values()
    damaged = replace(entry.profiles[config].samples[0], tree=tree)
    entry.profiles[config] = replace(entry.profiles[config], samples=(damaged,))
    assert not list(executor.cached(candidates(workload, config)))
    assert kernels_of(outcomes(executor, candidates(workload, config))) == {
        config: expected(workload, config)
    }


def test_what_does_not_fit_the_target_at_hand_is_said(store: Store) -> None:
    """Profiles are shared by targets of one architecture, which may have cores of different size."""
    executor = CachingExecutor(Lowerer(), ProfileCache(store))
    huge = full(config_of(stages=5))
    list(outcomes(executor, candidates(MATMUL.workload("M0"), huge)))
    figures = dict(TARGET.figures)
    figures["core.memory.shared.block_bytes"] = replace(
        figures["core.memory.shared.block_bytes"], value=16384.0
    )
    small = replace(TARGET, figures=figures)
    ((_, outcome),) = executor.cached([Candidate(MATMUL.workload("M0"), small, TEMPLATE, huge)])
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.DOES_NOT_FIT


class Unscaled(type(TEMPLATE)):  # type: ignore[misc]
    """No dimension of it scales, so that each workload has profiles of its own."""

    scales: ClassVar[Mapping[str, Scale]] = {}


def test_a_workload_of_a_template_that_scales_nothing_is_lowered_once(store: Store) -> None:
    """Many configs of one structure, whose laws would be inferred if there were any to infer."""
    template = Unscaled()
    configs = [Config({**full(config_of()), "threads": 64 + n}) for n in range(CONFIGS_FOR_INFERENCE + 4)]

    def lowered_at(workload: Workload) -> int:
        workers = Lowerer()
        asked = [Candidate(workload, TARGET, template, config) for config in configs]
        found = kernels_of(outcomes(CachingExecutor(workers, ProfileCache(store)), asked))
        assert found == {config: profile_of(workload, config) for config in configs}
        assert all(candidate.workload == workload for candidate in workers.lowered), "a probe was lowered"
        return len(workers.lowered)

    assert lowered_at(M0) == len(configs)
    assert lowered_at(M0) == 0
    assert lowered_at(M5) == len(configs)
    assert lowered_at(M0) == 0


def test_kernels_of_several_devices_and_of_processors_are_lowered_as_ever(store: Store) -> None:
    cpu = next(t for t in kernels.templates("matmul") if not t.scales)
    workload = MATMUL.workload("S512", "float32")
    workers = Lowerer()
    asked = Candidate(workload, load_target("cpu"), cpu, full(config_of()))
    assert (
        [c for c, _ in outcomes(CachingExecutor(workers, ProfileCache(store)), [asked])]
        == [asked]
        == workers.lowered
    )
    several = load_target("h200x2")
    [group] = kernels.templates("context_parallel_mla_decode")
    workload = group.operator.default_workloads_on(several, "bfloat16")[0]
    assert ProfileCache(store).entry(Candidate(workload, several, group, Config({}))) is None


class Mixed:
    """A source of jobs for both lanes: it builds what was lowered, and measures what was built."""

    def __init__(self, asked: Iterable[Candidate]) -> None:
        self.waiting: dict[Lane, list[Job]] = {
            Lane.PREPARE: [LowerJob(candidate) for candidate in asked],
            Lane.DEVICE: [],
        }
        self.events: list[Event] = []

    def next(self, lane: Lane) -> Job | None:
        return self.waiting[lane].pop(0) if self.waiting[lane] else None

    def run(self, executor: CachingExecutor) -> None:
        for event in executor.stream(self):
            self.events.append(event)
            if isinstance(event, LowerDone):
                self.waiting[Lane.PREPARE].append(BuildJob(event.job.candidate))
            elif isinstance(event, BuildDone):
                measured = MeasureJob(
                    event.job.candidate, event.result, MeasurementProtocol.named("default", TARGET)
                )
                self.waiting[Lane.DEVICE].append(measured)


def test_other_jobs_pass_through_also_if_all_profiles_are_cached(store: Store) -> None:
    workers = Lowerer()
    for known in (False, True):
        source = Mixed(candidates(M0, *CONFIGS))
        source.run(CachingExecutor(workers, ProfileCache(store)))
        assert len(workers.lowered) == BASES
        for kind in (LowerDone, BuildDone, MeasureDone):
            assert sorted(e.job.candidate.config.key for e in source.events if isinstance(e, kind)) == sorted(
                c.key for c in CONFIGS
            ), known


def test_it_is_as_wide_as_what_it_wraps(store: Store) -> None:
    executor = CachingExecutor(Lowerer(), ProfileCache(store))
    assert [executor.width(lane) for lane in (Lane.PREPARE, Lane.DEVICE)] == [3, 2]


def test_kernels_with_a_dynamic_dimension_are_cached_apart_and_for_all_its_values(store: Store) -> None:
    workers = Lowerer()

    def asked(shape: str, *dims: str) -> list[Candidate]:
        return [
            replace(candidate, dynamic=dims) for candidate in candidates(MATMUL.workload(shape), *CONFIGS)
        ]

    executor = CachingExecutor(workers, ProfileCache(store))
    for shape in ("m=4096,n=4096,k=4096", "m=8192,n=4096,k=4096"):
        list(outcomes(executor, asked(shape)))
    static = len(workers.lowered)
    assert not list(executor.cached(asked("m=4096,n=4096,k=4096", "m"))), (
        "what static kernels are says nothing of open ones"
    )
    for shape in ("m=4096,n=4096,k=4096", "m=777,n=4096,k=4096"):
        list(outcomes(executor, asked(shape, "m")))
    assert [c.dynamic for c in workers.lowered[static:]] == [("m",)] * (BASES + PROBES)
    for keeping in (executor, CachingExecutor(workers, ProfileCache(store))):
        for m in (1, 17, 128, 777, 5000):  # less than a tile, cut with a rest or without one
            workload = MATMUL.workload(f"m={m},n=4096,k=4096")
            found = kernels_of(keeping.cached(asked(f"m={m},n=4096,k=4096", "m")))
            assert found == {c: expected(workload, c) for c in CONFIGS}, m
    assert not list(executor.cached(asked("m=17,n=4096,k=4096")))
