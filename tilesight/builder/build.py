"""Builds one candidate: lowers it, generates its source, compiles that into a library in the kernel cache.

Runs in a worker process, since TileLang may abort and a compiler may hang. A failure is part of the result.
"""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ..errors import Failure, FailureKind, headline
from ..lowering.dynamic import lower_candidate
from ..lowering.lower import Lowered
from ..machine.devices import cpu_identity
from ..machine.toolchain import (
    BUILD_VERSION,
    compiler_for,
    compiler_version,
    find_cxx,
    find_hip_clang,
    missing_compiler,
    package_version,
    software_versions,
)
from ..problem.candidate import Candidate
from ..records.session import code_software
from ..records.trial import BuildResult
from ..target.spec import Target
from .binary_identity import NotElfError, binary_identity
from .compiler import CompileError
from .cpu import build_cpu, cpu_flags
from .cuda import build_cuda, cuda_flags
from .hip import build_code_object, build_hip, code_object_flags, hip_flags
from .index_files import code_versions, index_key, index_path, read_index_file, write_index_file
from .kernel_cache import CODE_OBJECT, KernelCache, KernelCacheEntry, cache_key
from .launch_plan import LaunchPlan, UnsupportedLaunchError, read_plan
from .producer_warps import without_idle_warps
from .stage_reads import with_complete_reads

ENTRY = "tilesight_call"
Rewrite = Callable[[str, LaunchPlan], tuple[str, LaunchPlan]]


def build_kernel(candidate: Candidate, cache_dir: Path, *, runnable: bool = True) -> BuildResult:
    """Build `candidate`, or find its library in the cache.

    Equal sources of different configs and processes are compiled once. A kernel with dynamic dimensions is
    compiled once for all their values. A library that can be called gets an index file, by which dispatchers
    find it without lowering.

    Args:
        candidate: What to build.
        cache_dir: Folder of the kernel cache.
        runnable: False allows a code object: the GPU's code alone, without an `entry` to call.
    """
    flags = candidate.template.compile_flags.get(candidate.target.kind, ())
    built = build_lowered(
        lambda: lower_candidate(candidate), candidate.target, flags, cache_dir, runnable=runnable
    )
    if built.entry:
        _add_to_index(candidate, built, cache_dir)
    return built


def build_lowered(
    lower: Callable[[], Lowered],
    target: Target,
    flags: tuple[str, ...],
    cache_dir: Path,
    *,
    runnable: bool = True,
    rewrite: Rewrite | None = None,
) -> BuildResult:
    """Build what `lower` returns, or find its library in the cache; no index file is written.

    Args:
        lower: Makes the lowered function; what it raises is the failure of the build.
        target: What to build for.
        flags: Further options of the compiler.
        cache_dir: Folder of the kernel cache.
        runnable: As for `build_kernel`.
        rewrite: Changes source and plan before they are compiled; what it raises is raised.
    """
    begin = time.perf_counter()

    def failed(kind: FailureKind, message: str, detail: str = "") -> BuildResult:
        return BuildResult(None, Failure(kind, message, detail), seconds=time.perf_counter() - begin)

    missing = missing_compiler(target, runnable=runnable)
    if missing:
        return failed(FailureKind.BUILD_ERROR, missing)
    try:
        lowered = lower()
        source = device_source(lowered, target)
    except Exception as error:  # TileLang raises many types of errors
        return failed(
            FailureKind.LOWER_ERROR, f"{type(error).__name__}: {headline(str(error))}", str(error)[-4000:]
        )
    try:
        plan = read_plan(lowered)
        if rewrite is not None:
            source, plan = rewrite(source, plan)
        entry = _compile(source, plan, target, flags, KernelCache(cache_dir))
    except UnsupportedLaunchError as error:
        return failed(FailureKind.BUILD_ERROR, f"the kernel cannot be called: {error}")
    except NotElfError as error:
        return failed(FailureKind.BUILD_ERROR, f"the compiler wrote {error}")
    except CompileError as error:
        if error.is_killed:
            return failed(FailureKind.BUILD_MEMORY, str(error), error.detail)
        if "No space left on device" in error.detail:
            return failed(FailureKind.BUILD_ERROR, _no_space(cache_dir), error.detail)
        return failed(FailureKind.BUILD_ERROR, str(error), error.detail)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            return failed(FailureKind.BUILD_ERROR, _no_space(cache_dir))
        return failed(
            FailureKind.BUILD_ERROR,
            f"kernel cache '{cache_dir}': {error}; set TILESIGHT_CACHE_DIR to a folder that can be written",
        )
    symbol = "" if entry.library.suffix == CODE_OBJECT else ENTRY
    return BuildResult(
        str(entry.library),
        None,
        symbol,
        entry.resources,
        entry.compiler,
        time.perf_counter() - begin,
        entry.binary,
    )


