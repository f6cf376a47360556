"""The executor that keeps profiles: lowers what is asked for, learns from it, answers other shapes, falls back where it cannot."""

from __future__ import annotations

import ast
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_families import TEMPLATE, config_of, profile_of
from tests.unit.test_lessons import sampled
from tilesight import kept, kernels
from tilesight.candidate import Candidate
from tilesight.database import Store, open_store
from tilesight.errors import Failure, FailureKind
from tilesight.jobs import Profiled
from tilesight.kept import ENOUGH_ALIKE, KeptExecutor
from tilesight.lessons import PROBES
from tilesight.profile import KernelProfile, Rasterization
from tilesight.protocol import Protocol
from tilesight.space import Config
from tilesight.target import load_target
from tilesight.trial import BuildResult, Measurement
from tilesight.work import Build, Built, Event, Job, Lane, Lower, Lowered, Measure, Measured, OneLane, Source
from tilesight.workload import Workload

TARGET = load_target("a100")
MATMUL = kernels.operator("matmul")


class Lowerer:
    """Stands for worker processes; counts what reaches them."""

    def __init__(self) -> None:
        self.lowered: list[Candidate] = []
        self.fails_at: set[str] = set()

    def stream(self, source: Source) -> Generator[Event]:
        """One job after the other."""
        while (job := source.next(Lane.PREPARE) or source.next(Lane.DEVICE)) is not None:
            match job:
                case Lower(candidate):
                    self.lowered.append(candidate)
                    yield Lowered(job, self.outcome(candidate))
                case Build():
                    yield Built(job, BuildResult("/cache/x.so"))
                case Measure():
                    yield Measured(job, Measurement((2.0,)))

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


CONFIGS = [full(config_of()), full(config_of(64)), full(config_of(64), swizzle=8), full(config_of(128, 64, 32, stages=4))]


def kernels_of(answers: Iterable[tuple[Candidate, Profiled | Failure]]) -> dict[Config, Any]:
    return {c.config: outcome.kernels if isinstance(outcome, Profiled) else outcome for c, outcome in answers}


def expected(workload: Workload, config: Config) -> Any:
    order = Rasterization("row", config.int("swizzle")) if config["swizzle"] else Rasterization()
    return tuple(replace(kernel, rasterization=order) for kernel in profile_of(workload, config))


M0, M5, OTHER = MATMUL.workload("M0"), MATMUL.workload("M5"), MATMUL.workload("m=8192,n=2048,k=1280")
BASES = 3  # among CONFIGS, all of one structure


def outcomes(executor: KeptExecutor, asked: Iterable[Candidate]) -> Generator[tuple[Candidate, Profiled | Failure]]:
    with closing(executor.stream(OneLane(Lower(candidate) for candidate in asked))) as events:
        for event in events:
            assert isinstance(event, Lowered)
            yield event.job.candidate, event.outcome


def lower(executor: KeptExecutor, workload: Workload, *configs: Config) -> dict[Config, Any]:
    return kernels_of(outcomes(executor, candidates(workload, *configs)))


def test_a_first_workload_costs_what_lowering_it_costs(store: Store) -> None:
    workers = Lowerer()
    assert lower(KeptExecutor(workers, store), M0, *CONFIGS) == {c: expected(M0, c) for c in CONFIGS}
    assert [c.workload for c in workers.lowered] == [M0] * BASES
    # and once more nothing at all, in another process too
    assert lower(KeptExecutor(workers, store), M0, *CONFIGS) == {c: expected(M0, c) for c in CONFIGS}
    assert len(workers.lowered) == BASES


def test_a_second_workload_costs_the_probes_of_its_structures_and_others_nothing(store: Store) -> None:
    workers = Lowerer()
    lower(KeptExecutor(workers, store), M0, *CONFIGS)
    executor = KeptExecutor(workers, store)
    assert not list(executor.kept(candidates(OTHER, *CONFIGS)))
    assert lower(executor, OTHER, *CONFIGS) == {c: expected(OTHER, c) for c in CONFIGS}
    assert len(workers.lowered) == BASES + PROBES
    for keeping in (executor, KeptExecutor(workers, store)):
        assert kernels_of(keeping.kept(candidates(M5, *CONFIGS))) == {c: expected(M5, c) for c in CONFIGS}
        assert lower(keeping, M5, *CONFIGS) == {c: expected(M5, c) for c in CONFIGS}
    new = full(config_of(256, 64))
    assert lower(KeptExecutor(workers, store), M5, new) == {new: expected(M5, new)}
    assert lower(KeptExecutor(workers, store), M0, new) == {new: expected(M0, new)}  # one more of a structure that is known
    assert len(workers.lowered) == BASES + PROBES + 1


