"""Runs the probes' kernels on one GPU: the driver's own interface for modules and launches, torch for memory and events."""

from __future__ import annotations

import ctypes
import time
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from ..errors import ToolchainError
from ..timing import GpuTimer

Argument = Any  # a tensor, or a ctypes value of the kernel's own type
u32, u64 = ctypes.c_uint32, ctypes.c_uint64

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CLOCK_SAMPLE_NS = 2_000_000
_MATRIX = 8192  # rows and columns of the product that stands for a sustained matrix load
_PRODUCTS = 20  # between two looks at the clock


@dataclass(frozen=True, slots=True)
class Timing:
    """One launch. `cycles` and `ns` are those of the slowest block as it saw them itself, `clock_mhz` the blocks'
    median, `wall_us` the time between two events around the launch."""

    cycles: float
    ns: float
    clock_mhz: float
    wall_us: float


@dataclass(frozen=True, slots=True)
class MatrixLoad:
    """`clocks_mhz`: samples taken while the products ran."""

    tflops: float
    clocks_mhz: tuple[float, ...]


class Gpu(Protocol):
    """What the probes ask for."""

    cores: int
    l2_bytes: int
    memory_bytes: int

    def has(self, kernel: str) -> bool: ...

    def run(self, kernel: str, blocks: int, threads: int, *arguments: Argument, shared: int = 0) -> Timing: ...

    def random(self, size: int) -> Argument:
        """`size` bytes of device memory with random content."""
        ...

    def sink(self) -> Argument: ...

    def ring(self, size: int, stride: int) -> tuple[Argument, int]:
        """Pointers `stride` bytes apart in `size` bytes, each to another one in a random order that visits all; with
        the address of one of them. The memory lives as long as the first."""
        ...

    def flush(self) -> None:
        """Leave nothing of value in L2."""
        ...

    def copy_us(self, source: Argument, copy: Argument) -> float:
        """Time of the driver's own copy."""
        ...

    def matrix_load(self, seconds: float) -> MatrixLoad: ...

    def launch_us(self, kernel: str | None, samples: int) -> list[float]:
        """Samples of the timing protocol for an empty launch, or for none."""
        ...

    def graph_us(self, kernel: str, launches: int, samples: int) -> list[float]:
        """Times of a graph of so many launches, one after the other."""
        ...


