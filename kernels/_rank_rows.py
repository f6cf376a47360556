"""Small kernels of one rank beside a product: zeros in its output, and sums of what its peers have sent.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

import math
from collections.abc import Sequence
from typing import Any

from ._ranks import on_rank

THREADS, COLUMNS, ROWS = 128, 1024, 4  # of a block; fewer rows where they do not divide those of the tensor


def zeros(rows: int, columns: int, dtype: str) -> Any:
    """A function `launch(tensors, rank)` for a PrimFunc: zeros in this rank's one of `tensors`."""
    import tilelang.language as T  # noqa: N812

    height = math.gcd(rows, ROWS)

    @T.macro
    def clear(tensor, by, bx):  # type: ignore[no-untyped-def]
        for i, j in T.Parallel(height, COLUMNS):
            tensor[by * height + i, bx * COLUMNS + j] = T.cast(0, dtype)

    @T.macro
    def launch(tensors, rank):  # type: ignore[no-untyped-def]
        with T.Kernel(T.ceildiv(columns, COLUMNS), rows // height, threads=THREADS) as (bx, by):
            on_rank(rank, tensors, lambda tensor: clear(tensor, by, bx))

    return launch


def sums_to_all(rows: int, columns: int, world: int, dtype: str) -> Any:
    """As `sums_of_ranks`, for results of all rows of all ranks: each rank stores its sums at all of them."""
    import tilelang.language as T  # noqa: N812

    height = math.gcd(rows, ROWS)

    @T.macro
    def store(result, total, first, bx):  # type: ignore[no-untyped-def]
        for i, j in T.Parallel(height, COLUMNS):
            result[first + i, bx * COLUMNS + j] = T.cast(total[i, j], dtype)

    def store_at(results: Sequence[Any], total: Any, first: Any, bx: Any) -> None:
        # a plain function, so that ranks are constants
        for result in results:
            store(result, total, first, bx)

    @T.macro
    def add(own, results, rank, by, bx):  # type: ignore[no-untyped-def]
        total = T.alloc_fragment((height, COLUMNS), "float32")
        T.clear(total)
        for source in T.unroll(world):
            for i, j in T.Parallel(height, COLUMNS):
                total[i, j] += T.cast(own[source, by * height + i, bx * COLUMNS + j], "float32")
        store_at(results, total, rank * rows + by * height, bx)

    @T.macro
    def launch(parts, results, rank):  # type: ignore[no-untyped-def]
        with T.Kernel(T.ceildiv(columns, COLUMNS), rows // height, threads=THREADS) as (bx, by):
            on_rank(rank, parts, lambda own: add(own, results, rank, by, bx))

    return launch


def sums_of_ranks(rows: int, columns: int, world: int, dtype: str) -> Any:
    """A function `launch(parts, results, rank)` for a PrimFunc: adds the parts that this rank has of all.

    `parts` are of shape (world, rows, columns), those of all ranks like `results`. Sums are in float32 and in
    the order of the ranks, so that a result does not depend on which part came first.
    """
    import tilelang.language as T  # noqa: N812

    height = math.gcd(rows, ROWS)

    @T.macro
    def add(both, by, bx):  # type: ignore[no-untyped-def]
        # not named again: the buffers keep the names of the kernel's arguments
        total = T.alloc_fragment((height, COLUMNS), "float32")
        T.clear(total)
        for source in T.unroll(world):
            for i, j in T.Parallel(height, COLUMNS):
                total[i, j] += T.cast(both[0][source, by * height + i, bx * COLUMNS + j], "float32")
        for i, j in T.Parallel(height, COLUMNS):
            both[1][by * height + i, bx * COLUMNS + j] = T.cast(total[i, j], dtype)

    @T.macro
    def launch(parts, results, rank):  # type: ignore[no-untyped-def]
        with T.Kernel(T.ceildiv(columns, COLUMNS), rows // height, threads=THREADS) as (bx, by):
            on_rank(rank, list(zip(parts, results, strict=True)), lambda both: add(both, by, bx))

    return launch
