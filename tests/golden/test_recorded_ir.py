"""Recorded IR is that of the passes, and answers for the same function alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support import recorded_ir
from tilesight.builder.build import device_source
from tilesight.costmodel.extract import read_profiles
from tilesight.kernels import operator, template_for
from tilesight.lowering.dynamic import at, lower_candidate
from tilesight.lowering.lower import Lowered, lower
from tilesight.problem.candidate import Candidate
from tilesight.target.spec import load_target

H100 = load_target("h100")


def candidate(name: str, shape: str, target_name: str = "h100") -> Candidate:
    target = load_target(target_name)
    template = template_for(name, target, "bfloat16")
    workload = operator(name).workload_on(target, shape)
    config = template.default_config(workload, target)
    assert config is not None
    return Candidate(workload, target, template, config)


MATMUL = candidate("matmul", "m=256,n=256,k=256")
NORM = candidate("rms_norm", "m=64,n=1024")


def pushed() -> Candidate:
    found = candidate("matmul_reduce_scatter", "m=512,n=512,k=256", "h100x2")
    space = found.template.space(found.workload, found.target)
    return replace(found, config=next(one for one in space.configs() if one["algorithm"] == "push"))


PUSHED = pushed()


@pytest.fixture
def passes(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The modules for which the passes run; there is no record yet, and what they do is not recorded."""
    from tilelang.backend.module import BackendModule

    recorded_ir.use_recorded_ir()
    run: Callable[..., Any] = getattr(BackendModule.lower, "run_passes")  # noqa: B009
    seen: list[Any] = []

    def noted(backend: Any, module: Any, target: Any) -> Any:
        seen.append(module)
        return run(backend, module, target)

    monkeypatch.setattr(BackendModule, "lower", recorded_ir.with_record(noted))
    monkeypatch.setattr(recorded_ir, "FILE", Path("none"))
    monkeypatch.setenv(recorded_ir.SWITCH, "1")
    monkeypatch.delenv(recorded_ir.FOLDER, raising=False)
    monkeypatch.delenv(recorded_ir.MISSES, raising=False)
    monkeypatch.setattr(recorded_ir, "LONG_S", 0.0)
    recorded_ir.recorded.cache_clear()
    yield seen
    recorded_ir.recorded.cache_clear()


def record(folder: Path, monkeypatch: pytest.MonkeyPatch, *candidates: Candidate) -> list[Lowered]:
    """Lower candidates and record what the passes make of them."""
    monkeypatch.setenv(recorded_ir.FOLDER, str(folder / "results"))
    made = [lower_candidate(one, only_read=True) for one in candidates]
    monkeypatch.delenv(recorded_ir.FOLDER)
    monkeypatch.setattr(recorded_ir, "FILE", folder / "ir.zip")
    recorded_ir.main(str(folder / "results"))
    recorded_ir.recorded.cache_clear()
    return made


