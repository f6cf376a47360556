"""Attention on Hopper whose softmax overlaps with matrix instructions.

Threads of their own copy keys and values through TMA. Each group of 128 computing threads issues the product
of the queries and the keys of the next tile together with that of the weights and the values of the current
tile. While the second one runs, the softmax of the next tile is computed. With `turns`, the groups issue their
products one after the other, so that the softmax of one group also overlaps with the products of the others.
"""

from typing import Any

from ._attention_tiles import AttentionTiles
from ._online_softmax import online_softmax

GROUP = 128  # threads that issue a wgmma together, and those that copy
REGISTERS = {1: 240, 2: 240, 3: 160}  # of a computing thread by number of groups; copying threads keep 24
FIRST_TURN = 8  # named barriers of the turns; TileLang takes the first ones


def overlapped_attention(tiles: AttentionTiles, num_stages: int, threads: int, turns: bool, stay: int) -> Any:
    """A macro `attention(Q, K, V, sink, length, O, LSE, grid, place)`: the whole kernel.

    Args:
        tiles: the tiles of a block; it has 64 queries for each group.
        num_stages: tiles of keys, and of values, that are in shared memory together.
        threads: threads that compute.
        turns: whether their groups take turns.
        stay: blocks that stay and take one item of the grid after the other; 0: a block for each item.

    Returns:
        The macro. `sink`, `length` and `LSE` may be None. `place(i0, i1, i2)` is a function that turns a
        position in the `grid` into the first query, the head, its head of keys and the item of the batch.
    """
    import tilelang.language as T  # noqa: N812

    block_m, block_n, groups = tiles.block_m, tiles.block_n, threads // GROUP
    width, dtype, policy = tiles.width, tiles.dtype, T.GemmWarpPolicy.FullRow
    begin, look, finish = tiles.macros()
    update = online_softmax(block_m, block_n, tiles.scale)

    def slot(tile: Any) -> Any:
        return tile % num_stages

    def phase(tile: Any) -> Any:
        return tile // num_stages % 2

    @T.macro
    def load(source: T.Buffer, target: T.Buffer, full: T.Buffer, free: T.Buffer, tile: Any, place: Any, key: Any):  # type: ignore[no-untyped-def]  # noqa: E501
        T.mbarrier_wait_parity(free[slot(tile)], 1 - phase(tile))
        T.tma_copy(
            source[place[3], key : key + block_n, place[2], 0:width],
            target[slot(tile), :, :],
            barrier=full[slot(tile)],
            leader_scope_threads=32,
        )
        if T.shuffle_elect(32):
            T.mbarrier_arrive(full[slot(tile)])

    @T.macro
    def attention(Q, K, V, sink, length, O, LSE, grid, place):  # type: ignore[no-untyped-def]  # noqa: E741, N803
        with T.Kernel(*((stay,) if stay else grid), threads=threads + GROUP) as block:
            q_tile = T.alloc_shared((block_m, width), dtype)
            k_tile = T.alloc_shared((num_stages, block_n, width), dtype)
            v_tile = T.alloc_shared((num_stages, block_n, width), dtype)
            scores = T.alloc_fragment((block_m, block_n), "float32")
            weights = T.alloc_fragment((block_m, block_n), dtype)
            o_sum = T.alloc_fragment((block_m, width), "float32")
            row_max = T.alloc_fragment((block_m,), "float32")
            old_max = T.alloc_fragment((block_m,), "float32")
            rescale = T.alloc_fragment((block_m,), "float32")
            tile_sum = T.alloc_fragment((block_m,), "float32")
            row_sum = T.alloc_fragment((block_m,), "float32")
            q_full = T.alloc_barrier(1)
            k_full, v_full = T.alloc_barrier([1] * num_stages), T.alloc_barrier([1] * num_stages)
            k_free, v_free = T.alloc_barrier([threads] * num_stages), T.alloc_barrier([threads] * num_stages)
            thread = T.get_thread_binding()
            row, head, key_head, item = place(*block)
            end = Q.shape[1] if length is None else length[item]
            first, count = tiles.first(row), tiles.count(row, end)

            # not T.ws, between whose branches TileLang 0.1.15 synchronises all threads
            if thread < GROUP:
                T.dec_max_nreg(24)
                if thread < 32:
                    T.tma_copy(
                        Q[item, row : row + block_m, head, 0:width], q_tile, barrier=q_full, leader_scope_threads=32
                    )
                    if T.shuffle_elect(32):
                        T.mbarrier_arrive(q_full)
                    for step in T.serial(count):
                        load(K, k_tile, k_full, k_free, step, (row, head, key_head, item), (first + step) * block_n)
                        load(V, v_tile, v_full, v_free, step, (row, head, key_head, item), (first + step) * block_n)
            else:
                T.inc_max_nreg(REGISTERS[groups])
                begin(o_sum, row_max, row_sum, sink, head)
                T.mbarrier_wait_parity(q_full, 0)
                T.mbarrier_wait_parity(k_full[0], 0)
                T.wgmma_gemm(q_tile, k_tile[0, :, :], scores, transpose_B=True, policy=policy, clear_accum=True)
                T.wait_wgmma(0)
                T.mbarrier_arrive(k_free[0])
                look(scores, row, first, end)
                update(scores, row_max, old_max, rescale, tile_sum, row_sum)
                T.copy(scores, weights)
                if turns:  # the last group gives the first one its turn
                    if thread >= groups * GROUP:
                        T.named_barrier_arrive(FIRST_TURN, 2 * GROUP)
                for step in T.serial(count - 1):
                    T.mbarrier_wait_parity(k_full[slot(step + 1)], phase(step + 1))
                    if turns:
                        T.sync_threads(FIRST_TURN - 1 + thread // GROUP, 2 * GROUP)
                    T.wgmma_gemm(
                        q_tile, k_tile[slot(step + 1), :, :], scores, transpose_B=True, policy=policy, clear_accum=True
                    )
                    T.mbarrier_wait_parity(v_full[slot(step)], phase(step))
                    T.wgmma_gemm(weights, v_tile[slot(step), :, :], o_sum, policy=policy)
                    if turns:
                        T.named_barrier_arrive(FIRST_TURN + thread // GROUP % groups, 2 * GROUP)
                    T.wait_wgmma(1)
                    T.mbarrier_arrive(k_free[slot(step + 1)])
                    look(scores, row, first + step + 1, end)
                    update(scores, row_max, old_max, rescale, tile_sum, row_sum)
                    T.wait_wgmma(0)
                    T.mbarrier_arrive(v_free[slot(step)])
                    T.copy(scores, weights)
                    for i, j in T.Parallel(block_m, width):
                        o_sum[i, j] *= rescale[i]
                T.mbarrier_wait_parity(v_full[slot(count - 1)], phase(count - 1))
                T.wgmma_gemm(weights, v_tile[slot(count - 1), :, :], o_sum, policy=policy)
                T.wait_wgmma(0)
                if turns:
                    if thread < 2 * GROUP:
                        T.sync_threads(FIRST_TURN, 2 * GROUP)
                finish(o_sum, row_max, row_sum, row, end, LSE, item, head)
                T.copy(o_sum, q_tile)
                T.copy(q_tile, O[item, row : row + block_m, head, 0:width])

    return attention
