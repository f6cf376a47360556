"""Builds for this machine's processor: compiles TileLang's C source with the C++ compiler."""

from __future__ import annotations

from pathlib import Path

from .compiler import compile_in
from .launch_plan import LaunchPlan
from .launcher import host_launcher


def cpu_flags(extra: tuple[str, ...]) -> tuple[str, ...]:
    """Flags of the compiler."""
    return ("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-Wl,--no-undefined", *extra)


def build_cpu(
    folder: Path, source: str, plan: LaunchPlan, flags: tuple[str, ...], cxx: Path
) -> tuple[list[Path], dict[str, int]]:
    """Compile in `folder`.

    Returns the files of the library (itself first) and no figures. Raises `CompileError`.
    """
    from tilelang.env import TILELANG_TEMPLATE_PATH

    (folder / "kernel.cpp").write_text(source + host_launcher(plan), encoding="utf-8")
    compile_in(folder, [cxx, *flags, f"-I{TILELANG_TEMPLATE_PATH}", "kernel.cpp", "-lm", "-o", "kernel.so"])
    return [folder / "kernel.so", folder / "kernel.cpp"], {}
