"""Memory that all processes of a group reach: torch's symmetric memory on GPUs, mapped memory on processors.

Nothing else of the package knows where such memory comes from. Every allocation is a step of all ranks.
"""

from __future__ import annotations

import mmap
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from ...errors import ToolchainError
from .exchange import Exchange, RankStep
from .members import RankProcess

WHAT = "allocate memory that all ranks reach"


@dataclass(frozen=True, eq=False)
class Allocation:
    """Memory of each rank, of the same size. It is zero at first.

    Attributes:
        own: that of this rank, as bytes.
        addresses: of the memory of each rank, in this process.
        keeps: keeps the memory of other ranks mapped.
    """

    own: torch.Tensor
    addresses: tuple[int, ...]
    keeps: Any = field(repr=False)


class SharedMemory(ABC):
    """Allocates on all ranks at once, for one dispatcher.

    Attributes:
        device: of this rank.
        waiting: marks that the host waits for other ranks.
    """

    def __init__(self, device: torch.device, exchange: Exchange) -> None:
        self.device, self.exchange = device, exchange
        self.waiting: Callable[[], AbstractContextManager[None]] = nullcontext

    @abstractmethod
    def allocate(self, size: int) -> Allocation:
        """So many bytes on each rank. Raises what `Exchange.attempt` raises."""

    @abstractmethod
    def settles(self, timeout_s: float) -> bool:
        """Whether the work of this rank's device ends within this time."""


class SymmetricMemory(SharedMemory):
    """Memory of NVIDIA GPUs of one host, by torch's symmetric memory."""

    def __init__(self, device: torch.device, exchange: Exchange, group: Any) -> None:
        super().__init__(device, exchange)
        self._group = group

    def allocate(self, size: int) -> Allocation:
        import torch.distributed._symmetric_memory as symmetric

        def make() -> RankStep[torch.Tensor]:
            own = symmetric.empty(size, dtype=torch.uint8, device=self.device)
            own.zero_()
            torch.cuda.synchronize(self.device)
            return RankStep(own, {"size": str(size)})

        def meet(own: torch.Tensor) -> RankStep[Allocation]:
            with self.waiting():
                handle = symmetric.rendezvous(own, group=self._group)
            parts = [
                own if rank == self.exchange.rank else handle.get_buffer(rank, (size,), torch.uint8)
                for rank in range(self.exchange.world)
            ]
            addresses = tuple(part.data_ptr() for part in parts)
            return RankStep(Allocation(own, addresses, (handle, parts)))

        with torch.cuda.device(self.device):
            own, _ = self.exchange.attempt(WHAT, make)
            found, _ = self.exchange.attempt("reach the memory of all ranks", lambda: meet(own))
        return found

    def settles(self, timeout_s: float) -> bool:
        """A thread of its own waits: it never returns if a kernel waits for ever."""

        def wait() -> None:
            try:
                torch.cuda.synchronize(self.device)
            except RuntimeError:  # the device has failed: nothing of it runs
                return

        thread = threading.Thread(target=wait, name="tilesight group settles", daemon=True)
        thread.start()
        thread.join(timeout_s)
        return not thread.is_alive()


class MappedMemory(SharedMemory):
    """Memory of processes of one host, for ranks on its processor."""

    def allocate(self, size: int) -> Allocation:
        def make() -> RankStep[int]:
            descriptor = os.memfd_create("tilesight")
            os.ftruncate(descriptor, size)
            return RankStep(descriptor, {"size": str(size)}, f"/proc/{os.getpid()}/fd/{descriptor}")

        def map_all(paths: Sequence[str]) -> RankStep[Allocation]:
            parts = [_mapped(path, size) for path in paths]
            addresses = tuple(part.data_ptr() for part in parts)
            return RankStep(Allocation(parts[self.exchange.rank], addresses, parts))

        descriptor, paths = self.exchange.attempt(WHAT, make)
        try:
            return self.exchange.attempt("reach the memory of all ranks", lambda: map_all(paths))[0]
        finally:
            os.close(descriptor)

    def settles(self, timeout_s: float) -> bool:
        return True  # calls of a processor return when they are done; `waiting` marks them


def _mapped(path: str, size: int) -> torch.Tensor:
    descriptor = os.open(path, os.O_RDWR)
    try:
        return torch.frombuffer(mmap.mmap(descriptor, size), dtype=torch.uint8)
    finally:
        os.close(descriptor)


def shared_memory_for(device: torch.device, exchange: Exchange, group: Any) -> SharedMemory:
    """The memory of this kind of device."""
    if device.type == "cpu":
        return MappedMemory(device, exchange)
    return SymmetricMemory(device, exchange, group)


def check_access(device: torch.device, members: Sequence[RankProcess]) -> None:
    """Raise `ToolchainError` if this GPU cannot reach that of another rank. GPUs that this process does not
    see are left out: then torch's symmetric memory refuses them.
    """
    if device.type == "cpu":
        return
    seen = {device_identity(torch.device("cuda", i)): i for i in range(torch.cuda.device_count())}
    for rank, member in enumerate(members):
        index = seen.get(member.device)
        if index in (None, device.index) or torch.cuda.can_device_access_peer(device.index, index):
            continue
        raise ToolchainError(
            f"its GPU {device} cannot reach the memory of GPU {index}, that of rank {rank}: kernels of "
            "several GPUs need peer access, over NVLink or PCIe"
        )


def device_identity(device: torch.device) -> str:
    """What tells a GPU from the others of a host; "" for the processor."""
    if device.type == "cpu":
        return ""
    found = torch.cuda.get_device_properties(device)
    return f"{found.name} {getattr(found, 'uuid', device.index)}"
