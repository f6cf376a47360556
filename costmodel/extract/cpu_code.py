"""What the C compiler makes of one store and the loops around it, on a CPU.

The rules are those of gcc at -O3 without fast-math. They were checked on the kernels of
experiments/cpu_model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

# Innermost constant loops with at most this number of elements together are the tile of a store.
MOST_TILE_ELEMENTS = 512
# gcc unrolls loops of few iterations completely before it vectorises. Then the loop around them is
# vectorised, or else stores to neighbours become vectors. An accumulation with one multiply-add is unrolled
# up to 16 iterations and stays scalar: matmuls with tiles of 4x16 and 8x8 were measured at 11 GFLOP/s, with
# 4x64 at 92.
UNROLLED_ITERATIONS = 8
UNROLLED_ACCUMULATIONS = 16
LINE_BYTES = 64.0


@dataclass(frozen=True)
class CpuLoop:
    """A loop around a store: its variable (-1 if it has none), its iterations, and whether their number is
    known."""

    variable: int
    extent: float
    is_constant: bool


@dataclass(frozen=True)
class Address:
    """The address of an access, in elements: what one iteration of each loop adds, outermost loop first.

    Attributes:
        strides: one for each loop; 0 if the address does not depend on it, None if loaded data chooses the
            address in each iteration.
        element_bytes: bytes of an element.
        vector: elements that the IR itself accesses at once.
        first: the element of the first iteration; -1 if it is not known.
        row_bytes: neighbouring bytes at each place that loaded data chooses; 0 if it chooses none.
    """

    strides: tuple[int | None, ...]
    element_bytes: float
    vector: int = 1
    first: int = 0
    row_bytes: float = 0.0

    def lines(self, loops: Sequence[CpuLoop]) -> tuple[float, float]:
        """The distinct cache lines that the innermost `len(loops)` loops access.

        Returns:
            Their bytes, and the bytes from one line to the next: 0 if several are neighbours.
        """
        strides = self.strides[len(self.strides) - len(loops) :]
        steps = sorted(
            (abs(stride), loop.extent) for stride, loop in zip(strides, loops, strict=True) if stride
        )
        run, runs, gap = (
            float(self.vector),
            1.0,
            0.0,
        )  # neighbouring elements; how many such runs; their distance
        for stride, extent in steps:
            if stride <= run and runs == 1:
                run += stride * (extent - 1)
            else:
                gap = gap or stride * self.element_bytes
                runs *= extent
        chosen = executions([loop for stride, loop in zip(strides, loops, strict=True) if stride is None])
        runs, gap = runs * chosen, gap or (LINE_BYTES if chosen > 1 else 0.0)
        run_bytes = run * self.element_bytes
        if runs == 1 or gap < LINE_BYTES:
            return run_bytes * runs, 0.0
        return runs * max(LINE_BYTES, run_bytes), gap if run_bytes <= LINE_BYTES else 0.0


@dataclass(frozen=True)
class Code:
    """The machine code of a store.

    Attributes:
        tile: number of innermost loops that make up the tile.
        inner: index of the loop that became vectors or stayed the innermost loop, or None without loops.
        lanes: elements of a vector at most; 1: scalar code. The machine's vectors limit it further.
        chained: each operation needs the result of the one before: a reduction.
    """

    tile: int
    inner: int | None
    lanes: float
    chained: bool


def code_of(
    loops: Sequence[CpuLoop],
    store: Address,
    loads: Sequence[Address],
    *,
    accumulates: bool,
    operations: float,
    calls_library: bool,
) -> Code:
    """The code of a store in `loops` (outermost first), all with more than one iteration.

    Args:
        loops: loops around the store.
        store: where it stores.
        loads: from where the stored value loads.
        accumulates: whether the value reads the element that is stored.
        operations: arithmetic operations of the value.
        calls_library: whether the value calls a function of the C library.
    """
    tile = _tile(loops)
    if store.vector > 1:
        return Code(tile, len(loops) - 1 if loops else None, store.vector, chained=False)
    inner = len(loops) - 1
    if inner < 0:
        return Code(0, None, 1, chained=False)
    if accumulates and store.strides[inner] == 0:
        return Code(tile, inner, 1, chained=True)
    if calls_library:
        return Code(tile, inner, 1, chained=False)
    extent = loops[inner].extent
    if not loops[inner].is_constant or extent > UNROLLED_ITERATIONS:
        is_short = loops[inner].is_constant and extent <= UNROLLED_ACCUMULATIONS
        if is_short and accumulates and operations <= 1 and len(loops) > 1:
            return Code(tile, inner, 1, chained=False)
        return Code(tile, inner, _vector_lanes(loops, inner, store, loads), chained=False)
    # Unrolled: the loop around it becomes the innermost one. gcc does not move a load over an earlier store
    # that it may overlap with, so several loads keep the code scalar.
    if len(set(loads)) > 1:
        return Code(tile, inner, 1, chained=False)
    if inner > 0 and not accumulates and (lanes := _vector_lanes(loops, inner - 1, store, loads)) > 1:
        return Code(max(tile, 2), inner - 1, lanes, chained=False)
    neighbours = store.strides[inner] == 1 and all(load.strides[inner] in (0, 1) for load in loads)
    return Code(tile, inner, extent if neighbours and not accumulates else 1, chained=False)


def _vector_lanes(loops: Sequence[CpuLoop], index: int, store: Address, loads: Sequence[Address]) -> float:
    """Lanes of loop `index` as vectors: its iterations if its stores are neighbours, else 1."""
    if store.strides[index] != 1 or any(load.strides[index] not in (0, 1) for load in loads):
        return 1
    return loops[index].extent


def _tile(loops: Sequence[CpuLoop]) -> int:
    """The number of innermost constant loops that together are small enough; at least one of several
    loops."""
    total, count = 1.0, 0
    for loop in reversed(loops):
        if not loop.is_constant or total * loop.extent > MOST_TILE_ELEMENTS:
            break
        total *= loop.extent
        count += 1
    return max(count, min(1, len(loops)))


def executions(loops: Sequence[CpuLoop]) -> float:
    """Iterations of all `loops` together."""
    return math.prod(loop.extent for loop in loops)
