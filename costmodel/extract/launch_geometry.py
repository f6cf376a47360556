"""The launch geometry of a kernel, and the sequence by which blocks, threads and iterations are sampled."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .expressions import call_name

AXES = "xyz"


@dataclass(frozen=True)
class LaunchGeometry:
    """The grid and the threads of a block.

    `block` and `thread` map the axes x, y, z to (variable identity, extent). `cluster` has the extents of a
    cluster of blocks along these axes, if there are any.
    """

    block: Mapping[str, tuple[int, int]]
    thread: Mapping[str, tuple[int, int]]
    warp_threads: int
    cluster: tuple[int, ...] = ()

    def variable(self, tag: str) -> int | None:
        """The variable of a launch index such as threadIdx.x; None if there is none."""
        side = self.block if tag.startswith("blockIdx") else self.thread
        return side[tag[-1]][0] if tag[-1] in side else None

    def block_indices(self, count: int, first_dimension: int) -> dict[int, NDArray[Any]]:
        """`count` values of each index of a block, by variable identity; all ranks in a cluster alike."""
        found = {}
        for dimension, (axis, (variable, extent)) in enumerate(self.block.items(), first_dimension):
            found[variable] = self._all_ranks(axis, sequence(count, dimension, extent))
        return found

    def with_all_ranks(self, indices: Mapping[int, NDArray[Any]]) -> dict[int, NDArray[Any]]:
        """Sampled values of variables, those of blocks moved within their clusters: all ranks alike."""
        axes = {variable: axis for axis, (variable, _) in self.block.items()}
        return {
            variable: self._all_ranks(axes[variable], chosen) if variable in axes else chosen
            for variable, chosen in indices.items()
        }

    def _all_ranks(self, axis: str, chosen: NDArray[Any]) -> NDArray[Any]:
        side = dict(zip(AXES, self.cluster, strict=False)).get(axis, 1)
        return chosen if side == 1 else chosen // side * side + np.arange(len(chosen)) % side

    @property
    def grid(self) -> tuple[int, int, int]:
        x, y, z = (self.block[axis][1] if axis in self.block else 1 for axis in AXES)
        return x, y, z

    @property
    def threads(self) -> int:
        return math.prod(extent for _, extent in self.thread.values())

    @property
    def block_variables(self) -> frozenset[int]:
        return frozenset(variable for variable, _ in self.block.values())

    @property
    def thread_variables(self) -> frozenset[int]:
        return frozenset(variable for variable, _ in self.thread.values())

    def thread_bindings(self, linear: NDArray[Any]) -> dict[int, NDArray[Any]]:
        """Indices along each axis of the threads with the given linear indices, by variable identity."""
        bindings, stride = {}, 1
        for axis in AXES:
            if axis in self.thread:
                variable, extent = self.thread[axis]
                bindings[variable] = linear // stride % extent
                stride *= extent
        return bindings


def with_ranks(body: Any, cluster: Sequence[int]) -> Any:
    """`body` with the rank of a block in its cluster as an expression of the block's indices."""
    from tvm import tirx

    indices: dict[str, Any] = {}

    def find(node: Any) -> None:
        if type(node).__name__ == "AttrStmt" and node.attr_key == "thread_extent":
            indices[str(node.node.thread_tag)] = node.node.var

    tirx.stmt_functor.post_order_visit(body, find)
    rank: Any = tirx.IntImm("int32", 0)
    for axis, extent in reversed(list(zip(AXES, cluster, strict=False))):
        index = indices.get(f"blockIdx.{axis}", 0)
        rank = rank * extent + tirx.floormod(index, extent)

    def replace(node: Any) -> Any:
        return rank if call_name(node) == "tl.block_rank_in_cluster" else None

    return tirx.stmt_functor.ir_transform(body, None, replace, ["tirx.Call"])


def sequence(count: int, dimension: int, extent: int) -> NDArray[Any]:
    """Return `count` evenly spread integers in 0 .. extent-1, independent of those of other dimensions.

    This is a Kronecker sequence on square roots of primes.
    """
    root = math.sqrt(_PRIMES[dimension % len(_PRIMES)])
    fractions = np.modf(np.arange(1, count + 1) * root)[0]
    chosen: NDArray[Any] = np.minimum((fractions * extent).astype(np.int64), extent - 1)
    return chosen


_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41, 43, 47, 53, 59, 61, 67, 71, 73, 79, 83, 89, 97)
