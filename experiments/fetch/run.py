"""Launches the kernels of fetch.cubin on the local GPU, and prints a row for each pass of each of them.

    python experiments/fetch/run.py fetch.cubin > rows.csv

Another kernel of the largest size runs before each case, so that the first pass finds none of its code.
"""

from __future__ import annotations

import ctypes
import sys

import torch

PASSES, RUNS = 4, 3
BLOCKS = (1, 4, 8, 12, 16, 24, 31, 33, 40, 48, 64, 96)  # of 4 KiB of code
THREADS = (32, 128, 512)
driver = ctypes.CDLL("libcuda.so.1")


def check(code: int) -> None:
    if code:
        raise RuntimeError(f"error {code} of the driver")


def kernel(module: ctypes.c_void_p, blocks: int, kind: int) -> ctypes.c_void_p:
    """The kernel `straight<blocks, kind>`."""
    found = ctypes.c_void_p()
    name = f"_Z8straightILi{blocks}ELi{kind}EEvffiPxPf"
    check(driver.cuModuleGetFunction(ctypes.byref(found), module, name.encode()))
    return found


def launch(
    function: ctypes.c_void_p, grid: int, threads: int, passes: int, cycles: torch.Tensor, out: torch.Tensor
) -> None:
    values = (
        *(ctypes.c_float(0.5), ctypes.c_float(1.0), ctypes.c_int(passes)),
        *(ctypes.c_void_p(cycles.data_ptr()), ctypes.c_void_p(out.data_ptr())),
    )
    addresses = (ctypes.c_void_p * len(values))(
        *(ctypes.cast(ctypes.byref(v), ctypes.c_void_p) for v in values)
    )
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    check(driver.cuLaunchKernel(function, grid, 1, 1, threads, 1, 1, 0, stream, addresses, None))
    torch.cuda.synchronize()


def main(path: str) -> None:
    cycles = torch.zeros(PASSES, dtype=torch.int64, device="cuda")
    out = torch.zeros(1 << 18, device="cuda")
    device = torch.cuda.get_device_properties(0)
    module = ctypes.c_void_p()
    check(driver.cuModuleLoad(ctypes.byref(module), path.encode()))
    other = kernel(module, 128, 1)
    print("device,code_kib,blocks,threads,run,pass,cycles_an_instruction")
    for blocks in BLOCKS:
        straight = kernel(module, blocks, 0)
        for grid in (1, device.multi_processor_count):
            for threads in THREADS:
                for run in range(RUNS):
                    launch(other, grid, 128, 1, cycles, out)
                    launch(straight, grid, threads, PASSES, cycles, out)
                    for number, took in enumerate(cycles.tolist()):
                        row = (device.name, blocks * 4, grid, threads, run + 1, number + 1)
                        print(*row, f"{took / (blocks * 256):.3f}", sep=",")


if __name__ == "__main__":
    main(sys.argv[1])
