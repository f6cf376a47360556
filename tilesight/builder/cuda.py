"""Builds for NVIDIA GPUs: nvcc compiles TileLang's source to a cubin, for a library with a launcher.

Nvcc takes three times as long for the host half of a .cu file as for the device half (cudafe++ and gcc over
all of CUTLASS). Therefore only the device half is compiled, and the launcher calls the driver.
"""

from __future__ import annotations

import re
from pathlib import Path

from .compiler import compile_in
from .launch_plan import LaunchPlan
from .launcher import cuda_launcher

# TileLang 0.1.15 packs gathered bfloat16 values with a function that only its HIP headers define; CUDA's
# equivalent:
PACK_BFLOAT16 = "-D__pack_bfloat162=__pack_half2"


def cuda_flags(arch: str, extra: tuple[str, ...]) -> tuple[str, ...]:
    """Flags of the device compiler: those of TileLang's own builds, and a definition its headers lack."""
    number = arch.removeprefix("sm_")
    return (
        "-std=c++20",
        "-O3",
        "-lineinfo",
        PACK_BFLOAT16,
        "-Xcudafe",
        "-w",
        "-gencode",
        f"arch=compute_{number},code={arch}",
        *extra,
    )


def build_cuda(
    folder: Path, source: str, plan: LaunchPlan, flags: tuple[str, ...], nvcc: Path, cxx: Path
) -> tuple[list[Path], dict[str, int]]:
    """Build the kernels of `source` and their launcher in `folder`.

    Returns the files of the library, the library itself first, and the compiler's figures. Raises
    `CompileError`.
    """
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    (folder / "kernel.cu").write_text(source, encoding="utf-8")
    (folder / "launcher.cpp").write_text(cuda_launcher(plan), encoding="utf-8")
    host = ("-ccbin", str(cxx))
    includes = (f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}")
    ptxas = compile_in(
        folder, [nvcc, "-cubin", *flags, *host, *includes, "-Xptxas", "-v", "kernel.cu", "-o", "kernel.cubin"]
    )
    compile_in(folder, [*_linker(nvcc, cxx), "launcher.cpp", "-ldl", "-o", "kernel.so"])
    return [folder / "kernel.so", folder / "kernel.cu"], resources(ptxas, plan)


def _linker(nvcc: Path, cxx: Path) -> list[str | Path]:
    """The command that makes the launcher a library: the C++ compiler is faster, but needs the headers."""
    headers = nvcc.resolve().parent.parent / "include"
    if (headers / "cuda.h").exists():
        return [cxx, "-shared", "-fPIC", "-Wl,--no-undefined", f"-I{headers}"]
    return [
        nvcc,
        "-shared",
        "-cudart",
        "none",
        "-Xcompiler",
        "-fPIC",
        "-Xlinker",
        "--no-undefined",
        "-ccbin",
        cxx,
    ]


def resources(ptxas: str, plan: LaunchPlan) -> dict[str, int]:
    """Figures from the output of `ptxas -v`; over several kernels the largest, of spills the sum.

    registers      per thread, as launched (a warp-specialised kernel redistributes them)
    spill_bytes    per thread, stored and loaded again
    stack_bytes    per thread
    smem_bytes     per block, static and dynamic
    wgmma_serialized  1 where the compiler had to wait for each matrix instruction
    """
    registers, static_smem = (
        re.findall(r"Used (\d+) registers", ptxas),
        re.findall(r"(\d+) bytes smem", ptxas),
    )
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