def test_a_structure_of_one_config_is_learned_when_that_was_lowered_often_enough(store: Store) -> None:
    workers, config = Lowerer(), full(config_of())
    executor = KeptExecutor(workers, store)
    for workload in (M0, M5, OTHER):
        assert lower(executor, workload, config) == {config: expected(workload, config)}
    assert [c.workload for c in workers.lowered[:2]] == [M0, M5]
    assert len(workers.lowered) == 2 + PROBES


def test_a_structure_of_many_configs_is_learned_in_passing(store: Store) -> None:
    workers = Lowerer()
    many = [full(config_of(m, n, k)) for m in (64, 128, 256) for n in (64, 128, 256) for k in (32, 64)][:ENOUGH_ALIKE]
    lower(KeptExecutor(workers, store), M0, *many[:-1])
    assert len(workers.lowered) == ENOUGH_ALIKE - 1
    lower(KeptExecutor(workers, store), M0, many[-1])
    assert len(workers.lowered) == ENOUGH_ALIKE + PROBES
    assert kernels_of(KeptExecutor(workers, store).kept(candidates(M5, *many))) == {c: expected(M5, c) for c in many}


def test_where_numbers_are_sampled_a_second_workload_costs_one_study_more(store: Store) -> None:
    class Sampling(Lowerer):
        def kernels(self, candidate: Candidate) -> tuple[KernelProfile, ...]:
            return sampled(candidate.workload, candidate.config)

    workers, bases = Sampling(), [c for c in CONFIGS if not c["swizzle"]]
    lower(KeptExecutor(workers, store), M0, *bases)
    assert len(workers.lowered) == BASES
    lower(KeptExecutor(workers, store), M5, *bases)
    # the config that showed the rule is answered by it, and the others have been seen often enough now
    assert len(workers.lowered) == BASES + PROBES + BASES - 1
    assert len(list(KeptExecutor(workers, store).kept(candidates(OTHER, *bases)))) == BASES


def test_what_is_left_early_is_kept(store: Store) -> None:
    workers = Lowerer()
    answers = outcomes(KeptExecutor(workers, store), candidates(M0, *CONFIGS))
    first, _ = next(answers)
    answers.close()
    assert [c for c, _ in KeptExecutor(workers, store).kept(candidates(M0, *CONFIGS))] == [first]


def test_twins_share_their_instances_and_shapes_do_not(store: Store) -> None:
    executor, (base, twin) = KeptExecutor(Lowerer(), store), (full(config_of(64)), full(config_of(64), swizzle=8))
    lower(executor, M0, base, full(config_of()))
    lower(executor, M5, base)
    for workload in (M0, M5, OTHER, M0):
        found = kernels_of(executor.kept(candidates(workload, base, twin)))
        assert found == {c: expected(workload, c) for c in (base, twin)}
        assert found[base][0].roles is found[twin][0].roles


def test_codes_differ_between_shapes_and_twins(store: Store) -> None:
    executor = KeptExecutor(Lowerer(), store)
    prints = set()
    for workload in (M0, M5, OTHER, M5):
        for _, outcome in outcomes(executor, candidates(workload, *CONFIGS)):
            assert isinstance(outcome, Profiled)
            prints.add(outcome.fingerprint)
    assert len(prints) == 3 * len(CONFIGS)


def test_another_class_and_another_version_of_the_readers_start_anew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = KeptExecutor(Lowerer(), store)
    list(outcomes(executor, candidates(MATMUL.workload("M0"), *CONFIGS)))
    assert not list(executor.kept(candidates(MATMUL.workload("m=1000,n=1000,k=1000"), *CONFIGS)))
    assert not list(executor.kept(candidates(MATMUL.workload("M0", "float16"), *CONFIGS)))
    monkeypatch.setattr(kept, "reader_version", lambda: "newer")
    assert not list(KeptExecutor(Lowerer(), store).kept(candidates(MATMUL.workload("M0"), *CONFIGS)))


