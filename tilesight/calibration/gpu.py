"""Runs the probes' kernels on one GPU, with the CUDA driver for launches and torch for memory and events."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from ..errors import ToolchainError
from ..runner.timers import GpuTimer, Stretch

Argument = Any  # a tensor, or a ctypes value
u32, u64 = ctypes.c_uint32, ctypes.c_uint64

_MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
_CLOCK_SHARE = 0.5  # of a product's duration, during which its clock is read
# the thread that reads the clock must occupy a core before the product fills the GPU, and start once the
# product runs
_CLOCK_LEAD_NS, _CLOCK_DELAY_NS = 8_000, 30_000
_MAX_BLOCKS = 65536  # of a launch, each of which writes a result


@dataclass(frozen=True, slots=True)
class Timing:
    """Times of one launch.

    Attributes:
        cycles: Duration of the slowest block, read by the block itself.
        ns: Duration of the slowest block, read by the block itself.
        clock_mhz: Median clock of the blocks.
        wall_us: Time between two events around the launch.
    """

    cycles: float
    ns: float
    clock_mhz: float
    wall_us: float


class Product(Protocol):
    """A dense bf16 matrix product of random numbers, computed by the vendor's library."""

    flops: float

    def times(self, count: int, cold: bool) -> list[tuple[float, float]]:
        """(time in us, clock in MHz) of `count` launches in a row; with `cold`, each after a flush of L2."""
        ...


class Gpu(Protocol):
    """The operations on a GPU that probes use."""

    cores: int
    l2_bytes: int
    memory_bytes: int

    def has(self, kernel: str) -> bool: ...

    def run(
        self, kernel: str, blocks: int, threads: int, *arguments: Argument, shared: int = 0
    ) -> Timing: ...

    def random(self, size: int) -> Argument:
        """`size` bytes of device memory with random content."""
        ...

    def sink(self) -> Argument: ...

    def ring(self, size: int, stride: int) -> tuple[Argument, int]:
        """A cycle of pointers for a pointer chase: (memory, address of one pointer).

        The pointers are `stride` bytes apart in `size` bytes, in a random order that visits all of them. The
        memory lives as long as the first value.
        """
        ...

    def flush(self) -> None:
        """Overwrite L2."""
        ...

    def copy_us(self, source: Argument, copy: Argument) -> float:
        """Time of a copy by the driver, in us."""
        ...

    def product(self, rows: int, columns: int, depth: int) -> Product: ...

    def launch_us(self, kernel: str, blocks: int, threads: int, samples: int) -> list[float]:
        """Samples in us of a kernel without arguments, each after a flush of L2."""
        ...


