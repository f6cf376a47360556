"""Building for NVIDIA GPUs: nvcc makes a cubin of TileLang's source, and a small launcher carries it in a library.

The host half of a .cu file takes nvcc three times as long as the device half (cudafe++ and gcc over all of CUTLASS), so
it is left out: only the device half is compiled, and the launcher speaks to the driver.
"""

from __future__ import annotations

import re
from functools import lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory

from ..toolchain import compiler_version, package_version
from .compiler import CompileError, compile_in
from .front_end import UnavailableError, compile_to_ptx
from .launcher import cuda_launcher
from .plan import LaunchPlan
from .steps import Steps, UnknownStepsError, list_steps

# TileLang 0.1.15 packs gathered bfloat16 with a function that only its HIP headers have; this one packs them in CUDA's
PACK_BFLOAT16 = "-D__pack_bfloat162=__pack_half2"


def cuda_flags(arch: str, extra: tuple[str, ...]) -> tuple[str, ...]:
    """Flags of the device compiler: those that TileLang itself builds with, and what its headers lack."""
    number = arch.removeprefix("sm_")
    return ("-std=c++20", "-O3", "-lineinfo", PACK_BFLOAT16, "-Xcudafe", "-w", "-gencode", f"arch=compute_{number},code={arch}", *extra)


def build_cuda(
    folder: Path, source: str, plan: LaunchPlan, flags: tuple[str, ...], nvcc: Path, cxx: Path, front_ends: str = ""
) -> tuple[list[Path], dict[str, int]]:
    """The files of the library (itself first) and the compiler's figures. `front_ends`: the address of those that have read
    the headers already, if any. Raises `CompileError`."""
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    includes = (f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}")
    options = (*flags, "-ccbin", str(cxx), *includes, "-Xptxas", "-v")
    (folder / "kernel.cu").write_text(source, encoding="utf-8")
    (folder / "launcher.cpp").write_text(cuda_launcher(plan), encoding="utf-8")
    said = _assembled(folder, source, nvcc, options, cxx, front_ends) if front_ends else None
    if said is None:
        said = compile_in(folder, [nvcc, "-cubin", *options, "kernel.cu", "-o", "kernel.cubin"])
        link: list[str | Path] = [nvcc, "-shared", "-cudart", "none", "-Xcompiler", "-fPIC", "-Xlinker", "--no-undefined", "-ccbin", cxx]
    else:
        toolkit = [option for option in _steps(nvcc, options).preprocess if option.startswith("-I")]
        link = [cxx, "-shared", "-fPIC", "-Wl,--no-undefined", *toolkit]
    compile_in(folder, [*link, "launcher.cpp", "-ldl", "-o", "kernel.so"])
    return [folder / "kernel.so", folder / "kernel.cu"], resources(said, plan)


def _assembled(folder: Path, source: str, nvcc: Path, options: tuple[str, ...], cxx: Path, front_ends: str) -> str | None:
    """Make the cubin by a front end that has read the headers; what ptxas printed. None: let nvcc try it and say why."""
    versions = f"{compiler_version(nvcc)} {compiler_version(cxx)} {package_version('tilelang')}"
    try:
        steps = _steps(nvcc, options)
        compile_to_ptx(folder, source, steps, cxx, versions, front_ends)
        return compile_in(folder, steps.assemble)
    except (UnavailableError, UnknownStepsError, CompileError, OSError):
        return None


@lru_cache(maxsize=16)
def _steps(nvcc: Path, options: tuple[str, ...]) -> Steps:
    with TemporaryDirectory(prefix="tilesight-") as folder:
        return list_steps(Path(folder), nvcc, options)


def resources(ptxas: str, plan: LaunchPlan) -> dict[str, int]:
    """Figures from the output of `ptxas -v`; over several kernels the largest, of spills the sum.

    registers      per thread, as launched (a warp-specialised kernel redistributes them)
    spill_bytes    per thread, stored and loaded again
    stack_bytes    per thread
    smem_bytes     per block, static and dynamic
    wgmma_serialized  1 where the compiler had to wait for each matrix instruction
    """
    registers, static_smem = re.findall(r"Used (\d+) registers", ptxas), re.findall(r"(\d+) bytes smem", ptxas)
    stacks = re.findall(r"(\d+) bytes stack frame", ptxas)
    spills = re.findall(r"(\d+) bytes spill (?:stores|loads)", ptxas)
    dynamic = max((launch.shared_bytes for launch in plan.launches), default=0)
    found = {
        "registers": max(map(int, registers), default=0),
        "spill_bytes": sum(map(int, spills)),
        "stack_bytes": max(map(int, stacks), default=0),
        "smem_bytes": max(map(int, static_smem), default=0) + dynamic,
    }
    if "wgmma.mma_async instructions are serialized" in ptxas:
        found["wgmma_serialized"] = 1
    return found