def test_the_version_of_the_readers_follows_all_code_between_a_template_and_its_profiles() -> None:
    found = set(kept.reader_modules())
    for module in ("lowering", "open_dims", "costmodel.profile.walk", "profile_json", "families", "lessons", "scaling"):
        assert f"tilesight.{module}" in found
    assert not found & {f"tilesight.{module}" for module in ("target", "workload", "template", "errors", "costmodel.analytical")}


def test_a_shape_that_makes_another_ir_is_lowered_itself(store: Store) -> None:
    workers = Lowerer()
    executor = KeptExecutor(workers, store)
    lower(executor, M0, *CONFIGS)
    lower(executor, M5, *CONFIGS)
    short = MATMUL.workload("m=4096,n=4096,k=256")  # four iterations: too few for what was learned of three buffers
    config = CONFIGS[0]
    for _ in range(2):
        assert not list(executor.kept(candidates(short, config)))
        assert lower(executor, short, config) == {config: expected(short, config)}
        assert workers.lowered.pop().workload == short
    assert list(executor.kept(candidates(M5, config)))  # what was learned of longer ones stays


def test_what_fails_at_a_probe_is_tried_at_its_own_shape(store: Store) -> None:
    workers = Lowerer()
    executor = KeptExecutor(workers, store)
    lower(executor, M0, *CONFIGS)
    workers.fails_at = {kept.ShapeClass(TEMPLATE, M0).probe(1).key}
    assert lower(executor, M5, *CONFIGS) == {c: expected(M5, c) for c in CONFIGS}
    assert len(workers.lowered) == BASES + PROBES + BASES
    assert lower(executor, OTHER, *CONFIGS) == {c: expected(OTHER, c) for c in CONFIGS}
    assert len(workers.lowered) == BASES + PROBES + 2 * BASES  # it is not tried again


def test_what_fails_is_said_of_all_twins_and_not_kept(store: Store) -> None:
    workers = Lowerer()
    workers.fails_at = {M0.key}
    executor = KeptExecutor(workers, store)
    failure = Failure(FailureKind.LOWER_ERROR, "no layout")
    assert lower(executor, M0, *CONFIGS) == dict.fromkeys(CONFIGS, failure)
    assert not list(executor.kept(candidates(M0, *CONFIGS)))


def test_a_structure_that_no_rule_explains_is_probed_once(store: Store) -> None:
    class Odd(Lowerer):
        def kernels(self, candidate: Candidate) -> tuple[KernelProfile, ...]:
            return profile_of(candidate.workload, candidate.config, extra=candidate.workload.dims["m"] % 700)

    workers = Odd()
    lower(KeptExecutor(workers, store), M0, *CONFIGS)
    lower(KeptExecutor(workers, store), M5, *CONFIGS)
    assert len(workers.lowered) == 2 * BASES + PROBES
    lower(KeptExecutor(workers, store), OTHER, *CONFIGS)
    assert [c.workload for c in workers.lowered[-BASES:]] == [OTHER] * BASES
    assert len(workers.lowered) == 3 * BASES + PROBES
    assert len(list(KeptExecutor(workers, store).kept(candidates(OTHER, *CONFIGS)))) == len(CONFIGS)  # where it was lowered


@pytest.mark.parametrize("tree", [[{"kind": "cuda"}], ["text"], [7], None, {"kind": "cuda"}])
def test_what_was_kept_damaged_is_lowered_anew(store: Store, tree: Any) -> None:
    workload, config = MATMUL.workload("M0"), full(config_of())
    executor = KeptExecutor(Lowerer(), store)
    list(outcomes(executor, candidates(workload, config)))
    (place,) = executor._classes.values()
    damaged = replace(place.known[config].seen[0], tree=tree)
    place.known[config] = replace(place.known[config], seen=(damaged,))
    assert not list(executor.kept(candidates(workload, config)))
    assert kernels_of(outcomes(executor, candidates(workload, config))) == {config: expected(workload, config)}


