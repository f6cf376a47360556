"""Attention over latent vectors on Hopper, whose softmax overlaps with matrix instructions.

A block of 64 rows has three groups of 128 threads. The first one computes scores and weights. The others have
half of the columns of the output each: they add weighted values while the first one works on the next keys,
and copy keys through TMA as soon as their own products leave room for them.

Keys and values are the same tiles, in two stages. Weights replace the rotated part of the keys that they
belong to, since shared memory has no room for both, and that part is no value.
"""

from dataclasses import dataclass
from typing import Any

from ._online_softmax import online_softmax, scale_down
from ._split_kv import LOWEST

GROUP = 128  # threads that issue a wgmma together
ROWS = KEYS = 64  # of a block, and of a tile: rows of one wgmma, and columns of rotated keys
STAGES = 2
HALVES = (0, 1)  # of the columns of the output
LAZY = 8  # of `online_softmax`: sums of 128 registers a thread are seldom scaled down
WEIGHTS_BARRIER = 8  # named barrier of the first group; TileLang takes the first ones


@dataclass(frozen=True)
class LatentRoles:
    """What a block does.

    Attributes:
        dim: columns of values.
        dtype: of queries and keys.
        page: keys of a page, at least those of a tile; 0 if each item has one page, and no table.
        scale: factor of the scores times log2(e).
        pair: whether two blocks are a cluster, for which keys are read once.
    """

    dim: int
    dtype: str
    page: int
    scale: float
    pair: bool

    def macro(self, query: Any, hide: Any, write: Any, keep: Any) -> Any:
        """A macro `attention(tensors, where, begin, trips, last)`: the whole kernel.

        Args:
            query: `(tensors, where, row, column)`, an element of the queries, of a row of the block.
            hide: a macro `(tensors, where, scores, first)` that hides the keys that rows do not see; `first`
                is the tile's first key.
            write: a macro `(tensors, where, sums, first, columns)` that stores columns of the output.
            keep: a macro `(tensors, where, logarithms)` that stores those of the rows' sums of weights.

        Returns:
            The macro of tensors by name, a tuple that begins with the item, the block's first key, the number
            of its tiles, and the last page of the item that has keys.
        """
        import tilelang.language as T  # noqa: N812

        dim, dtype, page, scale, pair = self.dim, self.dtype, self.page, self.scale, self.pair
        half, policy = dim // len(HALVES), T.GemmWarpPolicy.FullRow
        update = online_softmax(ROWS, KEYS, scale, LAZY, from_finite=True)
        scale_sums = scale_down(ROWS, half)

        def slot(step: Any) -> Any:
            return step % STAGES

        def phase(step: Any) -> Any:
            return step // STAGES % 2

        def page_of(tensors: Any, where: Any, key: Any, last: Any) -> Any:
            return tensors["Table"][where[0], T.min(key // page, last)] if page else where[0]

        @T.macro
        def load(tensors, at, key, tile, full, place, first, columns):  # type: ignore[no-untyped-def]
            start = key % page if page else key
            T.tma_copy(
                tensors["KV"][at, start : start + KEYS, 0, first : first + columns],
                tile[place, :, :],
                barrier=full[place],
                leader_scope_threads=32,
                cluster_mask=3 if pair else None,
            )
            if T.shuffle_elect(32):
                T.mbarrier_arrive(full[place])

        @T.macro
        def fill(tensors, shared, at, key, step, part):  # type: ignore[no-untyped-def]
            _, keys, rotated, _, _, full, rotated_full, _, _, free = shared
            # free before they have been filled once; the second half also copies the rotated part
            T.mbarrier_wait_parity(free[part][slot(step)], 1 - phase(step))
            load(tensors, at, key, keys[part], full[part], slot(step), part * half, half)
            if part == HALVES[-1]:
                T.mbarrier_wait_parity(free[0][slot(step)], 1 - phase(step))
                load(tensors, at, key, rotated, rotated_full, slot(step), dim, KEYS)

        @T.macro
        def weights(tensors, shared, where, begin, trips):  # type: ignore[no-untyped-def]
            queries, keys, rotated, factors, inverse, full, rotated_full, ready, done, _ = shared
            scores = T.alloc_fragment((ROWS, KEYS), "float32")
            row_max = T.alloc_fragment((ROWS,), "float32")
            old_max = T.alloc_fragment((ROWS,), "float32")
            rescale = T.alloc_fragment((ROWS,), "float32")
            tile_sum = T.alloc_fragment((ROWS,), "float32")
            row_sum = T.alloc_fragment((ROWS,), "float32")
            for number, columns in [(0, half), (1, half), (2, KEYS)]:
                for i, j in T.Parallel(ROWS, columns):
                    queries[number][i, j] = query(tensors, where, i, number * half + j)
            T.fence_proxy_async()
            T.sync_threads(WEIGHTS_BARRIER, GROUP)
            T.fill(row_sum, 0)
            T.fill(row_max, LOWEST)
            for step in T.serial(trips):
                for part in HALVES:
                    T.mbarrier_wait_parity(full[part][slot(step)], phase(step))
                    T.wgmma_gemm(
                        queries[part], keys[part][slot(step), :, :], scores,
                        transpose_B=True, policy=policy, clear_accum=part == 0,
                    )  # fmt: skip
                T.mbarrier_wait_parity(rotated_full[slot(step)], phase(step))
                T.wgmma_gemm(queries[-1], rotated[slot(step), :, :], scores, transpose_B=True, policy=policy)
                T.wait_wgmma(0)
                hide(tensors, where, scores, begin + step * KEYS)
                update(scores, row_max, old_max, rescale, tile_sum, row_sum)
                T.sync_threads(WEIGHTS_BARRIER, GROUP)  # no warp reads the rotated keys any more
                T.copy(scores, rotated[slot(step), :, :])
                T.copy(rescale, factors[slot(step), :])
                T.fence_proxy_async()
                T.mbarrier_arrive(ready[slot(step)])
            for i in T.Parallel(ROWS):
                row_max[i] = row_max[i] * scale + T.log2(row_sum[i])
                inverse[i] = T.if_then_else(row_sum[i] > 0, 1 / row_sum[i], 0)
            T.mbarrier_arrive(done)
            keep(tensors, where, row_max)

        @T.macro
        def sums(tensors, shared, where, part, begin, trips, last):  # type: ignore[no-untyped-def]
            _, keys, rotated, factors, inverse, full, _, ready, done, free = shared
            o_sum = T.alloc_fragment((ROWS, half), "float32")
            rescale = T.alloc_fragment((ROWS,), "float32")
            at = T.alloc_var("int32")
            thread = T.get_thread_binding()
            copies = thread // 32 == (1 + part) * GROUP // 32
            if copies:
                for step in T.serial(T.min(trips, STAGES)):
                    key = begin + step * KEYS
                    fill(tensors, shared, page_of(tensors, where, key, last), key, step, part)
            T.fill(o_sum, 0)
            for step in T.serial(trips):
                key = begin + (step + STAGES) * KEYS
                at = page_of(tensors, where, key, last)  # long before it is needed
                T.mbarrier_wait_parity(full[part][slot(step)], phase(step))
                T.mbarrier_wait_parity(ready[slot(step)], phase(step))
                T.copy(factors[slot(step), :], rescale)
                scale_sums(o_sum, rescale)
                T.wgmma_gemm(rotated[slot(step), :, :], keys[part][slot(step), :, :], o_sum, policy=policy)
                T.wait_wgmma(0)
                if thread % 32 == 0:
                    if pair:
                        T.mbarrier_arrive(free[part][slot(step)], 0)
                        T.mbarrier_arrive(free[part][slot(step)], 1)
                    else:
                        T.mbarrier_arrive(free[part][slot(step)])
                if copies and step + STAGES < trips:
                    fill(tensors, shared, at, key, step + STAGES, part)
            T.mbarrier_wait_parity(done, 0)
            T.copy(inverse, rescale)
            for i, j in T.Parallel(ROWS, half):
                o_sum[i, j] *= rescale[i]
            write(tensors, where, o_sum, part * half, half)

        @T.macro
        def attention(tensors, where, begin, trips, last):  # type: ignore[no-untyped-def]
            queries = [T.alloc_shared((ROWS, columns), dtype) for columns in (half, half, KEYS)]
            keys = [T.alloc_shared((STAGES, KEYS, half), dtype) for _ in HALVES]
            rotated = T.alloc_shared((STAGES, KEYS, KEYS), dtype)
            factors = T.alloc_shared((STAGES, ROWS), "float32")
            inverse = T.alloc_shared((ROWS,), "float32")
            full = [T.alloc_barrier([1] * STAGES) for _ in HALVES]
            rotated_full = T.alloc_barrier([1] * STAGES)
            ready, done = T.alloc_barrier([GROUP] * STAGES), T.alloc_barrier(GROUP)
            warps = GROUP // 32
            if pair:
                free = [T.alloc_cluster_barrier([2 * warps] * STAGES) for _ in HALVES]
            else:
                free = [T.alloc_barrier([warps] * STAGES) for _ in HALVES]
            shared = (queries, keys, rotated, factors, inverse, full, rotated_full, ready, done, free)
            thread = T.get_thread_binding()
            # not T.ws, between whose branches TileLang 0.1.15 synchronises all threads
            if thread < GROUP:
                weights(tensors, shared, where, begin, trips)
            else:
                if thread < 2 * GROUP:
                    sums(tensors, shared, where, 0, begin, trips, last)
                else:
                    sums(tensors, shared, where, 1, begin, trips, last)
            if pair:  # no block leaves while the other one may report to it
                T.cluster_sync()

        return attention
