"""The devices of a group: what one process does on all of them at once."""

from __future__ import annotations

import ctypes
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from typing import Any

from ...builder.loaded_kernel import LoadedKernel
from ...errors import ToolchainError
from ..timers import Call
from .device_kernels import DeviceKernels, let_reach

MOST_RANKS = 8  # addresses that a kernel of ours takes, as in flags.cuh
_FLAG_BYTES = 128  # as in flags.cuh
_READY_LIMIT_NS = 100_000_000  # after which ranks no longer wait for the host
_GRACE_S = 1.0  # in which the other ranks' launches should return after one was refused


class Ranks(ABC):
    """The devices of a group, in the order of ranks. Each rank has a thread that launches its kernels.

    A launch may wait until its device is idle, for example to give a kernel more local memory. If a kernel
    before it waits for another rank, that rank's launches must go on meanwhile.

    Attributes:
        devices: their names in torch.
    """

    def __init__(self, devices: Sequence[str]) -> None:
        self.devices = tuple(devices)
        self._threads = [
            ThreadPoolExecutor(1, thread_name_prefix=f"rank-{rank}") for rank in range(len(devices))
        ]

    @property
    def world(self) -> int:
        return len(self.devices)

    def together(self, calls: Sequence[Call]) -> Call:
        """A call that makes the call of each rank on its device, so that all can run at once.

        It returns when all ranks have made theirs. If one is refused, it raises that error when the others
        have returned, or after a while: a launch may wait for a kernel that waits for the refused one.
        """

        def of_rank(rank: int, one: Call) -> None:
            self._enter(rank)
            one()

        def call() -> None:
            running = [
                thread.submit(of_rank, rank, one)
                for rank, (thread, one) in enumerate(zip(self._threads, calls, strict=True))
            ]
            done, _ = wait(running, return_when=FIRST_EXCEPTION)
            error = next((error for each in running if each in done and (error := each.exception())), None)
            if error is not None:
                wait(running, _GRACE_S)
                raise error

        return call

    @abstractmethod
    def wait(self, rank: int, duration_us: float, stream: int | None = None) -> None:
        """Let what follows on a rank begin later. Called on that rank's thread.

        Args:
            rank: the rank.
            duration_us: how much later.
            stream: on another stream of it than its own.
        """

    @abstractmethod
    def load(self, rank: int, path: str, entry: str) -> LoadedKernel:
        """Load a library on the device of a rank."""

    @abstractmethod
    def unload(self, rank: int, kernel: LoadedKernel) -> None: ...

    @abstractmethod
    def stream(self, rank: int) -> int:
        """The stream of a rank, as an integer."""

    @abstractmethod
    def synchronize(self) -> None:
        """Wait until all devices have finished all work. Raises errors of that work."""

    @abstractmethod
    def _enter(self, rank: int) -> None:
        """Make this thread that of a rank."""


class ThreadRanks(Ranks):
    """Ranks that are threads of this process, on the processor."""

    def __init__(self, world: int) -> None:
        super().__init__(("cpu",) * world)
        self._start = threading.Barrier(world)

    def load(self, rank: int, path: str, entry: str) -> LoadedKernel:
        return LoadedKernel(path, entry)

    def unload(self, rank: int, kernel: LoadedKernel) -> None:
        kernel.close()

    def stream(self, rank: int) -> int:
        return 0

    def synchronize(self) -> None:
        pass

    def _enter(self, rank: int) -> None:
        self._start.wait()

    def wait(self, rank: int, duration_us: float, stream: int | None = None) -> None:
        time.sleep(duration_us / 1e6)


class _Peers(ctypes.Structure):
    _fields_ = (("at", ctypes.c_void_p * MOST_RANKS),)


class GpuRanks(Ranks):
    """NVIDIA GPUs of this host, each on the default stream."""

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
        super().__init__([f"cuda:{index}" for index in indices])
        self._torch: Any = torch
        self._indices = tuple(indices)
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

    def _enter(self, rank: int) -> None:
        self._torch.cuda.set_device(self._indices[rank])

    def wait(self, rank: int, duration_us: float, stream: int | None = None) -> None:
        duration = ctypes.c_uint64(int(1e3 * duration_us))
        on = self.stream(rank) if stream is None else stream
        self._kernels[rank].launch("wait_ns", 1, on, duration)

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
