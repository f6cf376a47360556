"""Sums of products whose scales change along k, for tiles with explicit pipelines.

The matrix unit sums one iteration. Its sum is then multiplied by the scales of that iteration and added to
the tile's sums, by the ordinary units. Two such sums have registers of their own, so that the matrix unit
computes the next iteration meanwhile.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._scheduled_tiles import Stages

CHAIN = 8


@dataclass(frozen=True)
class ScaledProduct:
    """Registers of one iteration.

    Attributes:
        product: sums of the matrix unit, as many as the tile has.
        rows: a scale for each row of the tile.
        columns: one scale for all columns of the tile.
    """

    product: Any
    rows: Any
    columns: Any


def promoting_consumer(
    read_scales: Callable[[Any, Any, Any, ScaledProduct], Any],
    depths: int,
    registers: int,
    works: Callable[[Any], Any] | None = None,
) -> Callable[[Callable[[Any, Any, Any, Any], Any], Any, Stages], Any]:
    """What computing threads do with a tile, for `scheduled_tiles`.

    The sums in its buffers are those of the tile, followed by two `ScaledProduct`s.

    Args:
        read_scales: a macro `(tensors, place, iteration, into)` that loads the scales of an iteration of a
            tile into the registers of `into`.
        depths: iterations of a tile.
        registers: of a thread for the sums of one product.
        works: whether a place has work for this thread's warpgroup; None: every place has.
    """
    import tilelang.language as T  # noqa: N812

    def consumer(multiply: Callable[[Any, Any, Any, Any], Any], store: Any, stages: Stages) -> Any:
        @T.macro
        def begin(tensors, buffers, barriers, place, done, step, into):  # type: ignore[no-untyped-def]
            a_tile, b_tile, _ = buffers
            at = stages.slot(done + step)
            read_scales(tensors, place, step, into)
            stages.wait_full(barriers[0], done + step)
            multiply(a_tile[at, :, :], b_tile[at, :, :], into.product, True)

        @T.macro
        def end(buffers, barriers, iteration, since, ready):  # type: ignore[no-untyped-def]
            c_sum = buffers[2][0]
            T.wait_wgmma(since)  # products that were begun after this one
            stages.release(barriers[1], iteration)
            # a fence, or the compiler may read the sums before it has waited for them
            T.warpgroup_fence_operand(ready.product, num_regs=registers)
            for i, j in T.Parallel(*c_sum.shape):
                c_sum[i, j] += ready.product[i, j] * (ready.rows[i] * ready.columns[0])

        def chain(
            tensors: Any, buffers: Any, barriers: Any, place: Any, done: Any, first: Any, count: int
        ) -> None:
            # a plain function, so that the number of an iteration is a constant
            products = buffers[2][1:]
            for step in range(count):
                begin(tensors, buffers, barriers, place, done, first + step, products[step % 2])
                if step:
                    end(buffers, barriers, done + first + step - 1, 1, products[1 - step % 2])
            if count:
                end(buffers, barriers, done + first + count - 1, 0, products[1 - count % 2])

        def rest(barriers: Any, done: Any, first: Any, count: int) -> None:
            for step in range(count):
                stages.wait_full(barriers[0], done + first + step)
                stages.release(barriers[1], done + first + step)

        @T.macro
        def work(tensors, buffers, barriers, place, done, first, count):  # type: ignore[no-untyped-def]
            if works is None:
                chain(tensors, buffers, barriers, place, done, first, count)
            elif works(place):
                chain(tensors, buffers, barriers, place, done, first, count)
            else:
                rest(barriers, done, first, count)

        @T.macro
        def consume(tensors, buffers, barriers, place, _, done, target):  # type: ignore[no-untyped-def]
            c_sum = buffers[2][0]
            T.clear(c_sum)
            for turn in T.serial(depths // CHAIN):
                work(tensors, buffers, barriers, place, done, turn * CHAIN, CHAIN)
            work(tensors, buffers, barriers, place, done, depths // CHAIN * CHAIN, depths % CHAIN)
            store(tensors, place, target, c_sum)

        return consume

    return consumer
