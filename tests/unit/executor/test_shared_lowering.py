"""Rasterization variants share one lowering."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import pytest

from tests.support.fakes import profile_of
from tilesight import kernels
from tilesight.errors import Failure, FailureKind
from tilesight.executor.shared_lowering import SharedLowering, with_rasterization
from tilesight.executor.tasks import Profiled
from tilesight.problem.candidate import Candidate
from tilesight.problem.rasterization import Rasterization
from tilesight.problem.space import Config
from tilesight.target.spec import load_target

WORKLOAD = kernels.operator("matmul").workload("M0")
TEMPLATE = next(t for t in kernels.templates("matmul") if t.scales)
PROFILED = Profiled((profile_of(Config({"block": 1, "stages": 1, "swizzle": False})),), "code", 0.3)


def candidate(block_m: int, swizzle: int) -> Candidate:
    return Candidate(
        WORKLOAD, load_target("h200"), TEMPLATE, Config({"block_m": block_m, "swizzle": swizzle})
    )


class Lowerer:
    def __init__(self, outcome: Profiled | Failure = PROFILED) -> None:
        self.outcome, self.lowered = outcome, list[Config]()

    def __call__(self, candidates: Iterable[Candidate]) -> Iterator[tuple[Candidate, Profiled | Failure]]:
        for found in candidates:
            self.lowered.append(found.config)
            yield found, self.outcome


def test_each_base_is_lowered_once_over_all_calls() -> None:
    shared, run = SharedLowering(), Lowerer()
    requested = [candidate(m, s) for m in (64, 128) for s in (8, 4, 0, 16)]
    found = dict(shared.lower(requested, run))
    assert set(found) == set(requested)
    assert run.lowered == [Config({"block_m": 64, "swizzle": 0}), Config({"block_m": 128, "swizzle": 0})]
    again = candidate(64, 16)
    assert dict(shared.lower([again], run)) == {again: found[requested[3]]}
    assert len(run.lowered) == 2


def test_variants_differ_in_their_rasterization_and_fingerprint() -> None:
    shared, run = SharedLowering(), Lowerer()
    found = {
        c.config["swizzle"]: outcome
        for c, outcome in shared.lower([candidate(64, s) for s in (0, 4, 8)], run)
    }
    outcomes = [o for o in found.values() if isinstance(o, Profiled)]
    assert len({o.fingerprint for o in outcomes}) == 3
    assert found[0] == PROFILED
    assert found[8] == with_rasterization(PROFILED, Rasterization("row", 8))
    kernel = outcomes[1].kernels[0]
    assert replace(kernel, rasterization=PROFILED.kernels[0].rasterization) == PROFILED.kernels[0]


def test_variants_of_clusters_along_z_keep_their_depth() -> None:
    (kernel,) = PROFILED.kernels
    cluster = replace(PROFILED, kernels=(replace(kernel, rasterization=Rasterization(depth=2)),))
    (variant,) = with_rasterization(cluster, Rasterization("row", 8)).kernels
    assert variant.rasterization == Rasterization("row", 8, depth=2)


def test_variants_of_a_failed_base_fail_and_are_tried_again() -> None:
    failure = Failure(FailureKind.LOWER_ERROR, "no layout")
    shared, run = SharedLowering(), Lowerer(failure)
    assert [outcome for _, outcome in shared.lower([candidate(64, 0), candidate(64, 8)], run)] == [
        failure,
        failure,
    ]
    run.outcome = PROFILED
    assert [outcome for _, outcome in shared.lower([candidate(64, 0)], run)] == [PROFILED]


def test_candidates_are_drawn_as_there_is_room() -> None:
    drawn: list[int] = []

    def source() -> Iterator[Candidate]:
        for block in range(16, 160, 16):
            drawn.append(block)
            yield candidate(block, 0)

    answers = SharedLowering().lower(source(), Lowerer())
    next(answers)
    assert len(drawn) == 1


@pytest.mark.parametrize("panel", [4, 8, 16])
def test_a_template_names_the_base_and_the_rasterization(panel: int) -> None:
    found = TEMPLATE.reordered(Config({"block_m": 64, "swizzle": panel}))
    assert found == (Config({"block_m": 64, "swizzle": 0}), Rasterization("row", panel))
    assert TEMPLATE.reordered(Config({"block_m": 64, "swizzle": 0})) is None
