"""Programs in which threads of a processor run the device functions of ranks, under a thread sanitizer."""

from __future__ import annotations

import subprocess
import tempfile
from functools import cache
from pathlib import Path

import pytest

from tilesight.kernels._ranks import RAISE_AND_WAIT
from tilesight.machine.toolchain import find_cxx

FENCE = 'asm volatile("fence.proxy.async;" ::: "memory");'  # of what threads do not have
HEADERS = (
    *("algorithm", "atomic", "barrier", "chrono", "cmath", "cstdint", "cstdio", "cstdlib", "cstring"),
    *("thread", "vector"),
)
# flags as atomic variables, lanes as threads: the text of the device function runs on the CPU
SHIM = """
#include "headers.h"
#define __device__
#define __forceinline__ inline
struct Lane { int x; };
static thread_local Lane threadIdx, blockDim;
static thread_local std::barrier<> *warp;
static void __syncwarp() { warp->arrive_and_wait(); }
static void __threadfence_system() {}
static void raise_flag(int *flag, int number) {
  std::atomic_ref<int>(*flag).store(number, std::memory_order_release);
}
static int read_flag(const int *flag) {
  std::this_thread::yield();  // there may be fewer cores than ranks
  return std::atomic_ref<int>(*const_cast<int *>(flag)).load(std::memory_order_acquire);
}
"""


def run_program(
    tmp_path: Path, functions: str, program: str, values: dict[str, object]
) -> subprocess.CompletedProcess[str]:
    """Build and run a program; it prints 0 and returns 0 if all ranks have found what they should.

    Args:
        tmp_path: a folder for its files.
        functions: text of device functions. Theirs of system scope are taken from the shim.
        program: text with `FUNCTIONS` in it.
        values: what stands for other words in `program`, in this order.
    """
    for word, value in values.items():
        program = program.replace(word, str(value))
    functions = functions.replace(RAISE_AND_WAIT, "").replace(FENCE, "")
    assert "asm" not in functions
    return run_threads(tmp_path, SHIM + program.replace("FUNCTIONS", functions), "-fsanitize=thread")


def run_threads(tmp_path: Path, text: str, *flags: str) -> subprocess.CompletedProcess[str]:
    """Build a program that begins with `SHIM`, and run it."""
    command, folder = _compiler(flags)
    source, binary = tmp_path / "ranks.cpp", tmp_path / "ranks"
    source.write_text(text, encoding="utf-8")
    done = subprocess.run(
        [*command, f"-I{folder.name}", str(source), "-o", str(binary)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return subprocess.run([str(binary)], capture_output=True, text=True, check=False, timeout=300)


@cache
def _compiler(flags: tuple[str, ...]) -> tuple[list[str], tempfile.TemporaryDirectory[str]]:
    """The compiler's command, and a folder with the headers, compiled: most of a build's time."""
    compiler = find_cxx()
    if compiler is None:
        pytest.skip("no compiler")
    command = [str(compiler), "-std=c++20", "-O0", "-g", "-fno-strict-aliasing", "-w", "-pthread", *flags]
    folder = tempfile.TemporaryDirectory()
    header = Path(folder.name) / "headers.h"
    header.write_text("".join(f"#include <{name}>\n" for name in HEADERS))
    subprocess.run([*command, "-x", "c++-header", str(header), "-o", f"{header}.gch"], check=True)
    probe = Path(folder.name) / "probe.cpp"
    probe.write_text("int main() {}\n")
    linked = subprocess.run(
        [*command, str(probe), "-o", f"{folder.name}/probe"], capture_output=True, text=True
    )
    if "tsan" in linked.stderr:
        pytest.skip("no thread sanitizer")
    return command, folder


def pointers(name: str, world: int) -> str:
    """Arguments of a device function: those of all ranks."""
    return ", ".join(f"{name}[{rank}]" for rank in range(world))