class CudaGpu:
    """An NVIDIA GPU. Raises `ToolchainError` where the driver refuses something."""

    def __init__(self, index: int, cubin: bytes) -> None:
        """`index` as torch counts."""
        import torch

        self._torch: Any = torch
        torch.cuda.set_device(index)
        torch.zeros(1, device="cuda")  # now there is a context
        properties = torch.cuda.get_device_properties(index)
        self.cores, self.memory_bytes = int(properties.multi_processor_count), int(properties.total_memory)
        self.l2_bytes = int(properties.L2_cache_size)
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        self._check(self._cuda.cuModuleLoadData(ctypes.byref(self._module), cubin), "load the probes")
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._out = torch.zeros(2 * 65536, dtype=torch.int64, device="cuda")
        self._sink = torch.zeros(64, dtype=torch.int64, device="cuda")
        self._timer = GpuTimer(2 * self.l2_bytes)

    def has(self, kernel: str) -> bool:
        found = ctypes.c_void_p()
        if kernel not in self._functions:
            if self._cuda.cuModuleGetFunction(ctypes.byref(found), self._module, kernel.encode()):
                return False
            self._functions[kernel] = found
        return True

    def run(self, kernel: str, blocks: int, threads: int, *arguments: Argument, shared: int = 0) -> Timing:
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self._launch(kernel, blocks, threads, *arguments, shared=shared)
        end.record()
        self._synchronize(kernel)
        if kernel == "empty":
            return Timing(0.0, 0.0, 0.0, begin.elapsed_time(end) * 1e3)
        spans = self._out[: 2 * blocks].reshape(-1, 2).tolist()
        clocks = [1e3 * cycles / ns for cycles, ns in spans if ns]
        return Timing(
            float(max(cycles for cycles, _ in spans)),
            float(max(ns for _, ns in spans)),
            median(clocks) if clocks else 0.0,
            begin.elapsed_time(end) * 1e3,
        )

    def random(self, size: int) -> Argument:
        return self._torch.randint(-(2**62), 2**62, (size // 8,), dtype=self._torch.int64, device="cuda")

    def sink(self) -> Argument:
        return self._sink

    def ring(self, size: int, stride: int) -> tuple[Argument, int]:
        torch, count = self._torch, size // stride
        order = torch.randperm(count, device="cuda")
        memory = torch.zeros(size // 8, dtype=torch.int64, device="cuda")
        memory[order * (stride // 8)] = memory.data_ptr() + order.roll(-1) * stride
        return memory, int(memory.data_ptr() + order[0].item() * stride)

    def flush(self) -> None:
        self._torch.zeros(2 * self.l2_bytes, dtype=self._torch.int8, device="cuda")
        self._synchronize("a flush of L2")

    def copy_us(self, source: Argument, copy: Argument) -> float:
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        copy.copy_(source)
        end.record()
        self._synchronize("a copy")
        return float(begin.elapsed_time(end)) * 1e3

    def matrix_load(self, seconds: float) -> MatrixLoad:
        """A bf16 product on random data, again and again; a sleeping thread beside it watches the clock. The first
        half of the time is for the clock to settle."""
        torch = self._torch
        left, right = (torch.randn(_MATRIX, _MATRIX, dtype=torch.bfloat16, device="cuda") for _ in range(2))
        product = torch.empty_like(left)
        watch, spans = torch.cuda.Stream(priority=-1), torch.zeros(4096, 2, dtype=torch.int64, device="cuda")
        torch.mm(left, right, out=product)
        self._synchronize("a matrix product")
        times_ms: list[float] = []
        start = time.perf_counter()
        while not times_ms or (time.perf_counter() - start < seconds and len(times_ms) < len(spans)):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()
            for _ in range(_PRODUCTS):
                torch.mm(left, right, out=product)
            end.record()
            with torch.cuda.stream(watch):
                self._launch("clock_rate", 1, 1, u64(_CLOCK_SAMPLE_NS), out=spans[len(times_ms)])
            self._synchronize("a matrix product")
            times_ms.append(begin.elapsed_time(end) / _PRODUCTS)
        settled = len(times_ms) // 2
        clocks = [1e3 * cycles / ns for cycles, ns in spans[settled : len(times_ms)].tolist() if ns]
        return MatrixLoad(2 * _MATRIX**3 / median(times_ms[settled:]) / 1e9, tuple(clocks))

    def launch_us(self, kernel: str | None, samples: int) -> list[float]:
        call = (lambda: self._launch(kernel, 1, 32)) if kernel else (lambda: None)
        return self._timer.rounds([call], samples)[0]

    def graph_us(self, kernel: str, launches: int, samples: int) -> list[float]:
        torch, graph = self._torch, self._torch.cuda.CUDAGraph()
        self._launch(kernel, 1, 32)
        self._synchronize(kernel)
        with torch.cuda.graph(graph):
            for _ in range(launches):
                self._launch(kernel, 1, 32)
        found: list[float] = self._timer.rounds([graph.replay], samples)[0]
        return found

    def _launch(self, kernel: str, blocks: int, threads: int, *arguments: Argument, shared: int = 0, out: Argument = None) -> None:
        if not self.has(kernel):
            raise ToolchainError(f"calibration: probe '{kernel}' is not in this GPU's code")
        function = self._functions[kernel]
        given = [_value(self._out if out is None else out), *map(_value, arguments)]
        pointers = (ctypes.c_void_p * len(given))(*(ctypes.addressof(value) for value in given))
        if shared:
            self._check(self._cuda.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared), f"give '{kernel}' {shared} bytes")
        stream = ctypes.c_void_p(self._torch.cuda.current_stream().cuda_stream)
        status = self._cuda.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, shared, stream, pointers, None)
        self._check(status, f"launch '{kernel}'")

    def _check(self, status: int, what: str) -> None:
        if status:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(status, ctypes.byref(text))
            raise ToolchainError(f"calibration: the driver cannot {what}: {(text.value or b'').decode() or f'error {status}'}")

    def _synchronize(self, what: str) -> None:
        try:
            self._torch.cuda.synchronize()
        except RuntimeError as error:
            raise ToolchainError(f"calibration: '{what}' failed on the GPU: {error}") from error


def _value(argument: Argument) -> Any:
    return ctypes.c_void_p(argument.data_ptr()) if hasattr(argument, "data_ptr") else argument
