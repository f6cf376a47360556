"""Build one candidate: lower it, generate its source, compile that into a library in the kernel cache.

Runs in a worker process: TileLang may abort, a compiler may hang. A failure is part of the result.
"""

from __future__ import annotations

import errno
import time
from pathlib import Path
from typing import Any

from .building.cache import CODE_OBJECT, Entry, KernelCache, cache_key
from .building.compiler import CompileError
from .building.cpu import build_cpu, cpu_flags
from .building.cuda import build_cuda, cuda_flags
from .building.hip import build_code_object, build_hip, code_object_flags, hip_flags
from .building.identity import NotElfError, binary_identity
from .building.loaders import without_idle_warps
from .building.plan import LaunchPlan, UnsupportedLaunchError, read_plan
from .candidate import Candidate
from .device import cpu_identity
from .errors import Failure, FailureKind, headline
from .lowering import Lowered
from .open_dims import lower_candidate
from .target import Target
from .toolchain import BUILD_VERSION, compiler_for, compiler_version, find_cxx, find_hip_clang, missing_compiler, package_version
from .trial import BuildResult

ENTRY = "tilesight_call"


def build_kernel(candidate: Candidate, cache_dir: Path, *, runnable: bool = True, front_ends: str = "") -> BuildResult:
    """Build `candidate`, or find it built. The same source is compiled once, whichever config and process it comes from, and
    that of a kernel with open dimensions once for all their values.

    What need not be `runnable` may be a code object: the GPU's part alone, without an `entry` to call.
    `front_ends`: `FrontEnds.address`, with which many CUDA kernels are built faster.
    """
    begin = time.perf_counter()
    target = candidate.target

    def failed(kind: FailureKind, message: str, detail: str = "") -> BuildResult:
        return BuildResult(None, Failure(kind, message, detail), seconds=time.perf_counter() - begin)

    missing = missing_compiler(target, runnable=runnable)
    if missing:
        return failed(FailureKind.BUILD_ERROR, missing)
    try:
        lowered = lower_candidate(candidate)
        source = device_source(lowered, target)
    except Exception as error:  # TileLang raises whatever it likes
        return failed(FailureKind.LOWER_ERROR, f"{type(error).__name__}: {headline(str(error))}", str(error)[-4000:])
    try:
        plan = read_plan(lowered)
        flags = candidate.template.compile_flags.get(target.kind, ())
        entry = _compile(source, plan, target, flags, KernelCache(cache_dir), front_ends)
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
            FailureKind.BUILD_ERROR, f"kernel cache '{cache_dir}': {error}; set TILESIGHT_CACHE_DIR to a folder that can be written"
        )
    symbol = "" if entry.library.suffix == CODE_OBJECT else ENTRY
    return BuildResult(str(entry.library), None, symbol, entry.resources, entry.compiler, time.perf_counter() - begin, entry.binary)


def device_source(lowered: Lowered, target: Target) -> str:
    """The source that TileLang generates for the kernels: CUDA, HIP or C."""
    from tilelang.backend.module import create_backend_context
    from tilelang.engine.lower import device_codegen_without_compile
    from tvm.target import Target as TvmTarget

    tvm_target: Any = TvmTarget(target.tvm_target())
    with tvm_target:
        kernels = without_idle_warps(lowered.device)
        return str(device_codegen_without_compile(kernels, create_backend_context(tvm_target)).inspect_source())


def _compile(source: str, plan: LaunchPlan, target: Target, extra: tuple[str, ...], cache: KernelCache, front_ends: str) -> Entry:
    compiler, cxx = compiler_for(target), find_cxx()
    if compiler is None and target.kind == "hip":
        return _compile_code_object(source, plan, target, extra, cache)
    assert compiler is not None  # looked for before lowering
    assert cxx is not None
    version = compiler_version(compiler)
    flags = {"cuda": cuda_flags(target.arch, extra), "hip": hip_flags(target.arch, extra), "cpu": cpu_flags(extra)}[target.kind]
    # what -march=native means differs from machine to machine
    machine = cpu_identity() if target.kind == "cpu" else compiler_version(cxx)
    key = cache_key(source, repr(plan), *flags, version, machine, package_version("tilelang"), BUILD_VERSION)
    if entry := cache.find(key):
        return entry
    with cache.building(key) as folder:
        if entry := cache.find(key):  # another process has just built it
            return entry
        if target.kind == "cuda":
            files, resources = build_cuda(folder, source, plan, flags, compiler, cxx, front_ends)
        elif target.kind == "hip":
            files, resources = build_hip(folder, source, plan, flags, compiler)
        else:
            files, resources = build_cpu(folder, source, plan, flags, compiler)
        # a launcher's own code says nothing of the kernel, whose cubin lies beside it
        binary = binary_identity((folder / "kernel.cubin" if target.kind == "cuda" else files[0]).read_bytes(), plan)
        return cache.store(key, files, resources, version, binary)


def _compile_code_object(source: str, plan: LaunchPlan, target: Target, extra: tuple[str, ...], cache: KernelCache) -> Entry:
    found = find_hip_clang()
    assert found is not None  # looked for before lowering
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
    return f"no space left for the kernel cache '{cache_dir}'; free some (the folder may be deleted), or set TILESIGHT_CACHE_DIR"
