"""Preparing: two steps a candidate through one stream of real workers, their faults as data."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.fakes import AxpyTemplate, profile_of
from tilesight.candidate import Candidate
from tilesight.errors import Failure, FailureKind, ToolchainError
from tilesight.jobs import Profiled
from tilesight.preparing import Kept, Prepared, Preparer, _Step
from tilesight.space import Config
from tilesight.target import load_target
from tilesight.trial import BuildResult


def work(step: _Step) -> Profiled | Failure | BuildResult:
    """What a worker does for a candidate, by its block: 3 to 8 go wrong, each in its own way."""
    block = step.candidate.config.int("block")
    if step.lowered is None:
        if block == 3:
            raise ValueError("three is refused")
        if block == 4:
            return Failure(FailureKind.PROFILE_ERROR, "four cannot be read")
        if block == 5:
            os._exit(7)
        return Profiled((profile_of(step.candidate.config),), f"code-{block}", 0.01)
    if block == 6:
        return BuildResult(None, Failure(FailureKind.BUILD_ERROR, "six does not compile"))
    if block == 7:
        os._exit(7)
    if block == 8:
        return BuildResult(None, Failure(FailureKind.BUILD_ERROR, "kernel cache '/full': no space"))
    return BuildResult(f"/cache/{block}.so")


def prepare(configs: list[dict[str, int | bool]], monkeypatch: pytest.MonkeyPatch, kept: Kept | None = None) -> dict[Config, Prepared]:
    monkeypatch.setattr("tilesight.preparing._start", None)
    template = AxpyTemplate()
    workload, target = template.operator.workload("X0"), load_target("cpu")
    preparer = Preparer(2, Path("/nowhere"))
    monkeypatch.setattr(preparer, "_job", work)
    candidates = [Candidate(workload, target, template, Config(config)) for config in configs]
    with preparer:
        return {p.candidate.config: p for p in preparer.prepare(iter(candidates), {} if kept is None else kept)}


def config(block: int, stages: int = 1) -> dict[str, int | bool]:
    return {"block": block, "stages": stages, "swizzle": False}


def test_each_candidate_ends_once_and_faults_are_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    found = prepare([config(block) for block in range(1, 8)], monkeypatch)
    assert {c["block"] for c in found} == set(range(1, 8))
    by_block = {c["block"]: prepared for c, prepared in found.items()}
    for block in (1, 2):
        build = by_block[block].build
        assert build is not None
        assert build.artifact == f"/cache/{block}.so"
        assert by_block[block].lowered is not None
        assert by_block[block].failure is None
    kinds = {block: p.failure.kind for block, p in by_block.items() if p.failure}
    assert kinds == {
        3: FailureKind.LOWER_ERROR,
        4: FailureKind.PROFILE_ERROR,
        5: FailureKind.LOWER_CRASH,
        6: FailureKind.BUILD_ERROR,
        7: FailureKind.BUILD_CRASH,
    }
    assert by_block[5].lowered is None
    assert by_block[7].lowered is not None  # its profile is known, whatever the compiler made of it


def test_equal_code_is_built_once(monkeypatch: pytest.MonkeyPatch) -> None:
    known = Config(config(2, 3))
    kept: Kept = {("axpy(n=1024;dtype=float32)", "code-2"): known}
    found = prepare([config(1), config(1, 3), config(2)], monkeypatch, kept)
    failures = [(c["block"], p.failure) for c, p in found.items() if p.failure]
    assert len([p for p in found.values() if p.build]) == 1
    assert sorted(block for block, _ in failures) == [1, 2]
    assert {failure.kind for _, failure in failures} == {FailureKind.DUPLICATE}
    assert str(known) in dict(failures)[2].message
    assert all(p.lowered for p in found.values())


def test_a_full_cache_ends_all(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ToolchainError, match="no space"):
        prepare([config(1), config(8)], monkeypatch)
