"""Programs in which threads of a processor run the device functions of ranks, under a thread sanitizer."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tilesight.kernels._ranks import RAISE_AND_WAIT
from tilesight.machine.toolchain import find_cxx

FENCE = 'asm volatile("fence.proxy.async;" ::: "memory");'  # of what threads do not have
# flags as atomic variables, lanes as threads: the text of the device function runs on the CPU
SHIM = """
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <vector>
#define __device__
#define __forceinline__ inline
struct Lane { int x; };
static thread_local Lane threadIdx;
static thread_local std::barrier<> *warp;
static void __syncwarp() { warp->arrive_and_wait(); }
static void __threadfence_system() {}
static void raise_flag(int *flag, int number) {
  std::atomic_ref<int>(*flag).store(number, std::memory_order_release);
}
static int read_flag(const int *flag) {
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
    compiler = find_cxx()
    if compiler is None:
        pytest.skip("no compiler")
    for word, value in values.items():
        program = program.replace(word, str(value))
    functions = functions.replace(RAISE_AND_WAIT, "").replace(FENCE, "")
    assert "asm" not in functions
    source, binary = tmp_path / "ranks.cpp", tmp_path / "ranks"
    source.write_text(SHIM + program.replace("FUNCTIONS", functions), encoding="utf-8")
    command = [str(compiler), "-std=c++20", "-O1", "-g", "-fsanitize=thread", "-pthread"]
    built = subprocess.run(
        [*command, str(source), "-o", str(binary)], capture_output=True, text=True, check=False
    )
    if "tsan" in built.stderr:
        pytest.skip("no thread sanitizer")
    assert built.returncode == 0, built.stderr
    return subprocess.run([str(binary)], capture_output=True, text=True, check=False, timeout=120)


def pointers(name: str, world: int) -> str:
    """Arguments of a device function: those of all ranks."""
    return ", ".join(f"{name}[{rank}]" for rank in range(world))
