"""One candidate through the compiler: what is reported, and what is said where there is no compiler."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from tests.support.fakes import AxpyTemplate
from tests.unit.cli.documented import check_fields
from tests.unit.machine.test_toolchain import bare, settings, tool
from tilesight.api import compilation
from tilesight.api.compilation import build, compile_candidate
from tilesight.builder.kernel_cache import KernelCache
from tilesight.cli.build import build as command
from tilesight.errors import Failure, FailureKind, InputError, NoCandidateError, ToolchainError
from tilesight.executor.tasks import Profiled
from tilesight.machine import toolchain
from tilesight.machine.toolchain import find_hip_clang, missing_compiler
from tilesight.problem.candidate import Candidate
from tilesight.problem.space import Config
from tilesight.profile.values import KernelProfile, Phase, Role, Trips, Work
from tilesight.records.trial import BuildResult
from tilesight.target.spec import load_target
from tilesight.workers import Done, Outcome

__all__ = ["bare"]  # the fixture

H200, MI300X = load_target("h200"), load_target("mi300x")
CONFIG = Config({"block": 20, "stages": 1, "swizzle": False})
WORK = Work(vector_ops=1e6)
KERNEL = KernelProfile(
    "cuda",
    "sm_90a",
    (1024, 1, 1),
    256,
    1,
    4096,
    (Role("all", 256, (Phase(Trips((8.0,)), WORK, is_loop=True),), local_registers=200.0),),
    (),
)


class Pool:
    """Answers in this process with what the test says."""

    answer: Callable[[], Outcome[Any]]

    def __init__(self, *_: object, **__: object) -> None: ...

    def __enter__(self) -> Pool:
        return self

    def __exit__(self, *_: object) -> None: ...

    def run(self, _function: object, items: list[Any]) -> Iterator[tuple[int, Outcome[Any]]]:
        assert len(items) == 1
        yield 0, type(self).answer()


@pytest.fixture
def compiler(monkeypatch: pytest.MonkeyPatch) -> Callable[[Any, Any], None]:
    """What lowering and the compiler answer."""
    monkeypatch.setattr(compilation, "compiler_pool", Pool)
    monkeypatch.setattr(compilation, "missing_compiler", lambda *_, **__: None)
    template = AxpyTemplate()
    monkeypatch.setattr(
        "tilesight.kernels._registry", lambda: ({"axpy": template.operator}, {"axpy": template})
    )

    def set_answer(profiled: Any, built: Any) -> None:
        monkeypatch.setattr(Pool, "answer", staticmethod(lambda: Done((profiled, built), 1.0)), raising=False)

    return set_answer


def lowered() -> Profiled:
    return Profiled((KERNEL,), "code", 0.1)


def result(tmp_path: Path, **resources: int) -> BuildResult:
    (tmp_path / "k.so").write_text("")
    (tmp_path / "k.cu").write_text("__global__ void axpy();\n")
    return BuildResult(str(tmp_path / "k.so"), None, "tilesight_call", resources, "nvcc 13.0.88", 2.0)


def test_the_compiler_stands_beside_the_estimate(
    compiler: Callable[[Any, Any], None], tmp_path: Path
) -> None:
    compiler(lowered(), result(tmp_path, registers=128, spill_bytes=400, smem_bytes=80_000))
    found = build("axpy", H200, "X0", config="block=20,stages=1,swizzle=false")
    assert found.from_ir is not None
    assert found.from_compiler is not None
    assert 200 < found.from_ir.registers <= 255
    assert (found.from_ir.spilled_registers, found.from_ir.smem_bytes) == (0, 4096)
    assert (found.from_compiler.registers, found.from_compiler.spilled_registers) == (128, 50)
    assert (found.from_ir.blocks_per_core, found.from_compiler.blocks_per_core) == (1, 2)
    assert found.source == "__global__ void axpy();\n"


def test_the_command_prints_both(compiler: Callable[[Any, Any], None], tmp_path: Path) -> None:
    compiler(lowered(), result(tmp_path, registers=122, spill_bytes=0, smem_bytes=80_000))
    asked = ["axpy", "--target", "h200", "--shape", "X0", "--config", "block=20,stages=1,swizzle=false"]
    done = CliRunner().invoke(command, [*asked, "--source"], catch_exceptions=False)
    assert done.exit_code == 0
    lines = [line.split() for line in done.output.splitlines()]
    (registers,) = (line for line in lines if line[:3] == ["registers", "per", "thread"])
    assert registers[-1] == "128"  # in eights, as they are allocated
    assert ["blocks", "per", "core", "1", "2"] in lines
    assert ["registers", "122"] in lines
    assert "nvcc 13.0.88" in done.output
    assert f"library: {tmp_path / 'k.so'}" in done.output
    assert "__global__ void axpy();" in done.output
    fields = json.loads(CliRunner().invoke(command, [*asked, "--json"], catch_exceptions=False).output)
    assert fields["kind"] == "build"
    check_fields("build", [fields])
    assert fields["resources"] == {"registers": 122, "spill_bytes": 0, "smem_bytes": 80_000}
    assert fields["from_compiler"]["limited_by"] in {"shared memory", "registers"}
    assert fields["source"] is None
    assert fields["runnable"] is True


def test_a_kernel_with_an_open_dimension_says_so(
    compiler: Callable[[Any, Any], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dim, *_) = AxpyTemplate.operator.dims
    compiler(lowered(), result(tmp_path, registers=122, spill_bytes=0, smem_bytes=80_000))
    asked = [
        "axpy",
        "--target",
        "h200",
        "--shape",
        "X0",
        "--config",
        "block=20,stages=1,swizzle=false",
        "--dynamic",
        dim,
    ]
    with pytest.raises(
        InputError, match=f"axpy: {dim} cannot be dynamic in .*none of its dimensions can be dynamic"
    ):
        CliRunner().invoke(command, asked, catch_exceptions=False)
    monkeypatch.setattr(AxpyTemplate, "dynamic_dims", (dim,))
    done = CliRunner().invoke(command, asked, catch_exceptions=False)
    assert f"dynamic {dim}: one library for all values" in done.output
    assert json.loads(CliRunner().invoke(command, [*asked, "--json"], catch_exceptions=False).output)[
        "dynamic"
    ] == [dim]
    assert build("axpy", H200, "X0", config=dict(CONFIG), dynamic=dim).candidate.dynamic == (dim,)
    with pytest.raises(InputError, match=f"{dim} is given twice"):
        build("axpy", H200, "X0", config=dict(CONFIG), dynamic=(dim, dim))


@pytest.mark.parametrize("stage", ["lower", "compile"])
def test_a_refused_candidate_says_why(stage: str, compiler: Callable[[Any, Any], None]) -> None:
    failure = Failure(FailureKind.BUILD_ERROR, "ptxas ended with exit code 255", "line 7: error")
    compiler(failure if stage == "lower" else lowered(), BuildResult(None, failure))
    with pytest.raises(NoCandidateError, match=r"cannot be built for h200: ptxas ended(.|\n)*line 7: error"):
        build("axpy", H200, "X0", config=dict(CONFIG))


@pytest.mark.usefixtures("compiler")
def test_an_illegal_config_is_wrong_input() -> None:
    with pytest.raises(InputError, match="even"):
        build("axpy", H200, "X0", config="block=21,stages=2,swizzle=false")


@pytest.mark.usefixtures("bare")
def test_without_a_compiler_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(toolchain, "find_hipcc", lambda *_: None)
    monkeypatch.setenv("ROCM_PATH", str(tmp_path / "nothing"))
    template = AxpyTemplate()
    candidate = Candidate(template.operator.workload("X0"), MI300X, template, CONFIG)
    with pytest.raises(
        ToolchainError, match=r"needs hipcc.*clang-19 lld-19.*ROCM_PATH.*include/hip.*amdgcn/bitcode"
    ) as raised:
        compile_candidate(candidate, tmp_path)
    assert raised.value.exit_code == 5


def rocm(folder: Path) -> Path:
    for name in ("include/hip/hip_runtime.h", "amdgcn/bitcode/ocml.bc"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("")
    return folder


def clang(
    folder: Path, name: str, version: str = "19.1.7", targets: str = "amdgcn", lld: str = "/usr/bin/lld"
) -> Path:
    path = tool(folder, name, "clang")
    path.write_text(
        f'#!/bin/sh\ncase "$1" in -dumpversion) echo {version};; '
        f"--print-targets) echo {targets};; *) echo {lld};; esac\n"
    )
    return path


def test_clang_and_headers_are_enough_for_code_objects(bare: Path, tmp_path: Path) -> None:
    found = clang(bare, "clang++-19")
    here = settings(rocm_home=rocm(tmp_path / "rocm"))
    assert find_hip_clang(here) == toolchain.HipClang(found, tmp_path / "rocm")
    assert missing_compiler(MI300X, here, runnable=False) is None
    assert missing_compiler(MI300X, here) is not None  # to run them takes ROCm


@pytest.mark.parametrize("fault", [{"version": "14.0.6"}, {"targets": "x86-64"}, {"lld": "lld"}])
def test_a_clang_that_will_not_do_is_passed_over(fault: dict[str, str], bare: Path, tmp_path: Path) -> None:
    clang(bare, "clang++", **fault)
    here = settings(rocm_home=rocm(tmp_path / "rocm"))
    assert find_hip_clang(here) is None
    found = clang(bare, "clang++-20", "20.1.0")
    assert find_hip_clang(here) == toolchain.HipClang(found, tmp_path / "rocm")


def test_no_headers_no_clang(bare: Path, tmp_path: Path) -> None:
    clang(bare, "clang++-19")
    assert find_hip_clang(settings(rocm_home=tmp_path)) is None


def test_a_code_object_is_found_again_in_the_cache(tmp_path: Path) -> None:
    cache = KernelCache(tmp_path)
    with cache.building("ab" * 12) as folder:
        (folder / "kernel.hsaco").write_text("code")
        (folder / "kernel.cpp").write_text("source")
        stored = cache.store(
            "ab" * 12, [folder / "kernel.hsaco", folder / "kernel.cpp"], {"registers": 3}, "clang 19"
        )
    assert stored.library.read_text() == "code"
    assert cache.find("ab" * 12) == stored
    stored.library.unlink()
    assert cache.find("ab" * 12) is None
