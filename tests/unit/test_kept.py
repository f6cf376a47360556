"""The executor that keeps profiles: lowers at probes, answers other shapes of the class, falls back where it cannot."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.unit.test_families import TEMPLATE, config_of, profile_of
from tilesight import kept, kernels
from tilesight.candidate import Candidate
from tilesight.database import Store, open_store
from tilesight.errors import Failure, FailureKind
from tilesight.jobs import Profiled
from tilesight.kept import KeptExecutor
from tilesight.profile import Rasterization
from tilesight.space import Config
from tilesight.target import load_target
from tilesight.workload import Workload

TARGET = load_target("a100")
MATMUL = kernels.operator("matmul")


class Lowerer:
    """Stands for worker processes; counts what reaches them."""

    def __init__(self) -> None:
        self.lowered: list[Candidate] = []
        self.fails_at: set[str] = set()

    def lower(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Profiled | Failure]]:
        for candidate in candidates:
            self.lowered.append(candidate)
            if candidate.workload.key in self.fails_at:
                yield candidate, Failure(FailureKind.LOWER_ERROR, "no layout")
            else:
                yield candidate, Profiled(profile_of(candidate.workload, candidate.config), f"code {candidate.config}", 0.3)

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


def test_what_was_lowered_for_one_shape_answers_others_also_in_another_process(store: Store) -> None:
    first, second = MATMUL.workload("M0"), MATMUL.workload("m=8192,n=2048,k=1280")
    workers = Lowerer()
    executor = KeptExecutor(workers, store)
    assert kernels_of(executor.lower(candidates(first, *CONFIGS))) == {c: expected(first, c) for c in CONFIGS}
    assert len(workers.lowered) == 3 + 2  # one config at three probes, two at one; the twin at none
    for keeping in (executor, KeptExecutor(workers, store)):
        assert kernels_of(keeping.kept(candidates(second, *CONFIGS))) == {c: expected(second, c) for c in CONFIGS}
        assert kernels_of(keeping.lower(candidates(second, *CONFIGS))) == {c: expected(second, c) for c in CONFIGS}
    assert len(workers.lowered) == 5


def test_twins_share_their_instances_and_shapes_do_not(store: Store) -> None:
    executor, (first, second) = KeptExecutor(Lowerer(), store), (MATMUL.workload("M0"), MATMUL.workload("M5"))
    base, twin = full(config_of(64)), full(config_of(64), swizzle=8)
    list(executor.lower(candidates(first, base)))
    for workload in (first, second, first):
        found = kernels_of(executor.kept(candidates(workload, base, twin)))
        assert found == {c: expected(workload, c) for c in (base, twin)}
        assert found[base][0].roles is found[twin][0].roles


def test_codes_differ_between_shapes_and_twins(store: Store) -> None:
    executor = KeptExecutor(Lowerer(), store)
    prints = set()
    for shape in ("M0", "M5"):
        for _, outcome in executor.lower(candidates(MATMUL.workload(shape), *CONFIGS)):
            assert isinstance(outcome, Profiled)
            prints.add(outcome.fingerprint)
    assert len(prints) == 2 * len(CONFIGS)


def test_another_class_and_another_version_of_the_readers_start_anew(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    executor = KeptExecutor(Lowerer(), store)
    list(executor.lower(candidates(MATMUL.workload("M0"), *CONFIGS)))
    assert not list(executor.kept(candidates(MATMUL.workload("m=1000,n=1000,k=1000"), *CONFIGS)))
    assert not list(executor.kept(candidates(MATMUL.workload("M0", "float16"), *CONFIGS)))
    monkeypatch.setattr(kept, "reader_version", lambda: "newer")
    assert not list(KeptExecutor(Lowerer(), store).kept(candidates(MATMUL.workload("M0"), *CONFIGS)))


def test_a_shape_that_makes_another_ir_is_lowered_itself(store: Store) -> None:
    workers = Lowerer()
    executor = KeptExecutor(workers, store)
    short = MATMUL.workload("m=4096,n=4096,k=256")  # four iterations: too few for what was learned of three buffers
    config = full(config_of())
    assert kernels_of(executor.lower(candidates(short, config))) == {config: expected(short, config)}
    assert workers.lowered[-1].workload == short
    assert not list(executor.kept(candidates(short, config)))


def test_what_fails_at_a_probe_is_tried_at_its_own_shape(store: Store) -> None:
    workers, workload = Lowerer(), MATMUL.workload("M0")
    probe = kept.ShapeClass(TEMPLATE, workload).probe(0)
    workers.fails_at = {probe.key}
    found = kernels_of(KeptExecutor(workers, store).lower(candidates(workload, CONFIGS[0])))
    assert found == {CONFIGS[0]: expected(workload, CONFIGS[0])}
    workers.fails_at = {probe.key, workload.key}
    ((_, outcome),) = KeptExecutor(workers, store).lower(candidates(workload, CONFIGS[1]))
    assert outcome == Failure(FailureKind.LOWER_ERROR, "no layout")


def test_a_config_that_no_rule_explains_is_probed_once(store: Store) -> None:
    class Odd(Lowerer):
        def lower(self, candidates):  # type: ignore[no-untyped-def]
            for candidate, outcome in super().lower(candidates):
                odd = profile_of(candidate.workload, candidate.config, extra=candidate.workload.dims["m"] % 700)
                yield candidate, replace(outcome, kernels=odd)

    workers, config = Odd(), full(config_of())
    list(KeptExecutor(workers, store).lower(candidates(MATMUL.workload("M0"), config)))
    assert len(workers.lowered) == 3 + 1
    again = candidates(MATMUL.workload("M5"), config)
    assert not list(KeptExecutor(workers, store).kept(again))
    assert [c for c, _ in KeptExecutor(workers, store).lower(again)] == again
    assert len(workers.lowered) == 5


def test_what_was_kept_damaged_is_lowered_anew(store: Store) -> None:
    workload, config = MATMUL.workload("M0"), full(config_of())
    executor = KeptExecutor(Lowerer(), store)
    list(executor.lower(candidates(workload, config)))
    (place,) = executor._classes.values()
    place.known[config] = replace(place.known[config], base=[{"kind": "cuda"}])
    assert not list(executor.kept(candidates(workload, config)))
    assert kernels_of(executor.lower(candidates(workload, config))) == {config: expected(workload, config)}


def test_what_does_not_fit_the_target_at_hand_is_said(store: Store) -> None:
    """Families are shared by targets of one architecture, which may have cores of different size."""
    executor = KeptExecutor(Lowerer(), store)
    huge = full(config_of(stages=5))
    list(executor.lower(candidates(MATMUL.workload("M0"), huge)))
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
    assert [c for c, _ in KeptExecutor(workers, store).lower([asked])] == [asked] == workers.lowered