def test_it_is_what_the_passes_make(
    passes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = record(tmp_path, monkeypatch, MATMUL, NORM)
    assert len(passes) == 2
    for one, made in zip((MATMUL, NORM), before, strict=True):
        read = lower_candidate(one, only_read=True)
        assert read.fingerprint == made.fingerprint
        assert read.host.script() == made.host.script()
        assert read.device.script() == made.device.script()
        assert read_profiles(read, one.target) == read_profiles(made, one.target)
        assert device_source(read, one.target) == device_source(made, one.target)
    assert len(passes) == 2, "nothing was lowered again"
    assert str(Path(__file__).parents[2]) not in recorded_ir.read(next(iter(recorded_ir.recorded())))


def test_whatever_differs_is_lowered(
    passes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, monkeypatch, NORM)
    built = NORM.template.build(NORM.workload, NORM.config)
    changes: list[Callable[[], object]] = [
        lambda: lower(built, H100),  # the passes for kernels that are compiled
        lambda: lower(built, load_target("a100"), only_read=True),
        lambda: lower(built, H100, {"tl.disable_safe_memory_legalize": True}, only_read=True),
        lambda: lower_candidate(candidate("rms_norm", "m=64,n=1032"), only_read=True),
        lambda: lower(
            NORM.template.build(replace(NORM.workload, dims={**NORM.workload.dims, "m": 65}), NORM.config),
            H100,
            only_read=True,
        ),
    ]
    passes.clear()
    lower(built, H100, only_read=True)
    assert not passes
    for number, change in enumerate(changes, start=1):
        change()
        assert len(passes) == number
    monkeypatch.setattr(recorded_ir, "version", lambda _: "0.0.1")
    lower(built, H100, only_read=True)
    assert len(passes) == len(changes) + 1, "another TileLang"


def test_the_shortcut_of_a_pass_is_a_part_of_them(
    passes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, monkeypatch, NORM)
    passes.clear()
    monkeypatch.setattr(recorded_ir, "shortcut", lambda: "other code")
    lower_candidate(NORM, only_read=True)
    assert len(passes) == 1


@pytest.mark.parametrize(
    "one",
    [replace(MATMUL, dynamic=("m",)), PUSHED],
    ids=["a size", "the number of a rank"],
)
def test_variables_that_are_read_are_those_of_the_function_at_hand(
    one: Candidate, passes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (made,) = record(tmp_path, monkeypatch, one)
    read = lower_candidate(one, only_read=True)
    assert len(passes) == 1, "nothing was lowered again"
    assert read.fingerprint == made.fingerprint
    dims = {**one.workload.dims, "m": 192} if one.dynamic else one.workload.dims
    numbers = {number.name: number.value for number in one.template.numbers}
    for part in (lambda found: found.device.script(), lambda found: read_profiles(found, one.target)):
        there = part(at(read, dims, numbers))
        assert there == part(at(made, dims, numbers))
    assert at(read, dims, numbers).device.script() != read.device.script(), "its variables are found"


def test_sizes_of_what_becomes_text_may_be_variables(
    passes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened = replace(MATMUL, dynamic=("m",))
    with recorded_ir.only_text():
        (made,) = record(tmp_path, monkeypatch, opened)
        read = lower_candidate(opened, only_read=True)
    assert len(passes) == 1
    assert device_source(read, H100) == device_source(made, H100)


def test_what_is_compiled_is_always_lowered(
    passes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The launcher looks for the tensors of the traced function in what the passes make of it."""
    monkeypatch.setenv(recorded_ir.FOLDER, str(tmp_path / "results"))
    built = MATMUL.template.build(MATMUL.workload, MATMUL.config)
    lower(built, H100)
    assert len(passes) == 1
    assert not (tmp_path / "results").exists()


def test_it_can_be_switched_off(passes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    record(tmp_path, monkeypatch, NORM)
    passes.clear()
    monkeypatch.setenv(recorded_ir.SWITCH, "0")
    lower_candidate(NORM, only_read=True)
    assert len(passes) == 1


def test_a_record_keeps_what_a_run_has_used(
    passes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, monkeypatch, MATMUL, NORM)
    before = recorded_ir.recorded()
    (tmp_path / "again").mkdir()
    monkeypatch.setenv(recorded_ir.FOLDER, str(tmp_path / "again"))
    lower_candidate(NORM, only_read=True)
    recorded_ir.main(str(tmp_path / "again"))
    recorded_ir.recorded.cache_clear()
    assert len(recorded_ir.recorded()) == 1
    assert recorded_ir.recorded() < before
    passes.clear()
    monkeypatch.setattr(recorded_ir, "LONG_S", 60.0)
    lower_candidate(MATMUL, only_read=True)
    assert len(passes) == 1
    assert len(list((tmp_path / "again").iterdir())) == 1, "what does not take long is not recorded"


def test_some_may_be_added_to_a_record(
    passes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, monkeypatch, NORM)
    before = recorded_ir.recorded()
    added = tmp_path / "added"
    monkeypatch.setenv(recorded_ir.FOLDER, str(added))
    lower_candidate(candidate("rms_norm", "m=64,n=1032"), only_read=True)
    monkeypatch.delenv(recorded_ir.FOLDER)
    recorded_ir.main(str(added), keep=True)
    recorded_ir.recorded.cache_clear()
    assert recorded_ir.recorded() > before
    passes.clear()
    lower_candidate(NORM, only_read=True)
    lower_candidate(candidate("rms_norm", "m=64,n=1032"), only_read=True)
    assert not passes


def test_long_passes_for_what_is_not_in_the_record_are_noted(
    passes: list[Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record(tmp_path, monkeypatch, NORM)
    noted = tmp_path / "misses"
    monkeypatch.setenv(recorded_ir.MISSES, str(noted))
    lower_candidate(NORM, only_read=True)
    assert recorded_ir.misses(noted) == []
    lower_candidate(MATMUL, only_read=True)
    lower_candidate(candidate("rms_norm", "m=64,n=1032"), only_read=True)
    found = recorded_ir.misses(noted)
    assert len(found) == len(passes) - 1 == 2
    assert found == sorted(found, reverse=True)
    assert all("::test_long_passes_for_what_is_not_in_the_record" in test for _, test in found)
    monkeypatch.setattr(recorded_ir, "LONG_S", 60.0)
    lower_candidate(MATMUL, only_read=True)
    assert len(recorded_ir.misses(noted)) == 2, "what does not take long is not recorded"
