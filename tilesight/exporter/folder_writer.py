"""Writes an export into a folder."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from ..errors import ToolchainError
from ..files import file_hash
from ..records.trial import BuildResult
from .c_header import header, rust_bindings
from .c_library import library_source
from .cmake_file import cmake_file
from .compile_c import compile_library
from .interface import read_interface
from .kernel_set import KernelSet
from .licences import licence_text
from .manifest import MANIFEST, manifest
from .python_module import python_module
from .torch_operator import torch_operator
from .trace_folder import find_definition, write_trace
from .vllm_module import vllm_module


class ExportFormat(StrEnum):
    """What an export can be called from.

    c                 C, C++ and Rust
    python            Python with torch, too
    torch             C and, after it is compiled, as an operator of torch
    vllm              as python, and as an operator of torch that vLLM warms up and Inductor may replace
    flashinfer-trace  FlashInfer-Bench: a data set with a definition and a solution
    """

    C = "c"
    PYTHON = "python"
    TORCH = "torch"
    VLLM = "vllm"
    FLASHINFER_TRACE = "flashinfer-trace"


_WITH_MODULE = (ExportFormat.PYTHON, ExportFormat.VLLM, ExportFormat.FLASHINFER_TRACE)


@dataclass(frozen=True, slots=True)
class ExportOptions:
    """How kernels are exported. `any_card`: any card of the architecture is accepted."""

    format: ExportFormat = ExportFormat.C
    any_card: bool = False


def write_export(
    kernels: KernelSet, built: Sequence[BuildResult], folder: Path, options: ExportOptions
) -> None:
    """Write all files of an export into an empty folder.

    Raises `OSError` if a file cannot be written, `InputError` if the kernels have no such interface,
    `ToolchainError` if the library of a kernel vanished, or the C source does not compile.
    """
    if options.format is ExportFormat.FLASHINFER_TRACE:
        trace = find_definition(kernels)
        with tempfile.TemporaryDirectory() as made:
            _write_libraries(kernels, built, Path(made), options)
            write_trace(kernels, trace, Path(made), folder)
        return
    _write_libraries(kernels, built, folder, options)


def _write_libraries(
    kernels: KernelSet, built: Sequence[BuildResult], folder: Path, options: ExportOptions
) -> None:
    """Write the libraries with their interfaces."""
    interface, name = read_interface(kernels), kernels.name
    (folder / "kernels").mkdir()
    paths = [f"kernels/{name}_{number}.so" for number in range(len(built))]
    for path, result in zip(paths, built, strict=True):
        _copy(Path(result.artifact or ""), folder / path)
    hashes = {path: file_hash(folder / path) for path in paths}
    compilers = [result.compiler for result in built]
    texts = {
        f"{name}.h": header(kernels, interface),
        f"{name}.rs": rust_bindings(kernels, interface),
        f"{name}.c": library_source(
            kernels, interface, list(hashes.items()), compilers, any_card=options.any_card
        ),
        "CMakeLists.txt": cmake_file(kernels, has_torch=options.format is ExportFormat.TORCH),
        "LICENSE.txt": licence_text(),
    }
    if options.format is ExportFormat.TORCH:
        texts[f"{name}_torch.cpp"] = torch_operator(kernels, interface)
    for file, text in texts.items():
        (folder / file).write_text(text, encoding="utf-8")
    compile_library(folder, name)
    hashes[f"lib{name}.so"] = file_hash(folder / f"lib{name}.so")
    if options.format in _WITH_MODULE:
        module = python_module(kernels, interface, hashes)
        (folder / f"{name}.py").write_text(module, encoding="utf-8")
    if options.format is ExportFormat.VLLM:
        (folder / f"{name}_vllm.py").write_text(vllm_module(kernels, interface), encoding="utf-8")
    written = [path for path in folder.rglob("*") if path.is_file()]
    files = {path.relative_to(folder).as_posix(): file_hash(path) for path in written}
    text = manifest(kernels, built, paths, files, format=options.format.value, any_card=options.any_card)
    (folder / MANIFEST).write_text(text, encoding="utf-8")


def _copy(library: Path, path: Path) -> None:
    try:
        shutil.copyfile(library, path)
    except FileNotFoundError as error:
        raise ToolchainError(f"the kernel cache lost '{library}' meanwhile; run the command again") from error
