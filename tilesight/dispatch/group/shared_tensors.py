"""The shared tensors of a dispatcher: those of the caller, and memory of its own.

All ranks allocate in the same order, so the number of an allocation and an offset in it name a place that is
the same on all ranks. Allocations stay as long as the dispatcher: kernels of other ranks and captured CUDA
graphs may refer to them.
"""

from __future__ import annotations

import math
from bisect import bisect_right, insort
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from .shared_memory import Allocation, SharedMemory

ALIGNMENT = 256  # bytes
BLOCK = 2 << 20  # least bytes of an allocation for scratch
Tensor = tuple[tuple[int, ...], str]  # shape and dtype


@dataclass(frozen=True, slots=True)
class Place:
    """A place in memory that all ranks reach, the same on all of them."""

    number: int  # of the allocation
    offset: int
    allocation: Allocation

    @property
    def addresses(self) -> tuple[int, ...]:
        """Of the memory of each rank."""
        return tuple(address + self.offset for address in self.allocation.addresses)

    @property
    def label(self) -> str:
        return f"allocation {self.number} at {self.offset}"

    def tensor(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        """This rank's tensor there."""
        size = bytes_of((shape, dtype))
        return self.allocation.own[self.offset : self.offset + size].view(getattr(torch, dtype)).view(shape)


class SharedTensors:
    """Makes and finds shared tensors of one dispatcher."""

    def __init__(self, memory: SharedMemory) -> None:
        self.memory = memory
        self._allocations: list[Allocation] = []
        self._starts: list[tuple[int, int]] = []  # own address and number, in order
        self._block: tuple[int, int] | None = None  # number of the allocation for scratch, and what is used
        self._spare: dict[str, int] = {}  # numbers of allocations that all kernels use, by use

    def empty(self, shape: tuple[int, ...], dtype: str) -> torch.Tensor:
        """A tensor of the caller. A step of all ranks."""
        number = self._new(bytes_of((shape, dtype)))
        return Place(number, 0, self._allocations[number]).tensor(shape, dtype)

    def find(self, tensor: torch.Tensor) -> Place | None:
        """Where a contiguous tensor lies; None if it is not shared."""
        address = tensor.data_ptr()
        index = bisect_right(self._starts, (address, len(self._allocations))) - 1
        if index < 0:
            return None
        start, number = self._starts[index]
        allocation = self._allocations[number]
        if address + tensor.nbytes > start + allocation.own.nbytes:
            return None
        return Place(number, address - start, allocation)

    def scratch(self, wanted: Mapping[str, Tensor]) -> dict[str, Place]:
        """Shared scratch of one kernel, zero. A step of all ranks.

        No other kernel may have it: a rank may still be in a call of one kernel when another begins the next
        call, which may write to its scratch at once.
        """
        return {name: self._carve(bytes_of(of)) for name, of in wanted.items()}

    def has_spare(self, use: str, size: int) -> bool:
        """Whether `spare` allocates nothing."""
        number = self._spare.get(use)
        return number is not None and self._allocations[number].own.nbytes >= size

    def spare(self, use: str, size: int) -> Place:
        """Memory for one use by all kernels. A step of all ranks if it must grow."""
        if not self.has_spare(use, size):
            before = self._allocations[self._spare[use]].own.nbytes if use in self._spare else 0
            self._spare[use] = self._new(max(size, 2 * before))
        number = self._spare[use]
        return Place(number, 0, self._allocations[number])

    @property
    def size(self) -> int:
        """Bytes of each rank."""
        return sum(allocation.own.nbytes for allocation in self._allocations)

    def _carve(self, size: int) -> Place:
        size = _aligned(size)
        if self._block is None or self._block[1] + size > self._allocations[self._block[0]].own.nbytes:
            self._block = self._new(max(size, BLOCK)), 0
        number, offset = self._block
        self._block = number, offset + size
        return Place(number, offset, self._allocations[number])

    def _new(self, size: int) -> int:
        made = self.memory.allocate(_aligned(size))
        self._allocations.append(made)
        insort(self._starts, (made.own.data_ptr(), len(self._allocations) - 1))
        return len(self._allocations) - 1


def bytes_of(of: Tensor) -> int:
    """Bytes of a contiguous tensor."""
    shape, dtype = of
    return int(math.prod(shape) * getattr(torch, dtype).itemsize)


def _aligned(size: int) -> int:
    return -(-max(size, 1) // ALIGNMENT) * ALIGNMENT
