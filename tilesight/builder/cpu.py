"""Builds for this machine's processor: compiles TileLang's C source with the C++ compiler."""

from __future__ import annotations

import re
from pathlib import Path

from .compiler import compile_in
from .launch_plan import LaunchPlan
from .launcher import host_launcher

# TileLang's header includes a library for half floats, which takes two thirds of a compiler's time. Standard
# headers stay: they choose the overloads of `exp` and others, and the code would differ without them.
_WITHOUT_HALF = """\
#define HALF_HALF_HPP
#include <algorithm>
#include <cfenv>
#include <climits>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <utility>
namespace half_float { class half; }
"""


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

    # a user's own C++ may need the library's other headers
    header = "" if re.search(r"\bhalf|std::", source) else _WITHOUT_HALF
    (folder / "kernel.cpp").write_text(header + source + host_launcher(plan), encoding="utf-8")
    compile_in(folder, [cxx, *flags, f"-I{TILELANG_TEMPLATE_PATH}", "kernel.cpp", "-lm", "-o", "kernel.so"])
    return [folder / "kernel.so", folder / "kernel.cpp"], {}
