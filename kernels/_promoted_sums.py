"""Sums of products whose scales change along k, for tiles with explicit pipelines.

The matrix unit sums one iteration. Its sum is then multiplied by the scales of that iteration and added to
the tile's sums, by the ordinary units, while another warpgroup has the matrix unit.

Rows of A have scales that lie far apart in memory. So a lane loads those of four iterations at once, of one
of 16 rows of its warp, and gives them to the lanes that need them. They are loaded a chain of iterations
ahead, so that nobody waits for them.

On an H200 (m=n=4096, k=7168) this takes 193.1 us. Also measured: turns of the warpgroups by barriers 193.8;
two products of a warpgroup under way at once 196.8, and 202.4 with loads for each iteration and row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._scheduled_tiles import GROUP, Consumer, Stages, everywhere

# iterations whose scales are loaded together, by two groups of lanes
CHAIN = 8
TOGETHER = 4  # iterations whose scales a lane loads


@dataclass(frozen=True)
class Registers:
    """Registers of a computing thread for a tile.

    Attributes:
        c_sum: sums of the tile.
        product: as many sums of the matrix unit.
        scales: of the row and the iterations that the lane has loaded.
        later, others: of the next chain: of the row, and of the columns.
        factors: of the two rows that the thread has sums of.
    """

    c_sum: Any
    product: Any
    scales: Any
    later: Any
    others: Any
    factors: Any


def promotion_registers(c_sum: Any) -> Registers:
    """Registers of a tile with these sums."""
    import tilelang.language as T  # noqa: N812

    product = T.alloc_fragment(c_sum.shape, "float32")
    scales, later, others = (T.alloc_local((TOGETHER,), "float32") for _ in range(3))
    return Registers(c_sum, product, scales, later, others, T.alloc_local((2,), "float32"))


def promoting_consumer(
    scale_of_row: Callable[[Any, Any, Any, Any], Any],
    scale_of_columns: Callable[[Any, Any, Any], Any],
    depths: int,
    registers: int,
    works: Callable[[Any], Any] = everywhere,
) -> Consumer:
    """What computing threads do with a tile, for `scheduled_tiles`.

    Its sums are `Registers`. A warpgroup has 64 rows of the tile, and all columns.

    Args:
        scale_of_row: of `(tensors, place, row, iteration)`: the scale of a row of the tile.
        scale_of_columns: of `(tensors, place, iteration)`: the one scale of all columns of the tile.
        depths: iterations of a tile.
        registers: of a thread for the sums of one product.
        works: whether a place has work for this thread's warpgroup. Others wait for stages and report them.
    """
    import tilelang.language as T  # noqa: N812

    is_whole = depths % TOGETHER == 0  # so that loads of neighbours are aligned

    @T.macro
    def fetch(tensors, place, first, scales, others):  # type: ignore[no-untyped-def]
        thread = T.get_thread_binding() - GROUP
        lane = thread % 32
        row = thread // 32 * 16 + lane // 4 + lane % 2 * 8
        begin = first + lane % 4 // 2 * TOGETHER
        if is_whole:
            for v in T.vectorized(TOGETHER):
                scales[v] = scale_of_row(tensors, place, row, T.min(begin, depths - TOGETHER) + v)
        else:
            for v in T.unroll(TOGETHER):
                scales[v] = scale_of_row(tensors, place, row, T.min(begin + v, depths - 1))
        for v in T.unroll(TOGETHER):
            others[v] = scale_of_columns(tensors, place, T.min(begin + v, depths - 1))

    @T.macro
    def combine(own):  # type: ignore[no-untyped-def]
        for v in T.unroll(TOGETHER):
            own.scales[v] = own.later[v] * own.others[v]

    def consumer(multiply: Callable[[Any, Any, Any, Any], Any], store: Any, stages: Stages) -> Any:
        @T.macro
        def begin(buffers, barriers, iteration):  # type: ignore[no-untyped-def]
            a_tile, b_tile, own = buffers
            at = stages.slot(iteration)
            stages.wait_full(barriers[0], iteration)
            multiply(a_tile[at, :, :], b_tile[at, :, :], own.product, True)

        @T.macro
        def end(buffers, barriers, iteration, step):  # type: ignore[no-untyped-def]
            own = buffers[2]
            source = T.get_thread_binding() % 32 // 4 * 4 + step // TOGETHER * 2
            for i in T.unroll(2):
                own.factors[i] = T.shfl_sync(own.scales[step % TOGETHER], source + i)
            T.wait_wgmma(0)
            stages.release(barriers[1], iteration)
            # a fence, or the compiler may read the sums before it has waited for them
            T.warpgroup_fence_operand(own.product, num_regs=registers)
            for i, j in T.Parallel(*own.c_sum.shape):
                # not an index, which TileLang would have spread over threads
                factor = T.if_then_else(i % 16 < 8, own.factors[0], own.factors[1])
                own.c_sum[i, j] += own.product[i, j] * factor

        def chain(
            tensors: Any, buffers: Any, barriers: Any, place: Any, done: Any, first: Any, count: int
        ) -> None:
            # a plain function, so that the number of an iteration is a constant
            own, iteration = buffers[2], done + first
            for step in range(count):
                begin(buffers, barriers, iteration + step)
                if step == 0 and count == CHAIN:  # they arrive before this chain ends
                    fetch(tensors, place, first + CHAIN, own.later, own.others)
                end(buffers, barriers, iteration + step, step)
            if count == CHAIN:
                combine(own)

        @T.macro
        def rest(barriers, first, count):  # type: ignore[no-untyped-def]
            for step in T.unroll(count):
                stages.wait_full(barriers[0], first + step)
                # a lane that still waits when the stage is full again would wait for ever
                T.sync_warp()
                stages.release(barriers[1], first + step)

        @T.macro
        def work(tensors, buffers, barriers, place, done, first, count):  # type: ignore[no-untyped-def]
            if works(place):
                chain(tensors, buffers, barriers, place, done, first, count)
            else:
                rest(barriers, done + first, count)

        @T.macro
        def consume(tensors, buffers, barriers, place, _, done, target):  # type: ignore[no-untyped-def]
            own, chains = buffers[2], depths // CHAIN
            T.clear(own.c_sum)
            fetch(tensors, place, 0, own.later, own.others)
            combine(own)
            for turn in T.serial(chains):
                work(tensors, buffers, barriers, place, done, turn * CHAIN, CHAIN)
            if depths % CHAIN:
                work(tensors, buffers, barriers, place, done, chains * CHAIN, depths % CHAIN)
            store(tensors, place, target, own.c_sum)

        return consume

    return consumer