def test_what_does_not_fit_the_target_at_hand_is_said(store: Store) -> None:
    """Families are shared by targets of one architecture, which may have cores of different size."""
    executor = KeptExecutor(Lowerer(), store)
    huge = full(config_of(stages=5))
    list(outcomes(executor, candidates(MATMUL.workload("M0"), huge)))
    figures = dict(TARGET.figures)
    figures["core.memory.shared.block_bytes"] = replace(figures["core.memory.shared.block_bytes"], value=16384.0)
    small = replace(TARGET, figures=figures)
    ((_, outcome),) = executor.kept([Candidate(MATMUL.workload("M0"), small, TEMPLATE, huge)])
    assert isinstance(outcome, Failure)
    assert outcome.kind is FailureKind.DOES_NOT_FIT


def test_a_template_that_scales_nothing_is_lowered_as_ever(store: Store) -> None:
    cpu = next(t for t in kernels.templates("matmul") if not t.scales)
    workload = MATMUL.workload("S512", "float32")
    workers = Lowerer()
    asked = Candidate(workload, load_target("cpu"), cpu, full(config_of()))
    assert [c for c, _ in outcomes(KeptExecutor(workers, store), [asked])] == [asked] == workers.lowered


class Mixed:
    """A source of jobs for both lanes: it builds what was lowered, and measures what was built."""

    def __init__(self, asked: Iterable[Candidate]) -> None:
        self.waiting: dict[Lane, list[Job]] = {Lane.PREPARE: [Lower(candidate) for candidate in asked], Lane.DEVICE: []}
        self.events: list[Event] = []

    def next(self, lane: Lane) -> Job | None:
        return self.waiting[lane].pop(0) if self.waiting[lane] else None

    def run(self, executor: KeptExecutor) -> None:
        for event in executor.stream(self):
            self.events.append(event)
            if isinstance(event, Lowered):
                self.waiting[Lane.PREPARE].append(Build(event.job.candidate))
            elif isinstance(event, Built):
                measured = Measure(event.job.candidate, event.result, Protocol.named("default", TARGET))
                self.waiting[Lane.DEVICE].append(measured)


def test_other_jobs_pass_through_also_where_all_profiles_are_kept(store: Store) -> None:
    workers = Lowerer()
    for known in (False, True):
        source = Mixed(candidates(M0, *CONFIGS))
        source.run(KeptExecutor(workers, store))
        assert len(workers.lowered) == BASES
        for kind in (Lowered, Built, Measured):
            assert sorted(e.job.candidate.config.key for e in source.events if isinstance(e, kind)) == sorted(c.key for c in CONFIGS), known


def test_it_is_as_wide_as_what_it_wraps(store: Store) -> None:
    executor = KeptExecutor(Lowerer(), store)
    assert [executor.width(lane) for lane in (Lane.PREPARE, Lane.DEVICE)] == [3, 2]


def test_kernels_with_an_open_dimension_are_kept_apart_and_for_all_its_values(store: Store) -> None:
    workers = Lowerer()

    def asked(shape: str, *dims: str) -> list[Candidate]:
        return [replace(candidate, open=dims) for candidate in candidates(MATMUL.workload(shape), *CONFIGS)]

    executor = KeptExecutor(workers, store)
    for shape in ("m=4096,n=4096,k=4096", "m=8192,n=4096,k=4096"):
        list(outcomes(executor, asked(shape)))
    static = len(workers.lowered)
    assert not list(executor.kept(asked("m=4096,n=4096,k=4096", "m"))), "what static kernels are says nothing of open ones"
    for shape in ("m=4096,n=4096,k=4096", "m=777,n=4096,k=4096"):
        list(outcomes(executor, asked(shape, "m")))
    assert [c.open for c in workers.lowered[static:]] == [("m",)] * (BASES + PROBES)
    for keeping in (executor, KeptExecutor(workers, store)):
        for m in (1, 17, 128, 777, 5000):  # less than a tile, cut with a rest or without one
            workload = MATMUL.workload(f"m={m},n=4096,k=4096")
            found = kernels_of(keeping.kept(asked(f"m={m},n=4096,k=4096", "m")))
            assert found == {c: expected(workload, c) for c in CONFIGS}, m
    assert not list(executor.kept(asked("m=17,n=4096,k=4096")))
