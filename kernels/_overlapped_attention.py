"""Attention on Hopper whose softmax overlaps with matrix instructions.

Threads of their own copy keys and values through TMA. Each group of 128 computing threads issues the product
of the queries and the keys of the next tile together with that of the weights and the values of the current
tile. While the second one runs, the softmax of the next tile is computed. With `turns`, the groups issue
their products one after the other, so that the softmax of one group also overlaps with products of others.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from ._attention_tiles import AttentionTiles
from ._online_softmax import online_softmax
from ._scheduled_tiles import GROUP, Stages

# of a computing thread by number of groups; copying threads keep 24. Two blocks of one group fit a core
REGISTERS = {1: 232, 2: 240, 3: 160}
WIDE = 192  # columns of the widest wgmma that compiles with half the registers of a core for a block
FIRST_TURN = 8  # named barriers of the turns; TileLang takes the first ones


@dataclass(frozen=True)
class Others:
    """Blocks of a kernel whose blocks stay that compute no attention.

    Attributes:
        blocks: their number. They are the first ones.
        act: a macro `(block)` for all threads: what such a block does, nothing of other blocks.
    """

    blocks: int
    act: Callable[[Any], Any]


def overlapped_attention(
    tiles: AttentionTiles,
    num_stages: int,
    threads: int,
    turns: bool,
    stay: int,
    others: Others | None = None,
) -> Any:
    """A macro `attention(tensors, grid, place)`: the whole kernel.

    Args:
        tiles: the tiles of a block, which has 64 queries for each group.
        num_stages: tiles of keys, and of values, that are in shared memory together.
        threads: threads that compute.
        turns: whether their groups take turns.
        stay: blocks that stay and take one position of the grid after the other; 0: a block for each.
        others: further blocks, beside those that stay.

    Returns:
        The macro. `sink`, `length` and `LSE` may be None. `place(tensors, i0, i1, i2)` is a function or macro
        that turns a position in the `grid` into what `AttentionTiles` calls `where`.
    """
    import tilelang.language as T  # noqa: N812

    block_m, block_n, groups = tiles.block_m, tiles.block_n, threads // GROUP
    width, dtype, policy = tiles.width, tiles.dtype, T.GemmWarpPolicy.FullRow
    begin, look, finish = tiles.macros()
    write = tiles.writer()
    update = online_softmax(block_m, block_n, tiles.scale, from_finite=tiles.from_finite)

    stages = Stages(num_stages, pair=False)
    first_worker = others.blocks if others else 0

    def worker(block: Any) -> Any:
        """Of the blocks that stay, the number of this one; the model evaluates it for others, too."""
        return T.max(block - first_worker, 0) if others else block

    def turns_of(block: Any, positions: Any) -> Any:
        return T.if_then_else(block < first_worker, 0, positions) if others else positions

    # tiles of keys and values are counted over all positions of a block: `done` came before this one

    @T.macro
    def load(source, target, full, free, tile, where, key):  # type: ignore[no-untyped-def]
        T.mbarrier_wait_parity(free[stages.slot(tile)], 1 - stages.phase(tile))
        tiles.read(
            source,
            where,
            key,
            lambda rows: T.tma_copy(
                rows,
                target[stages.slot(tile), :, :],
                barrier=full[stages.slot(tile)],
                leader_scope_threads=32,
            ),
        )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(full[stages.slot(tile)])

    @T.macro
    def produce(tensors, shared, where, turn, done):  # type: ignore[no-untyped-def]
        q_tile, k_tile, v_tile, _, q_full, q_free, k_full, k_free, v_full, v_free = shared
        row, _, _, _, length = where
        if stay:
            T.mbarrier_wait_parity(q_free, 1 - turn % 2)
        T.tma_copy(
            tiles.queries(tensors["Q"], where),
            q_tile,
            barrier=q_full,
            leader_scope_threads=32,
        )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(q_full)
        for step in T.serial(tiles.count(row, length)):
            key = (tiles.first(row) + step) * block_n
            load(tensors["K"], k_tile, k_full, k_free, done + step, where, key)
            load(tensors["V"], v_tile, v_full, v_free, done + step, where, key)

    @T.macro
    def consume(tensors, shared, where, turn, done):  # type: ignore[no-untyped-def]
        q_tile, k_tile, v_tile, o_tile, q_full, q_free, k_full, k_free, v_full, v_free = shared
        row, head, _, item, length = where
        scores = T.alloc_fragment((block_m, block_n), "float32")
        weights = T.alloc_fragment((block_m, block_n), dtype)
        o_sum = T.alloc_fragment((block_m, width), "float32")
        row_max = T.alloc_fragment((block_m,), "float32")
        old_max = T.alloc_fragment((block_m,), "float32")
        rescale = T.alloc_fragment((block_m,), "float32")
        tile_sum = T.alloc_fragment((block_m,), "float32")
        row_sum = T.alloc_fragment((block_m,), "float32")
        thread = T.get_thread_binding()
        first, count = tiles.first(row), tiles.count(row, length)

        begin(o_sum, row_max, row_sum, tensors["sink"], head)
        T.mbarrier_wait_parity(q_full, turn % 2)
        stages.wait_full(k_full, done)
        T.wgmma_gemm(
            q_tile, k_tile[stages.slot(done), :, :], scores, transpose_B=True, policy=policy, clear_accum=True
        )
        T.wait_wgmma(0)
        stages.release(k_free, done)
        look(scores, row, first, length)
        update(scores, row_max, old_max, rescale, tile_sum, row_sum)
        T.copy(scores, weights)
        for step in T.serial(count - 1):
            now, then = done + step, done + step + 1
            stages.wait_full(k_full, then)
            if turns:
                T.sync_threads(FIRST_TURN - 1 + thread // GROUP, 2 * GROUP)
            T.wgmma_gemm(
                q_tile,
                k_tile[stages.slot(then), :, :],
                scores,
                transpose_B=True,
                policy=policy,
                clear_accum=True,
            )
            stages.wait_full(v_full, now)
            T.wgmma_gemm(weights, v_tile[stages.slot(now), :, :], o_sum, policy=policy)
            if turns:
                T.named_barrier_arrive(FIRST_TURN + thread // GROUP % groups, 2 * GROUP)
            T.wait_wgmma(1)  # the scores
            stages.release(k_free, then)
            look(scores, row, first + step + 1, length)
            update(scores, row_max, old_max, rescale, tile_sum, row_sum)
            T.wait_wgmma(0)
            stages.release(v_free, now)
            T.copy(scores, weights)
            for i, j in T.Parallel(block_m, width):
                o_sum[i, j] *= rescale[i]
        if stay:
            stages.release(q_free, 0)
        last = done + count - 1
        stages.wait_full(v_full, last)
        T.wgmma_gemm(weights, v_tile[stages.slot(last), :, :], o_sum, policy=policy)
        T.wait_wgmma(0)
        if stay:
            stages.release(v_free, last)
        finish(o_sum, row_max, row_sum, row, length, tensors["LSE"], item, head)
        T.copy(o_sum, o_tile)
        write(o_tile, tensors["O"], where)

    @T.macro
    def visit(role, tensors, shared, block, grid, place):  # type: ignore[no-untyped-def]
        if stay:
            positions, done = math.prod(grid), T.alloc_var("int32", init=0)
            # to and fro: the block with the longest position of a turn has the shortest one of the next turn
            last = worker(block) + positions // stay % 2 * (stay - 1 - 2 * worker(block))
            for turn in T.serial(turns_of(block, T.ceildiv(positions - last, stay))):
                index = turn * stay + worker(block) + turn % 2 * (stay - 1 - 2 * worker(block))
                column, rest = index % grid[0], index // grid[0]
                where = place(tensors, column, rest % grid[1], rest // grid[1])
                role(tensors, shared, where, turn, done)
                done += tiles.count(where[0], where[4])
        else:
            role(tensors, shared, place(tensors, *block), 0, 0)

    @T.macro
    def attention(tensors, grid, place):  # type: ignore[no-untyped-def]
        with T.Kernel(*((first_worker + stay,) if stay else grid), threads=threads + GROUP) as block:
            q_tile = T.alloc_shared((block_m, width), dtype)
            k_tile = T.alloc_shared((num_stages, block_n, width), dtype)
            v_tile = T.alloc_shared((num_stages, block_n, width), dtype)
            # a block that stays loads the next queries before it has written the output
            o_tile = T.alloc_shared((block_m, width), dtype) if stay else q_tile
            q_full, q_free = T.alloc_barrier(1), T.alloc_barrier(threads // 32)
            k_full, k_free = T.alloc_barrier([1] * num_stages), T.alloc_barrier([threads // 32] * num_stages)
            v_full, v_free = T.alloc_barrier([1] * num_stages), T.alloc_barrier([threads // 32] * num_stages)
            shared = (q_tile, k_tile, v_tile, o_tile, q_full, q_free, k_full, k_free, v_full, v_free)
            thread = T.get_thread_binding()
            if others is not None:
                others.act(block)
            if groups == 1 and max(block_n, width) <= WIDE:
                T.annotate_min_blocks_per_sm(2)
            # not T.ws, between whose branches TileLang 0.1.15 synchronises all threads
            if thread < GROUP:
                T.dec_max_nreg(24)
                if thread < 32:
                    visit(produce, tensors, shared, block, grid, place)
            else:
                T.inc_max_nreg(REGISTERS[groups])
                if turns:  # noqa: SIM102  # the last group gives the first one its turn
                    if thread >= groups * GROUP:
                        T.named_barrier_arrive(FIRST_TURN, 2 * GROUP)
                visit(consume, tensors, shared, block, grid, place)
                if turns:  # noqa: SIM102  # an arrival of the last group is left
                    if thread < 2 * GROUP:
                        T.sync_threads(FIRST_TURN, 2 * GROUP)

    return attention
