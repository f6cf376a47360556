"""The contract of all builders: for the processor, and for NVIDIA and AMD with their compilers."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tests.support.sample_kernels import product, scale
from tilesight.builder.build import ENTRY, build_kernel
from tilesight.errors import FailureKind
from tilesight.kernels import operator, template_for
from tilesight.machine.toolchain import missing_compiler
from tilesight.problem.candidate import Candidate
from tilesight.records.trial import BuildResult
from tilesight.target.spec import load_target

TARGETS = [name for name in ("cpu", "h100", "mi300x") if missing_compiler(load_target(name)) is None]


@pytest.fixture(params=[pytest.param(name, marks=[pytest.mark.full] * (name != "cpu")) for name in TARGETS])
def target(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture(scope="session")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache")


def built(candidate: Candidate, cache: Path) -> BuildResult:
    result = build_kernel(candidate, cache)
    assert result.failure is None, result.failure
    return result


def test_a_build_is_a_library_in_the_cache(target: str, cache: Path) -> None:
    result = built(product(target), cache)
    assert result.artifact is not None
    library = Path(result.artifact)
    assert cache in library.parents
    assert library.read_bytes().startswith(b"\x7fELF")
    assert result.entry == ENTRY
    assert result.compiler
    assert result.seconds > 0


def test_the_source_is_beside_the_library(target: str, cache: Path) -> None:
    artifact = built(product(target), cache).artifact
    assert artifact is not None
    (source,) = (
        p for p in Path(artifact).parent.glob(f"{Path(artifact).stem}.*") if p.suffix in (".cu", ".cpp")
    )
    assert "main_kernel" in source.read_text()


def test_the_same_source_is_compiled_once(target: str, cache: Path) -> None:
    first = built(product(target), cache)
    assert first.artifact is not None
    stamp = Path(first.artifact).stat().st_mtime_ns
    second = built(product(target), cache)
    assert second.artifact == first.artifact
    assert Path(first.artifact).stat().st_mtime_ns == stamp
    assert (second.resources, second.compiler, second.binary) == (
        first.resources,
        first.compiler,
        first.binary,
    )


def test_different_sources_have_different_libraries(target: str, cache: Path) -> None:
    small, large = (built(product(target, tile=tile), cache) for tile in (32, 64))
    assert small.artifact != large.artifact
    assert small.binary != large.binary


def test_a_build_has_a_binary_identity(target: str, cache: Path, tmp_path: Path) -> None:
    first, elsewhere = (built(product(target), folder) for folder in (cache, tmp_path))
    assert len(first.binary) == 24
    assert elsewhere.artifact != first.artifact
    assert elsewhere.binary == first.binary, "the same kernel, built again in another folder"


def test_a_gpu_build_has_resources(target: str, cache: Path) -> None:
    resources = built(product(target), cache).resources
    if target == "cpu":
        assert resources == {}
        return
    assert set(resources) >= {"registers", "spill_bytes", "smem_bytes"}
    assert 0 < resources["registers"] <= 512
    assert resources["smem_bytes"] >= 2 * 64 * 64 * 2, "two tiles of 64 x 64 in bfloat16 are in shared memory"


def test_results_travel_between_processes(target: str, cache: Path) -> None:
    for result in (build_kernel(product(target), cache), build_kernel(scale(target, "unlowerable"), cache)):
        assert pickle.loads(pickle.dumps(result)) == result


def test_a_candidate_that_cannot_be_lowered_is_a_failure(target: str, cache: Path) -> None:
    failure = build_kernel(scale(target, "unlowerable"), cache).failure
    assert failure is not None
    assert failure.kind is FailureKind.LOWER_ERROR
    assert "Layout infer conflict" in failure.message


def test_source_that_does_not_compile_is_a_failure(target: str, cache: Path) -> None:
    failure = build_kernel(scale(target, "uncompilable"), cache).failure
    assert failure is not None
    assert failure.kind is FailureKind.BUILD_ERROR
    assert "no_such_function" in failure.message, "the message is the compiler's first error"
    assert "no_such_function" in failure.detail
    built(product(target), cache)
    assert list(cache.rglob("building-*")) == [], "a partial build is left"


def test_a_cache_that_cannot_be_written_is_a_failure(target: str, tmp_path: Path) -> None:
    (tmp_path / "taken").write_text("a file where the folder should be")
    failure = build_kernel(product(target), tmp_path / "taken").failure
    assert failure is not None
    assert failure.kind is FailureKind.BUILD_ERROR
    assert "TILESIGHT_CACHE_DIR" in failure.message


def test_a_missing_compiler_is_a_failure(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tilesight.machine.toolchain.find_cuda_home", lambda *_: None)
    monkeypatch.setattr("tilesight.machine.toolchain.compiler_for", lambda *_: None)
    failure = build_kernel(product(target), tmp_path).failure
    assert failure is not None
    assert failure.kind is FailureKind.BUILD_ERROR
    assert "was not found" in failure.message


# kernels with dynamic dimensions


def opened(target: str, shape: str, *dims: str) -> Candidate:
    found = load_target(target)
    workload = operator("matmul").workload(shape, "bfloat16" if found.is_gpu else "float32")
    template = template_for("matmul", found, workload.dtype)
    config = template.default_config(operator("matmul").workload("m=512,n=512,k=512", workload.dtype), found)
    assert config is not None
    return Candidate(workload, found, template, config, dims)


@pytest.mark.full
def test_a_dynamic_dimension_is_built_once_for_all_its_values(target: str, cache: Path) -> None:
    results = [built(opened(target, f"m={m},n=512,k=512", "m"), cache) for m in (1, 8192)]
    assert len({(result.artifact, result.binary) for result in results}) == 1


@pytest.mark.full
def test_what_is_not_dynamic_is_part_of_the_kernel(cache: Path) -> None:
    """On the processor alone: libraries of every target have the hash of their source as a name."""
    opened_m, fixed, other = (
        built(opened("cpu", shape, *dims), cache).artifact
        for shape, dims in (
            ("m=777,n=512,k=512", ("m",)),
            ("m=777,n=512,k=512", ()),
            ("m=777,n=512,k=1024", ("m",)),
        )
    )
    assert len({opened_m, fixed, other}) == 3


def test_a_dimension_that_cannot_be_dynamic_is_a_failure(target: str, cache: Path) -> None:
    failure = build_kernel(opened(target, "m=777,n=512,k=512", "m", "m"), cache).failure
    assert failure is not None
    assert failure.kind is FailureKind.LOWER_ERROR
    assert "dynamic dimension m is given twice" in failure.message
