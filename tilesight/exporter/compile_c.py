"""Compiles the library of an export."""

from __future__ import annotations

from pathlib import Path

from ..builder.compiler import CompileError, compile_in
from ..errors import ToolchainError
from ..machine.toolchain import CXX_HINT, find_cxx


def compile_library(folder: Path, name: str) -> None:
    """Compile `NAME.c` in `folder` to `libNAME.so`, which needs the C library alone.

    Raises `ToolchainError` if there is no compiler or it refuses the source.
    """
    cxx = find_cxx()
    if cxx is None:
        raise ToolchainError(f"an export needs a C compiler; {CXX_HINT}")
    flags = ("-x", "c", "-std=c11", "-O2", "-fPIC", "-shared")
    # A C++ compiler names its own library to the linker, which leaves it out where nothing needs it. Each of
    # two exports of one name in a process calls its own functions.
    linked = ("-Wl,--as-needed", "-Wl,--no-undefined", "-Wl,-Bsymbolic", f"-Wl,-soname,lib{name}.so")
    try:
        compile_in(folder, [cxx, *flags, *linked, f"{name}.c", "-ldl", "-lpthread", "-o", f"lib{name}.so"])
    except CompileError as error:
        raise ToolchainError(f"the exported source {name}.c cannot be compiled: {error}") from error
