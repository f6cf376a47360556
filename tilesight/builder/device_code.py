"""Compiles device code of TileSight's own: kernels that measure a GPU, or bring several GPUs together."""

from __future__ import annotations

import tempfile
from importlib.resources import files
from pathlib import Path

from ..errors import ToolchainError
from ..machine.toolchain import find_cxx, find_nvcc, missing_compiler
from ..target.spec import Target
from .compiler import CompileError, compile_in
from .cuda import cuda_flags

HEADERS = ("flags.cuh",)  # beside this module, for any source


def compile_device_code(target: Target, package: str, name: str) -> bytes:
    """The cubin of a source file of `package` for `target`. Raises `ToolchainError`."""
    missing = missing_compiler(target)
    if missing:
        raise ToolchainError(missing)
    sources = [("source.cu", package, name), *((header, __package__, header) for header in HEADERS)]
    with tempfile.TemporaryDirectory(prefix="tilesight-device-code-") as made:
        folder = Path(made)
        for file, owner, source in sources:
            (folder / file).write_bytes(files(owner).joinpath(source).read_bytes())
        command = [find_nvcc() or "nvcc", "-cubin", *cuda_flags(target.arch, ()), "-ccbin", str(find_cxx())]
        try:
            compile_in(folder, [*command, "source.cu", "-o", "source.cubin"])
        except CompileError as error:
            raise ToolchainError(f"{name} cannot be built: {error}") from error
        return (folder / "source.cubin").read_bytes()
