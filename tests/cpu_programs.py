"""Run TileLang programs on the CPU, to look at what they compute without a GPU.

`run_c` builds and calls the C source of a function that was lowered for the cpu target. `on_cpu` lets a tile program for
GPUs be lowered for it: every buffer becomes a local array and every tile operator a loop, so that tiles, masks, edges
and loop bounds are those of the GPU kernel, while layouts, pipelines and matrix instructions are not.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tilesight.lowering import lower
from tilesight.target import load_target
from tilesight.toolchain import find_cxx


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
        # it refuses local arrays in parallel loops, which mean something else on a GPU
        patch.setattr(sys.modules["tilelang.engine.lower"], "PreLowerSemanticCheck", lambda _: None)
        # the C backend writes vector types that it does not define
        with tvm.transform.PassContext(config={"tirx.disable_vectorize": True}):
            yield


def run_c(function: Any, tensors: Mapping[str, Any], folder: Path) -> None:
    """Lower `function` for the cpu target, build it, and call it once on torch tensors by parameter name."""
    built_c(function, folder)(tensors)


def built_c(function: Any, folder: Path) -> Callable[[Mapping[str, Any]], None]:
    """Lower `function` for the cpu target and build it: a call on torch tensors, and sizes as numbers, by parameter name."""
    from tilelang.backend.module import create_backend_context
    from tilelang.engine.lower import device_codegen_without_compile
    from tilelang.env import TILELANG_TEMPLATE_PATH
    from tvm.target import Target as TvmTarget

    cpu = load_target("cpu")
    lowered = lower(function, cpu)
    tvm_target: Any = TvmTarget(cpu.tvm_target())
    with tvm_target:
        source = device_codegen_without_compile(lowered.device, create_backend_context(tvm_target)).inspect_source()
    name, parameters = re.findall(r"int32_t (\w+)\(([^)]*)\) {", source)[0]
    place = Path(tempfile.mkdtemp(dir=folder))  # a loaded library is found again by its path
    library, text = place / "kernel.so", place / "kernel.cc"
    text.write_text(source)
    cxx = find_cxx()
    assert cxx is not None, "the tests need a C++ compiler: apt install g++"
    command = [
        str(cxx),
        "-O2",
        "-march=native",
        "-std=c++17",
        "-fPIC",
        "-shared",
        f"-I{TILELANG_TEMPLATE_PATH}",
        str(text),
        "-o",
        str(library),
    ]
    subprocess.run(command, check=True)
    # the backend orders parameters as it likes
    order = [re.split(r"[*\s]+", parameter.strip())[-1] for parameter in parameters.split(",")]
    compiled = getattr(ctypes.CDLL(str(library)), name)

    def call(given: Mapping[str, Any]) -> None:
        compiled(*(ctypes.c_int32(given[p]) if isinstance(given[p], int) else ctypes.c_void_p(given[p].data_ptr()) for p in order))

    return call