def _add_to_index(candidate: Candidate, built: BuildResult, cache_dir: Path) -> None:
    """Write the index file of a library, unless it names this library already."""
    versions = code_versions(candidate.target, code_software(software_versions(candidate.target)))
    path = index_path(cache_dir, index_key(candidate, versions))
    known = read_index_file(path)
    if known is None or known.artifact != built.artifact:
        write_index_file(path, built)


def device_source(lowered: Lowered, target: Target) -> str:
    """The source that TileLang generates for the kernels: CUDA, HIP or C."""
    from tilelang.backend.module import create_backend_context
    from tilelang.engine.lower import device_codegen_without_compile
    from tvm.target import Target as TvmTarget

    tvm_target: Any = TvmTarget(target.tvm_target())
    with tvm_target:
        kernels = with_complete_reads(without_idle_warps(lowered.device))
        return str(
            device_codegen_without_compile(kernels, create_backend_context(tvm_target)).inspect_source()
        )


def _compile(
    source: str, plan: LaunchPlan, target: Target, extra: tuple[str, ...], cache: KernelCache
) -> KernelCacheEntry:
    compiler, cxx = compiler_for(target), find_cxx()
    if compiler is None and target.kind == "hip":
        return _compile_code_object(source, plan, target, extra, cache)
    assert compiler is not None  # checked before lowering
    assert cxx is not None
    version = compiler_version(compiler)
    flags = {
        "cuda": cuda_flags(target.arch, extra),
        "hip": hip_flags(target.arch, extra),
        "cpu": cpu_flags(extra),
    }[target.kind]
    # -march=native depends on the machine
    machine = cpu_identity() if target.kind == "cpu" else compiler_version(cxx)
    key = cache_key(source, repr(plan), *flags, version, machine, package_version("tilelang"), BUILD_VERSION)
    if entry := cache.find(key):
        return entry
    with cache.building(key) as folder:
        if entry := cache.find(key):  # another process has just built it
            return entry
        if target.kind == "cuda":
            files, resources = build_cuda(folder, source, plan, flags, compiler, cxx)
        elif target.kind == "hip":
            files, resources = build_hip(folder, source, plan, flags, compiler)
        else:
            files, resources = build_cpu(folder, source, plan, flags, compiler)
        # the cubin alone, without the launcher that is the same for all kernels
        binary = binary_identity(
            (folder / "kernel.cubin" if target.kind == "cuda" else files[0]).read_bytes(), plan
        )
        return cache.store(key, files, resources, version, binary)


def _compile_code_object(
    source: str, plan: LaunchPlan, target: Target, extra: tuple[str, ...], cache: KernelCache
) -> KernelCacheEntry:
    found = find_hip_clang()
    assert found is not None  # checked before lowering
    flags = code_object_flags(target.arch, found.rocm, extra)
    version = compiler_version(found.clang)
    headers = (found.rocm / "include/hip/hip_version.h").read_text(encoding="utf-8", errors="replace")
    key = cache_key(source, repr(plan), *flags, version, headers, package_version("tilelang"), BUILD_VERSION)
    if entry := cache.find(key):
        return entry
    with cache.building(key) as folder:
        if entry := cache.find(key):
            return entry
        files, resources = build_code_object(folder, source, plan, flags, found.clang, found.rocm)
        return cache.store(key, files, resources, version, binary_identity(files[0].read_bytes(), plan))


def _no_space(cache_dir: Path) -> str:
    return (
        f"no space left for the kernel cache '{cache_dir}'; "
        "free some (the folder may be deleted), or set TILESIGHT_CACHE_DIR"
    )
