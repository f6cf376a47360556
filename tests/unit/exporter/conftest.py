"""Exports that several tests read: of kernels for the processor, and for a GPU that need not be here."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.exports import matmul_table, parameter_lines, stub_driver
from tests.unit.conftest import SharedExecutor
from tilesight.api.exporting import export
from tilesight.dispatch.table.dispatch_table import DispatchTable
from tilesight.dispatch.table.table_file import write_table
from tilesight.executor.local import LocalExecutor
from tilesight.exporter.libraries import built_kernels
from tilesight.exporter.table_source import kernels_of_table
from tilesight.machine.toolchain import find_cxx, find_nvcc

CPU_SEGMENTS = [(1, 16, 0), (17, 40, 1), (41, 41, 0), (42, 100, 1)]
GPU_SEGMENTS = [(1, 64, 1), (65, 300, 0), (301, 400, 1), (401, 4096, 0)]


@dataclass(frozen=True)
class Sample:
    """An export: its table, the table's file, its folder, and the libraries that it was made from."""

    table: DispatchTable
    file: Path
    folder: Path
    libraries: tuple[Path, ...]


@contextmanager
def exports_by(executor: LocalExecutor) -> Iterator[None]:
    """Exports take kernels of the cache of `executor`, which builds the missing ones."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TILESIGHT_CACHE_DIR", str(executor._cache_dir))
        patch.setattr("tilesight.executor.local.LocalExecutor", lambda *_, **__: SharedExecutor(executor))
        yield


@pytest.fixture(scope="session")
def export_cache(session_executor: LocalExecutor) -> Path:
    """The kernel cache of `session_executor`, which builds for the tests of exports, too."""
    if find_cxx() is None:
        pytest.skip("needs g++: apt-get install g++")
    return session_executor._cache_dir


@pytest.fixture(autouse=True)
def exports_here(request: pytest.FixtureRequest) -> Iterator[None]:
    """Tests that use `export_cache` export with it, too."""
    if "export_cache" not in request.fixturenames:
        yield
        return
    request.getfixturevalue("export_cache")
    with exports_by(request.getfixturevalue("session_executor")):
        yield


@pytest.fixture(scope="session")
def cpu_sample(
    export_cache: Path, session_executor: LocalExecutor, tmp_path_factory: pytest.TempPathFactory
) -> Sample:
    table = matmul_table("cpu", "float32", {"n": 48, "k": 32}, [{}, {"block_m": 64}], CPU_SEGMENTS)
    with exports_by(session_executor):
        return _sample(export_cache, table, tmp_path_factory.mktemp("cpu"), "python")


@pytest.fixture(scope="session")
def gpu_sample(
    export_cache: Path, session_executor: LocalExecutor, tmp_path_factory: pytest.TempPathFactory
) -> Sample:
    """Two kernels for an H200; the second one adds parts of k in a launch of its own, from scratch memory."""
    if find_nvcc() is None:
        pytest.skip("needs nvcc")
    changes: list[dict[str, int | str]] = [{}, {"split_k": 2}]
    table = matmul_table("h200", "bfloat16", {"n": 256, "k": 1024}, changes, GPU_SEGMENTS)
    with exports_by(session_executor):
        return _sample(export_cache, table, tmp_path_factory.mktemp("gpu"), "c")


def _sample(cache: Path, table: DispatchTable, folder: Path, format: str) -> Sample:
    file = folder / "product.json"
    write_table(table, file)
    export(file, folder / "made", format=format)
    built = built_kernels(kernels_of_table(table, "product", None))
    libraries = tuple(Path(one.artifact or "") for one in built)
    assert all(library.is_relative_to(cache) for library in libraries)
    return Sample(table, file, folder / "made", libraries)


@pytest.fixture(scope="session")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the stub driver's library."""
    return stub_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def stub_environment(driver: Path, gpu_sample: Sample, tmp_path: Path) -> dict[str, str]:
    """The environment of a program that uses the stub driver, which writes to the file STUB_LOG."""
    parameters = tmp_path / "parameters"
    lines = [parameter_lines(library, library.with_suffix(".cu")) for library in gpu_sample.libraries]
    parameters.write_text("".join(lines), encoding="utf-8")
    return {
        "LD_LIBRARY_PATH": str(driver),
        "STUB_LOG": str(tmp_path / "log"),
        "STUB_PARAMETERS": str(parameters),
        "PATH": "/usr/bin:/bin",
    }
