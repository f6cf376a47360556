"""The ways to build a CUDA kernel that are compared; the product has the first two.

    hook         a hook in NVIDIA's front end, which reads headers once and forks for each kernel; g++ links
    nvcc         nvcc makes the cubin and links, as where the hook fails
    nvcc-gxx     nvcc makes the cubin, g++ links
    nvrtc        NVRTC makes the cubin, with headers that are read once; g++ links
    nvrtc-ptxas  NVRTC makes PTX alike, the toolkit's ptxas the cubin; g++ links

`use` chooses one for this process. Its workers are forked from a nursery, which imports this module for
`preload`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import nvrtc

from tilesight import build, jobs
from tilesight.building.compiler import compile_in
from tilesight.building.cuda import _steps, build_cuda, resources
from tilesight.building.front_ends import FrontEnds
from tilesight.building.launcher import cuda_launcher
from tilesight.building.plan import LaunchPlan
from tilesight.jobs import preload_compiler

HOOK, NVCC, NVCC_GXX, NVRTC, NVRTC_PTXAS = WAYS = ("hook", "nvcc", "nvcc-gxx", "nvrtc", "nvrtc-ptxas")

Built = tuple[list[Path], dict[str, int]]
Builder = Callable[..., Built]  # which takes what `build_cuda` takes


def use(way: str) -> None:
    """Have the sessions of this process build in this way."""
    jobs.preload_compiler = partial(preload, way)
    if way != HOOK:
        FrontEnds.address = property(lambda _: "")  # type: ignore[assignment, method-assign]


def preload(way: str) -> None:
    """Import what lowering needs, in the process that workers are forked from, and put the way's builder in
    place.
    """
    builders: dict[str, Builder] = {
        HOOK: _build_hooked,
        NVCC: build_cuda,
        NVCC_GXX: _build_nvcc,
        NVRTC: partial(_build_nvrtc, to_cubin=True),
        NVRTC_PTXAS: partial(_build_nvrtc, to_cubin=False),
    }
    if way in (NVRTC, NVRTC_PTXAS):
        nvrtc.library()  # before the forks, which so have its heap at one address
    preload_compiler()
    build.build_cuda = partial(_timed, builders[way])


def _timed(builder: Builder, folder: Path, source: str, plan: LaunchPlan, *given: Any) -> Built:
    """Build, and note among the compiler's figures how long that took, without lowering."""
    begin = time.perf_counter()
    files, figures = builder(folder, source, plan, *given)
    return files, {**figures, "compile_ms": round(1000 * (time.perf_counter() - begin))}


def _build_hooked(folder: Path, source: str, plan: LaunchPlan, *given: Any) -> Built:
    files, figures = build_cuda(folder, source, plan, *given)
    return files, {**figures, "quick": int((folder / "kernel.ptx").exists())}  # nvcc leaves none


def _build_nvcc(
    folder: Path, source: str, plan: LaunchPlan, flags: tuple[str, ...], nvcc: Path, cxx: Path, _: str
) -> Built:
    (folder / "kernel.cu").write_text(source, encoding="utf-8")
    options = _options(flags, cxx)
    said = compile_in(folder, [nvcc, "-cubin", *options, "kernel.cu", "-o", "kernel.cubin"])
    return _linked(folder, plan, cxx, _toolkit(nvcc, options)), resources(said, plan)


def _build_nvrtc(
    folder: Path,
    source: str,
    plan: LaunchPlan,
    flags: tuple[str, ...],
    nvcc: Path,
    cxx: Path,
    _: str,
    *,
    to_cubin: bool,
) -> Built:
    (folder / "kernel.cu").write_text(source, encoding="utf-8")
    options = _options(flags, cxx)
    toolkit = _toolkit(nvcc, options)
    asked = [
        *nvrtc.translated(flags, to_cubin=to_cubin),
        *_templates(),
        *toolkit,
        *(f"{option}/cccl" for option in toolkit),
    ]
    made, said = nvrtc.compiled(source, asked, folder.parent / "headers")
    quick = int(nvrtc.USED in said)
    (folder / ("kernel.cubin" if to_cubin else "kernel.ptx")).write_bytes(made)
    if not to_cubin:
        said = compile_in(folder, _steps(nvcc, options).assemble)
    return _linked(folder, plan, cxx, toolkit), {**resources(said, plan), "quick": quick}


def _linked(folder: Path, plan: LaunchPlan, cxx: Path, toolkit: Sequence[str]) -> list[Path]:
    """The launcher and the cubin as one library, as the hook's builds link it."""
    (folder / "launcher.cpp").write_text(cuda_launcher(plan), encoding="utf-8")
    compile_in(
        folder,
        [cxx, "-shared", "-fPIC", "-Wl,--no-undefined", *toolkit, "launcher.cpp", "-ldl", "-o", "kernel.so"],
    )
    return [folder / "kernel.so", folder / "kernel.cu"]


def _options(flags: Sequence[str], cxx: Path) -> tuple[str, ...]:
    """Those with which the product runs nvcc."""
    return (*flags, "-ccbin", str(cxx), *_templates(), "-Xptxas", "-v")


def _toolkit(nvcc: Path, options: tuple[str, ...]) -> list[str]:
    """Where nvcc looks for the toolkit's headers, as options."""
    ours = set(options)
    return [
        option
        for option in _steps(nvcc, options).preprocess
        if option.startswith("-I") and option not in ours
    ]


def _templates() -> tuple[str, str]:
    """Where TileLang's headers are, as options."""
    from tilelang.env import CUTLASS_INCLUDE_DIR, TILELANG_TEMPLATE_PATH

    return f"-I{TILELANG_TEMPLATE_PATH}", f"-I{CUTLASS_INCLUDE_DIR}"
