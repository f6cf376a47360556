"""Building for the processor at hand: TileLang's C source through the machine's C++ compiler at full optimisation."""

from __future__ import annotations

from pathlib import Path

from .compiler import compile_in
from .launcher import host_launcher
from .plan import LaunchPlan


def cpu_flags(extra: tuple[str, ...]) -> tuple[str, ...]:
    return ("-std=c++17", "-O3", "-march=native", "-shared", "-fPIC", "-Wl,--no-undefined", *extra)


def build_cpu(folder: Path, source: str, plan: LaunchPlan, flags: tuple[str, ...], cxx: Path) -> tuple[list[Path], dict[str, int]]:
    """The files of the library (itself first) and the compiler's figures, of which there are none. Raises `CompileError`."""
    from tilelang.env import TILELANG_TEMPLATE_PATH

    (folder / "kernel.cpp").write_text(source + host_launcher(plan), encoding="utf-8")
    compile_in(folder, [cxx, *flags, f"-I{TILELANG_TEMPLATE_PATH}", "kernel.cpp", "-lm", "-o", "kernel.so"])
    return [folder / "kernel.so", folder / "kernel.cpp"], {}
