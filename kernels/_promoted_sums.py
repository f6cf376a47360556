"""Sums of products whose scales change along k, for tiles with explicit pipelines.

The matrix unit sums one iteration. Its sum is then multiplied by the scales of that iteration and added to
the tile's sums, by the ordinary units, while another warpgroup has the matrix unit. A tile of more columns
than one scale covers is multiplied in parts, one after the other, whose products take the same registers.

Rows of A have scales that lie far apart in memory. So a lane loads those of four iterations at once, of one
of 16 rows of its warp, and gives them to the lanes that need them. The scales of columns, one for each
iteration and part, are spread over the lanes, too. All are loaded a chain of iterations ahead, so that nobody
waits for them.

While the matrix unit is busy, products of 64 x 128 read 96 bytes of shared memory a cycle. Copies for tiles
of 128 x 128 write 64, those for tiles of 128 x 256 write 48. On an H200 (m=n=4096, k=7168) the former take
192.5 us, and the latter, in two parts, 175.0 us. Also measured, of 128 x 128: turns of the warpgroups by
barriers 193.8; two products of a warpgroup under way at once 196.8, and 202.4 with loads for each iteration
and row.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._scheduled_tiles import GROUP, Consumer, Stages, everywhere

# Iterations whose scales of a row a lane loads at once, for one part. Of two parts it loads those of half as
# many: otherwise the compiler spills registers.
TOGETHER = 4
LANES = 2  # that load the scales of a row, each of as many iterations


def iterations_at_once(parts: int) -> int:
    """Iterations whose scales of a row a lane loads at once, for a tile with these parts."""
    return TOGETHER // parts


def chain_length(parts: int) -> int:
    """Iterations whose scales are loaded before they begin, for a tile with these parts."""
    return LANES * iterations_at_once(parts)


@dataclass(frozen=True)
class Registers:
    """Registers of a computing thread for a tile.

    Attributes:
        parts: sums of the tile, of as many columns each as have one scale.
        product: sums of the matrix unit, of one part.
        rows: scales of the row and the iterations that the lane has loaded.
        columns: the scale of one iteration of the chain and one part.
        later_rows, later_columns: the same of the next chain.
        of_rows: scales of the two rows that the thread has sums of.
        factors: what sums of these rows are multiplied by.
    """

    parts: tuple[Any, ...]
    product: Any
    rows: Any
    columns: Any
    later_rows: Any
    later_columns: Any
    of_rows: Any
    factors: Any


def promotion_registers(parts: int, shape: tuple[int, int]) -> Registers:
    """Registers of a tile with parts of this shape."""
    import tilelang.language as T  # noqa: N812

    *sums, product = (T.alloc_fragment(shape, "float32") for _ in range(parts + 1))
    together = iterations_at_once(parts)
    sizes = (together, 1, together, 1, 2, 2)
    return Registers(tuple(sums), product, *(T.alloc_local((size,), "float32") for size in sizes))


def promoting_consumer(
    scale_of_row: Callable[[Any, Any, Any, Any], Any],
    scale_of_columns: Callable[[Any, Any, Any, Any], Any],
    depths: int,
    parts: int,
    registers: int,
    works: Callable[[Any], Any] = everywhere,
) -> Consumer:
    """What computing threads do with a tile, for `scheduled_tiles`.

    Its sums are `Registers`. A warpgroup has 64 rows of the tile, and all columns.

    Args:
        scale_of_row: of `(tensors, place, row, iteration)`: the scale of a row of the tile.
        scale_of_columns: of `(tensors, place, part, iteration)`: the one scale of all columns of a part.
        depths: iterations of a tile.
        parts: of the columns of a tile, one or two.
        registers: of a thread for the product of one part.
        works: whether a place has work for this thread's warpgroup. Others wait for stages and report them.

    Returns:
        The consumer. What stores a tile gets the sums of its parts, or the sums if there is one part.
    """
    import tilelang.language as T  # noqa: N812

    together, chain = iterations_at_once(parts), chain_length(parts)
    is_whole = depths % together == 0  # so that loads of neighbours are aligned

    @T.macro
    def fetch(tensors, place, first, rows, columns):  # type: ignore[no-untyped-def]
        thread = T.get_thread_binding() - GROUP
        lane = thread % 32
        row = thread // 32 * 16 + lane // 4 + lane % 2 * 8
        begin = first + lane % 4 // 2 * together
        if is_whole:
            for v in T.vectorized(together):
                rows[v] = scale_of_row(tensors, place, row, T.min(begin, depths - together) + v)
        else:
            for v in T.unroll(together):
                rows[v] = scale_of_row(tensors, place, row, T.min(begin + v, depths - 1))
        of_chain = T.min(first + lane % chain, depths - 1)
        columns[0] = scale_of_columns(tensors, place, lane // chain % parts, of_chain)

    @T.macro
    def advance(own):  # type: ignore[no-untyped-def]
        for v in T.unroll(together):
            own.rows[v] = own.later_rows[v]
        own.columns[0] = own.later_columns[0]

    def consumer(multiply: Callable[[Any, Any, Any, Any], Any], store: Any, stages: Stages) -> Any:
        @T.macro
        def begin(buffers, barriers, iteration, part):  # type: ignore[no-untyped-def]
            a_tile, b_tile, own = buffers
            at, cols = stages.slot(iteration), own.product.shape[1]
            if part == 0:
                stages.wait_full(barriers[0], iteration)
            multiply(a_tile[at, :, :], b_tile[at, part * cols : (part + 1) * cols, :], own.product, True)

        @T.macro
        def end(buffers, barriers, iteration, step, part):  # type: ignore[no-untyped-def]
            own, column = buffers[2], T.alloc_local((1,), "float32")
            if part == 0:
                source = T.get_thread_binding() % 32 // 4 * 4 + step // together * 2
                for i in T.unroll(2):
                    own.of_rows[i] = T.shfl_sync(own.rows[step % together], source + i)
            column[0] = T.shfl_sync(own.columns[0], part * chain + step)
            for i in T.unroll(2):
                own.factors[i] = own.of_rows[i] * column[0]
            T.wait_wgmma(0)
            if part == parts - 1:
                stages.release(barriers[1], iteration)
            # a fence, or the compiler may read the sums before it has waited for them
            T.warpgroup_fence_operand(own.product, num_regs=registers)
            for i, j in T.Parallel(*own.product.shape):
                # not an index, which TileLang would have spread over threads
                factor = T.if_then_else(i % 16 < 8, own.factors[0], own.factors[1])
                own.parts[part][i, j] += own.product[i, j] * factor

        def run_chain(
            tensors: Any, buffers: Any, barriers: Any, place: Any, done: Any, first: Any, count: int
        ) -> None:
            # a plain function, so that the numbers of an iteration and a part are constants
            own, iteration = buffers[2], done + first
            for step in range(count):
                for part in range(parts):
                    begin(buffers, barriers, iteration + step, part)
                    if step == part == 0 and count == chain:  # they arrive before this chain ends
                        fetch(tensors, place, first + chain, own.later_rows, own.later_columns)
                    end(buffers, barriers, iteration + step, step, part)
            if count == chain:
                advance(own)

        @T.macro
        def clear(sums):  # type: ignore[no-untyped-def]
            T.clear(sums)

        def clear_all(own: Registers) -> None:
            for sums in own.parts:
                clear(sums)

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
                run_chain(tensors, buffers, barriers, place, done, first, count)
            else:
                rest(barriers, done + first, count)

        @T.macro
        def consume(tensors, buffers, barriers, place, _, done, target):  # type: ignore[no-untyped-def]
            own, chains = buffers[2], depths // chain
            clear_all(own)
            fetch(tensors, place, 0, own.rows, own.columns)
            for turn in T.serial(chains):
                work(tensors, buffers, barriers, place, done, turn * chain, chain)
            if depths % chain:
                work(tensors, buffers, barriers, place, done, chains * chain, depths % chain)
            store(tensors, place, target, own.parts if parts > 1 else own.parts[0])

        return consume

    return consumer
