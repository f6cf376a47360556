"""Builds for AMD GPUs: hipcc compiles TileLang's source and the launcher to one library.

Without ROCm's runtime, clang compiles the source alone to a code object. A code object cannot be called on
this machine, but the compiler reports the same figures.
"""

from __future__ import annotations

import re
from pathlib import Path

from .compiler import compile_in
from .kernel_cache import CODE_OBJECT
from .launch_plan import LaunchPlan
from .launcher import hip_launcher


def hip_flags(arch: str, extra: tuple[str, ...]) -> tuple[str, ...]:
    """Flags of hipcc for a library."""
    return (
        "-std=c++17",
        "-O3",
        "-shared",
        "-fPIC",
        f"--offload-arch={arch}",
        "-Rpass-analysis=kernel-resource-usage",
        *extra,
    )


def build_hip(
    folder: Path, source: str, plan: LaunchPlan, flags: tuple[str, ...], hipcc: Path
) -> tuple[list[Path], dict[str, int]]:
    """Compile in `folder`.

    Returns the library's files (itself first) and the compiler's figures. Raises `CompileError`.
    """
    from tilelang.env import TILELANG_TEMPLATE_PATH

    (folder / "kernel.cpp").write_text(source + hip_launcher(plan), encoding="utf-8")
    output = compile_in(
        folder, [hipcc, *flags, f"-I{TILELANG_TEMPLATE_PATH}", "kernel.cpp", "-o", "kernel.so"]
    )
    return [folder / "kernel.so", folder / "kernel.cpp"], resources(output, plan)


def code_object_flags(arch: str, rocm: Path, extra: tuple[str, ...]) -> tuple[str, ...]:
    """Flags of clang for a code object."""
    device_only = ("-x", "hip", "--cuda-device-only", "--no-gpu-bundle-output", f"--rocm-path={rocm}")
    return (
        *device_only,
        "-std=c++17",
        "-O3",
        f"--offload-arch={arch}",
        "-Rpass-analysis=kernel-resource-usage",
        *extra,
    )


def build_code_object(
    folder: Path, source: str, plan: LaunchPlan, flags: tuple[str, ...], clang: Path, rocm: Path
) -> tuple[list[Path], dict[str, int]]:
    """Compile in `folder`.

    Returns the code object's files (itself first) and the figures. Raises `CompileError`.
    """
    from tilelang.env import TILELANG_TEMPLATE_PATH

    (folder / "kernel.cpp").write_text(source, encoding="utf-8")
    includes = [f"-I{TILELANG_TEMPLATE_PATH}"]
    if not (rocm / "include/rocwmma/rocwmma.hpp").exists():
        # TileLang's headers include rocWMMA only for its bfloat16 type
        (folder / "rocwmma").mkdir()
        (folder / "rocwmma" / "rocwmma.hpp").write_text(
            "#pragma once\n#include <hip/hip_bfloat16.h>\n", encoding="utf-8"
        )
        includes.append(f"-I{folder}")
    output = compile_in(folder, [clang, *flags, *includes, "kernel.cpp", "-o", f"kernel{CODE_OBJECT}"])
    return [folder / f"kernel{CODE_OBJECT}", folder / "kernel.cpp"], resources(output, plan)


def resources(remarks: str, plan: LaunchPlan) -> dict[str, int]:
    """Figures from clang's kernel-resource-usage remarks; over several kernels the largest, of spills the
    sum.

    registers    vector registers per lane, accumulation registers included
    spill_bytes  scratch memory per lane
    smem_bytes   LDS per block, static and dynamic
    waves_per_simd  allowed by registers and static LDS; if the compiler reports it
    """

    def figures(name: str) -> list[int]:
        return [int(value) for value in re.findall(rf"remark: .*?\b{name}: (\d+)", remarks)]

    totals = [vgprs + agprs for vgprs, agprs in zip(figures("VGPRs"), figures("AGPRs"), strict=False)]
    dynamic = max((launch.shared_bytes for launch in plan.launches), default=0)
    found = {
        "registers": max(totals or figures("VGPRs"), default=0),
        "spill_bytes": sum(figures(r"ScratchSize \[bytes/lane\]")),
        "smem_bytes": max(figures(r"LDS Size \[bytes/block\]"), default=0) + dynamic,
    }
    if waves := figures(r"Occupancy \[waves/SIMD\]"):
        found["waves_per_simd"] = min(waves)
    return found