class CudaGpu:
    """An NVIDIA GPU. Its methods raise `ToolchainError` if the driver fails."""

    def __init__(self, index: int, cubin: bytes) -> None:
        """`index` is torch's; `cubin` contains the probes."""
        import torch

        self._torch: Any = torch
        torch.cuda.set_device(index)
        torch.zeros(1, device="cuda")  # creates the context
        properties = torch.cuda.get_device_properties(index)
        self.cores, self.memory_bytes = int(properties.multi_processor_count), int(properties.total_memory)
        self.l2_bytes = int(properties.L2_cache_size)
        self._cuda = ctypes.CDLL("libcuda.so.1")
        self._module = ctypes.c_void_p()
        self._check(self._cuda.cuModuleLoadData(ctypes.byref(self._module), cubin), "load the probes")
        self._functions: dict[str, ctypes.c_void_p] = {}
        self._out = torch.zeros(2 * _MAX_BLOCKS, dtype=torch.int64, device="cuda")
        self._flushed = torch.zeros(2 * self.l2_bytes, dtype=torch.int8, device="cuda")
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
        self.launch(kernel, blocks, threads, *arguments, shared=shared)
        end.record()
        self.synchronize(kernel)
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
        self._flushed.zero_()

    def copy_us(self, source: Argument, copy: Argument) -> float:
        begin, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        copy.copy_(source)
        end.record()
        self.synchronize("a copy")
        return float(begin.elapsed_time(end)) * 1e3

    def product(self, rows: int, columns: int, depth: int) -> Product:
        return _CudaProduct(self, self._torch, rows, columns, depth)

    def launch_us(self, kernel: str, blocks: int, threads: int, samples: int) -> list[float]:
        return [
            time_us
            for (time_us,) in self._timer.turns(
                [Stretch(lambda: self.launch(kernel, blocks, threads))], samples
            )
        ]

    def launch(
        self,
        kernel: str,
        blocks: int,
        threads: int,
        *arguments: Argument,
        shared: int = 0,
        out: Argument = None,
    ) -> None:
        if not self.has(kernel):
            raise ToolchainError(f"calibration: probe '{kernel}' is not in this GPU's code")
        function = self._functions[kernel]
        given = [_value(self._out if out is None else out), *map(_value, arguments)]
        pointers = (ctypes.c_void_p * len(given))(*(ctypes.addressof(value) for value in given))
        if shared:
            self._check(
                self._cuda.cuFuncSetAttribute(function, _MAX_DYNAMIC_SHARED, shared),
                f"give '{kernel}' {shared} bytes",
            )
        stream = ctypes.c_void_p(self._torch.cuda.current_stream().cuda_stream)
        status = self._cuda.cuLaunchKernel(
            function, blocks, 1, 1, threads, 1, 1, shared, stream, pointers, None
        )
        self._check(status, f"launch '{kernel}'")

    def _check(self, status: int, what: str) -> None:
        if status:
            text = ctypes.c_char_p()
            self._cuda.cuGetErrorString(status, ctypes.byref(text))
            raise ToolchainError(
                f"calibration: the driver cannot {what}: {(text.value or b'').decode() or f'error {status}'}"
            )

    def synchronize(self, what: str) -> None:
        try:
            self._torch.cuda.synchronize()
        except RuntimeError as error:
            raise ToolchainError(f"calibration: '{what}' failed on the GPU: {error}") from error


class _CudaProduct:
    """A product beside which a sleeping thread reads the clock of its core."""

    def __init__(self, gpu: CudaGpu, torch: Any, rows: int, columns: int, depth: int) -> None:
        self._gpu, self._torch = gpu, torch
        self.flops = 2.0 * rows * columns * depth
        self._left, self._right = (
            torch.randn(shape, dtype=torch.bfloat16, device="cuda")
            for shape in ((rows, depth), (depth, columns))
        )
        self._product = torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda")
        self._clock_stream = torch.cuda.Stream(priority=-1)
        self._clock_ns = 1_000  # for the first launches, which give the duration of a product
        self._clock_ns = int(_CLOCK_SHARE * 1e3 * median(us for us, _ in self.times(5, cold=False)[1:]))

    def times(self, count: int, cold: bool) -> list[tuple[float, float]]:
        torch, spans = self._torch, self._torch.zeros(count, 2, dtype=self._torch.int64, device="cuda")
        self._gpu.synchronize("a matrix product")  # the spans are zero before the other stream writes them
        events = [[torch.cuda.Event(enable_timing=True) for _ in range(3)] for _ in range(count)]
        for number, (ready, begin, end) in enumerate(events):
            if cold:
                self._gpu.flush()
            ready.record()
            self._clock_stream.wait_event(ready)
            with torch.cuda.stream(self._clock_stream):
                self._gpu.launch(
                    "clock_rate", 1, 1, u64(_CLOCK_DELAY_NS), u64(self._clock_ns), out=spans[number]
                )
            self._gpu.launch("clock_rate", 1, 1, u64(0), u64(_CLOCK_LEAD_NS))
            begin.record()
            torch.mm(self._left, self._right, out=self._product)
            end.record()
        self._gpu.synchronize("a matrix product")
        return [
            (begin.elapsed_time(end) * 1e3, 1e3 * cycles / ns if ns else 0.0)
            for (_, begin, end), (cycles, ns) in zip(events, spans.tolist(), strict=True)
        ]


def _value(argument: Argument) -> Any:
    return ctypes.c_void_p(argument.data_ptr()) if hasattr(argument, "data_ptr") else argument
