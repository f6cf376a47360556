"""NVRTC, NVIDIA's compiler in a library, with headers that are read once and kept in a file: it makes a
kernel's cubin here.

Options and what stands before a source are those of TileLang 0.1.15 (`contrib/nvrtc.py`,
`jit/adapter/nvrtc`), which takes the library through `cuda.bindings`; here it is called by ctypes. A file of
read headers is of use to processes that have the library's heap for them at the same address: to those that
were forked from one process, which had the library open.
"""

from __future__ import annotations

import ctypes
import fcntl
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

from tilesight.building.cache import cache_key
from tilesight.building.compiler import CompileError, first_error
from tilesight.building.front_end import UnavailableError, split_source

LIBRARY = (
    "TILESIGHT_NVRTC"  # names libnvrtc.so.13 where it is not that of an installed package or of the toolkit
)
HEAP_BYTES = 1 << 30  # TileLang's headers take 260 MB
USED = "using precompiled header file"  # what it says of one

_PLACES = ("nvidia/cu13/lib", "nvidia/cuda_nvrtc/lib")  # of packages, below site-packages
_BEFORE = "#include <tl_templates/cuda/nvrtc_std.h>\n"
_RUNTIME = ("cudaGridDependencySynchronize", "cudaTriggerProgrammaticLaunchCompletion")


def find_library() -> Path:
    """The library named by the environment, else that of a package, else the toolkit's."""
    if named := os.environ.get(LIBRARY):
        return Path(named)
    folders = [Path(entry) / place for entry in sys.path for place in _PLACES]
    folders += [Path("/usr/local/cuda/lib64"), Path("/usr/local/cuda/targets/x86_64-linux/lib")]
    found = (folder / "libnvrtc.so.13" for folder in folders)
    return next((path for path in found if path.exists()), Path("libnvrtc.so.13"))


@lru_cache(maxsize=1)
def library() -> ctypes.CDLL:
    """The library, with room for read headers. Raises `OSError` where there is none."""
    path = find_library()
    for builtins in path.parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins), ctypes.RTLD_GLOBAL)  # it looks for it by name
    found = ctypes.CDLL(str(path))
    found.nvrtcSetPCHHeapSize.argtypes = [ctypes.c_size_t]
    _check(found.nvrtcSetPCHHeapSize(HEAP_BYTES), "nvrtcSetPCHHeapSize")
    return found


def version() -> str:
    """Of the library, e.g. `13.0`; empty where there is none."""
    major, minor = ctypes.c_int(), ctypes.c_int()
    try:
        library().nvrtcVersion(ctypes.byref(major), ctypes.byref(minor))
    except OSError:
        return ""
    return f"{major.value}.{minor.value}"


def translated(flags: Sequence[str], *, to_cubin: bool) -> list[str]:
    """NVRTC's options for those of nvcc that `cuda_flags` gives."""
    kept, tokens, arch = [], iter(flags), ""
    for token in tokens:
        if token == "-Xcudafe":
            kept.append(next(tokens))  # its -w has the same name
        elif token == "-gencode":
            arch = next(tokens).rpartition("=")[2].removeprefix("sm_")
        elif token != "-O3":  # which it always does
            kept.append(token)
    kept += ["-default-device", "--no-cache", f"-D__CUDACC_VER_MAJOR__={version().partition('.')[0]}"]
    return (
        [*kept, f"--gpu-architecture=sm_{arch}", "--ptxas-options=-v"]
        if to_cubin
        else [*kept, f"--gpu-architecture=compute_{arch}"]
    )


def compiled(source: str, options: Sequence[str], headers: Path) -> tuple[bytes, str]:
    """The cubin or PTX of a generated source, and what the compiler said. `headers`: the folder for files of
    read headers. Raises `CompileError`.
    """
    runtime = '#include "cuda_device_runtime_api.h"\n' if any(name in source for name in _RUNTIME) else ""
    whole = runtime + _BEFORE + source
    try:
        key = cache_key(split_source(whole)[0], *options)
    except UnavailableError:
        return _compiled(whole, options)
    with _read_headers(headers, key) as more:
        return _compiled(whole, [*options, *more, "--pch-messages=true"])


@contextmanager
def _read_headers(folder: Path, key: str) -> Iterator[tuple[str, ...]]:
    """Options that use the file of read headers, or make it. None while another process makes it: waiting
    takes longer.
    """
    folder.mkdir(exist_ok=True)
    file, is_made = folder / f"{key}.pch", folder / f"{key}.made"
    if is_made.exists():
        yield (f"--use-pch={file}",)
        return
    with open(folder / f"{key}.lock", "ab") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield ()
            return
        yield (f"--create-pch={file}",)
        if file.exists():
            is_made.touch()


def _compiled(source: str, options: Sequence[str]) -> tuple[bytes, str]:
    nvrtc, program = library(), ctypes.c_void_p()
    _check(
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), source.encode(), b"kernel.cu", 0, None, None),
        "nvrtcCreateProgram",
    )
    try:
        given = (ctypes.c_char_p * len(options))(*(option.encode() for option in options))
        failed = nvrtc.nvrtcCompileProgram(program, len(options), given)
        said = _read(nvrtc, program, "ProgramLog").rstrip(b"\0").decode(errors="replace")
        if failed:
            raise CompileError(f"nvrtc ended with result {failed}: {first_error(said)}", said[-4000:])
        to_cubin = any(option.startswith("--gpu-architecture=sm_") for option in options)
        return (
            _read(nvrtc, program, "CUBIN") if to_cubin else _read(nvrtc, program, "PTX").rstrip(b"\0")
        ), said
    finally:
        nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def _read(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> bytes:
    size = ctypes.c_size_t()
    _check(nvrtc[f"nvrtcGet{what}Size"](program, ctypes.byref(size)), f"nvrtcGet{what}Size")
    content = ctypes.create_string_buffer(size.value)
    _check(nvrtc[f"nvrtcGet{what}"](program, content), f"nvrtcGet{what}")
    return content.raw


def _check(result: int, call: str) -> None:
    if result:
        raise CompileError(f"{call} ended with result {result}", "")
