"""Run TileLang programs on the CPU, to check without a GPU what they compute.

`run_c` builds and calls the C source of a function that was lowered for the cpu target. `on_cpu` lets a tile
program for
GPUs be lowered for it: every buffer becomes a local array and every tile operator a loop, so that tiles,
    masks, edges and loop bounds are those of the GPU kernel, while layouts, pipelines and matrix instructions
    are not.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.support.recorded_ir import only_text
from tilesight.lowering.lower import lower
from tilesight.machine.toolchain import find_cxx
from tilesight.target.spec import load_target


@contextmanager
def on_cpu() -> Iterator[None]:
    """While active, tile programs may be traced and lowered for the cpu target."""
    import tilelang.engine.lower
    import tilelang.language as T  # noqa: N812
    import tilelang.language.reduce_op
    from tilelang import tvm

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(T, "alloc_fragment", T.alloc_local)
        patch.setattr(T, "alloc_shared", T.alloc_local)
        patch.setattr(tilelang.language.reduce_op, "alloc_fragment", T.alloc_local)
        # the check refuses local arrays in parallel loops, which have another meaning on a GPU
        patch.setattr(sys.modules["tilelang.engine.lower"], "PreLowerSemanticCheck", lambda _: None)
        # the C backend writes vector types that it does not define
        with tvm.transform.PassContext(config={"tirx.disable_vectorize": True}):
            yield


def run_c(function: Any, tensors: Mapping[str, Any], folder: Path) -> None:
    """Lower `function` for the cpu target, build it, and call it once on torch tensors by parameter name."""
    built_c(function, folder)(tensors)


def built_c(function: Any, folder: Path) -> Callable[[Mapping[str, Any]], None]:
    """Lower `function` for the cpu target and build it. The result takes tensors and sizes, by parameter
    name.
    """
    from tilelang.backend.module import create_backend_context
    from tilelang.engine.lower import device_codegen_without_compile
    from tvm.target import Target as TvmTarget

    cpu = load_target("cpu")
    with only_text():
        lowered = lower(function, cpu)
    tvm_target: Any = TvmTarget(cpu.tvm_target())
    with tvm_target:
        source = device_codegen_without_compile(
            lowered.device, create_backend_context(tvm_target)
        ).inspect_source()
    name, parameters = re.findall(r"int32_t (\w+)\(([^)]*)\) {", source)[0]
    own_folder = Path(tempfile.mkdtemp(dir=folder))  # libraries are loaded once for each path
    library, text = own_folder / "kernel.so", own_folder / "kernel.cc"
    text.write_text(source)
    compiler, folder_of_header = _compiler()
    given = ["-shared", "-include", f"{folder_of_header.name}/common.h", str(text), "-o", str(library)]
    subprocess.run([*compiler, *given], check=True)
    # the backend chooses the order of parameters
    order = [re.split(r"[*\s]+", parameter.strip())[-1] for parameter in parameters.split(",")]
    compiled = getattr(ctypes.CDLL(str(library)), name)

    def call(given: Mapping[str, Any]) -> None:
        compiled(
            *(
                ctypes.c_int32(given[p])
                if isinstance(given[p], int)
                else ctypes.c_void_p(given[p].data_ptr())
                for p in order
            )
        )

    return call


@cache
def _compiler() -> tuple[list[str], tempfile.TemporaryDirectory[str]]:
    """The compiler's command, and a folder with TileLang's header, compiled: most of a build's time."""
    from tilelang.env import TILELANG_TEMPLATE_PATH

    cxx = find_cxx()
    assert cxx is not None, "the tests need a C++ compiler: apt install g++"
    # -O0 takes half of the time of -O1; the tests' tensors are small
    command = [str(cxx), "-O0", "-std=c++17", "-fPIC", f"-I{TILELANG_TEMPLATE_PATH}"]
    folder = tempfile.TemporaryDirectory()
    header = Path(folder.name) / "common.h"
    header.write_text("#include <tl_templates/cpp/common.h>\n")
    subprocess.run([*command, "-x", "c++-header", str(header), "-o", f"{header}.gch"], check=True)
    return command, folder
