"""The devices of a group: what one process does on all of them at once."""

from __future__ import annotations

import ctypes
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from ...builder.loaded_kernel import LoadedKernel
from ...errors import ToolchainError
from ..timers import Call
from .device_kernels import DeviceKernels, let_reach

MOST_RANKS = 8  # addresses that a kernel of ours takes, as in flags.cuh
_FLAG_BYTES = 128  # as in flags.cuh
_READY_LIMIT_NS = 100_000_000  # after which ranks no longer wait for the host

Load = Callable[[str], LoadedKernel]


class Ranks(ABC):
    """The devices of a group, in the order of ranks. `devices` are their names in torch."""

    devices: tuple[str, ...]

    @property
    def world(self) -> int:
        return len(self.devices)

    @abstractmethod
    def load(self, rank: int, path: str, entry: str) -> LoadedKernel:
        """Load a library on the device of a rank."""

    @abstractmethod
    def unload(self, rank: int, kernel: LoadedKernel) -> None: ...

    @abstractmethod
    def stream(self, rank: int) -> int:
        """The stream of a rank, as an integer."""

    @abstractmethod
    def together(self, calls: Sequence[Call], late: int | None = None, late_us: float = 0.0) -> Call:
        """A call that makes the call of each rank on its device, so that all can run at once.

        Args:
            calls: that of each rank.
            late: a rank that begins `late_us` after the others; None: no rank does.
            late_us: microseconds.
        """

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all devices have finished all work. Raises errors of that work."""


class ThreadRanks(Ranks):
    """Ranks that are threads of this process, on the processor."""

    def __init__(self, world: int) -> None:
        self.devices = ("cpu",) * world
        self._threads = ThreadPoolExecutor(world, thread_name_prefix="rank")
        self._start = threading.Barrier(world)

    def load(self, rank: int, path: str, entry: str) -> LoadedKernel:
        return LoadedKernel(path, entry)

    def unload(self, rank: int, kernel: LoadedKernel) -> None:
        kernel.close()

    def stream(self, rank: int) -> int:
        return 0

    def together(self, calls: Sequence[Call], late: int | None = None, late_us: float = 0.0) -> Call:
        def of_rank(rank: int, one: Call) -> None:
            self._start.wait()
            if rank == late:
                time.sleep(late_us / 1e6)
            one()

        def call() -> None:
            running = [self._threads.submit(of_rank, rank, one) for rank, one in enumerate(calls)]
            for each in running:
                each.result()

        return call

    def synchronize(self) -> None:
        pass


class _Peers(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p * MOST_RANKS),)


class GpuRanks(Ranks):
    """NVIDIA GPUs of this host, all driven by this thread, each on its current stream."""

    def __init__(self, indices: Sequence[int], cubin: bytes) -> None:
        """
        Args:
            indices: torch's, in the order of ranks.
            cubin: the code of `group_kernels.cu`.

        Raises:
            ToolchainError: they are too many, or cannot reach each other's memory.
        """
        import torch

        if len(indices) > MOST_RANKS:
            raise ToolchainError(f"{len(indices)} GPUs are measured together, at most {MOST_RANKS} can be")
        self._torch: Any = torch
        self._indices = tuple(indices)
        self.devices = tuple(f"cuda:{index}" for index in indices)
        let_reach(indices)
        self._kernels = []
        for index in indices:
            with torch.cuda.device(index):
                self._kernels.append(DeviceKernels(cubin, ("start_together", "wait_ns")))
        self._flags = [
            torch.zeros(MOST_RANKS * _FLAG_BYTES, dtype=torch.uint8, device=device) for device in self.devices
        ]
        self._ready = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self._starts = 0
        self.synchronize()

    def load(self, rank: int, path: str, entry: str) -> LoadedKernel:
        with self._torch.cuda.device(self._indices[rank]):
            return LoadedKernel(path, entry)

    def unload(self, rank: int, kernel: LoadedKernel) -> None:
        with self._torch.cuda.device(self._indices[rank]):
            kernel.close()

    def stream(self, rank: int) -> int:
        return int(self._torch.cuda.current_stream(self._indices[rank]).cuda_stream)

    def together(self, calls: Sequence[Call], late: int | None = None, late_us: float = 0.0) -> Call:
        set_device, pairs = self._torch.cuda.set_device, tuple(zip(self._indices, calls, strict=True))

        def call() -> None:
            for index, one in pairs:
                set_device(index)
                one()
            set_device(self._indices[0])

        if late is None:
            return call

        def call_late() -> None:
            with self._torch.cuda.device(self._indices[late]):
                duration = ctypes.c_uint64(int(1e3 * late_us))
                self._kernels[late].launch("wait_ns", 1, self.stream(late), duration)
            call()

        return call_late

    def synchronize(self) -> None:
        for index in self._indices:
            self._torch.cuda.synchronize(index)

    def begin_start(self) -> None:
        """Let the ranks wait, each on its stream, for `end_start` and then for each other."""
        self._starts += 1
        peers = _Peers((ctypes.c_void_p * MOST_RANKS)(*(flags.data_ptr() for flags in self._flags)))
        ready = ctypes.c_void_p(self._ready.data_ptr())
        value, limit = ctypes.c_uint32(self._starts), ctypes.c_uint64(_READY_LIMIT_NS)
        for rank, index in enumerate(self._indices):
            self._torch.cuda.set_device(index)
            number = ctypes.c_uint32(rank)
            self._kernels[rank].launch(
                "start_together", self.world, self.stream(rank), peers, number, value, ready, limit
            )
        self._torch.cuda.set_device(self._indices[0])

    def end_start(self) -> None:
        """The host has launched everything that follows the common start."""
        self._ready[0] = self._starts
