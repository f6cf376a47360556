"""Attention over latent vectors on Hopper, whose softmax overlaps with matrix instructions.

A block of 64 rows has three groups of 128 threads. The first one computes scores and weights. The others have
half of the columns of the output each: they add weighted values while the first one works on the next keys,
and copy keys as soon as their own products leave room for them: through TMA, or row by row where queries
have keys of their own.

Keys and values are the same tiles. Shared memory has room for two of them and a half, since the first half
of the queries is in registers. So the product of that half with the next keys runs while the softmax of a
tile is computed. Weights replace the rotated part of the keys that they belong to, which is no value.
"""

from dataclasses import dataclass
from typing import Any

from ._online_softmax import scale_down
from ._scheduled_tiles import GROUP, Stages
from ._split_kv import LOWEST

CHUNK = 8  # elements that a thread copies at once
LANE_ROWS = 16  # of a tile, which each of 4 warps copies
ROWS = KEYS = 64  # of a block, and of a tile: rows of one wgmma, and columns of rotated keys
HALVES = (0, 1)  # of the columns of the output
STAGES = (3, 2)  # tiles of each half that are in shared memory together
ROTATED_STAGES = 2
# rows keep their largest score while weights are at most 2 to this power: sums of 128 registers a thread are
# seldom scaled down
LAZY = 8
WEIGHTS_BARRIER = 8  # named barrier of the first group; TileLang takes the first ones


@dataclass(frozen=True)
class LatentRoles:
    """What a block does.

    Attributes:
        dim: columns of values.
        dtype: of queries and keys.
        page: keys of a page, at least those of a tile unless `selected`; 0 if each item has one page, and no
            table.
        scale: factor of the scores times log2(e).
        pair: whether two blocks are a cluster, for which keys are read once.
        selected: whether queries have keys of their own, which threads copy row by row.
        rotated_first: the first rotated column in the tensors QRope and KRope, which may have all columns.
    """

    dim: int
    dtype: str
    page: int
    scale: float
    pair: bool
    selected: bool
    rotated_first: int

    def macro(self, query: Any, key: Any, hide: Any, write: Any, keep: Any) -> Any:
        """A macro `attention(tensors, where, begin, trips, last)`: the whole kernel.

        Args:
            query: `(tensor, where, row, column)`, an element of Q or QRope, of a row of the block.
            key: `(tensors, where, position)`, the key at a position among those of the queries.
            hide: a macro `(tensors, where, scores, first)` that hides the keys that rows do not see; `first`
                is the tile's first key.
            write: a macro `(tensors, where, sums, first, columns)` that stores columns of the output.
            keep: a macro `(tensors, where, logarithms)` that stores those of the rows' sums of weights.

        Returns:
            The macro of tensors by name, a tuple that begins with the item, the block's first key, the number
            of its tiles, and the last page of the item that has keys.
        """
        import tilelang.language as T  # noqa: N812

        key_of, selected, rotated_first = key, self.selected, self.rotated_first

        dim, dtype, page, scale, pair = self.dim, self.dtype, self.page, self.scale, self.pair
        warps, half, policy = GROUP // 32, dim // len(HALVES), T.GemmWarpPolicy.FullRow
        keys_of = [slice(part * KEYS // 2, (part + 1) * KEYS // 2) for part in HALVES]
        scale_sums, rings = scale_down(ROWS, half), [Stages(number, pair) for number in STAGES]

        def slot(step: Any, part: int = 1) -> Any:  # of rotated keys as of the second half
            return rings[part].slot(step)

        def phase(step: Any, part: int = 1) -> Any:
            return rings[part].phase(step)

        def page_of(tensors: Any, where: Any, key: Any, last: Any) -> Any:
            return tensors["Table"][where[0], T.min(key // page, last)] if page else where[0]

        # the place of a selected key is its row in a pool of pages, or else in its item
        def place_of(tensors: Any, where: Any, key: Any) -> Any:
            return tensors["Table"][where[0], key // page] * page + key % page if page else key

        def element(pool: Any, item: Any, place: Any, column: Any) -> Any:
            at, row = (place // page, place % page) if page else (item, place)
            return pool[at, row, 0, column]

        @T.macro
        def load(pool, at, key, tile, full, place, first, columns):  # type: ignore[no-untyped-def]
            start = key % page if page else key
            T.tma_copy(
                pool[at, start : start + KEYS, 0, first : first + columns],
                tile[place, :, :],
                barrier=full[place],
                leader_scope_threads=32,
                cluster_mask=3 if pair else None,
            )
            if T.shuffle_elect(32):
                T.mbarrier_arrive(full[place])

        @T.macro
        def wait_full(full, place, parity):  # type: ignore[no-untyped-def]
            T.mbarrier_wait_parity(full[place], parity)
            if selected:  # threads wrote it, and a wgmma reads it
                T.fence_proxy_async()

        @T.macro
        def report(barrier, place):  # type: ignore[no-untyped-def]
            T.sync_warp()
            if T.get_thread_binding() % 32 == 0:
                T.mbarrier_arrive(barrier[place])

        @T.macro
        def fill(tensors, shared, at, key, step, part, is_first):  # type: ignore[no-untyped-def]
            _, keys, rotated, _, _, full, rotated_full, _, _, _, free = shared
            place = slot(step, part)
            if not is_first:
                T.mbarrier_wait_parity(free[part][place], 1 - phase(step, part))
            load(tensors["KV"], at, key, keys[part], full[part], place, part * half, half)
            if part == 1:  # also the rotated part, when the other group has used its weights, too
                if not is_first:
                    before = step - STAGES[1]
                    T.mbarrier_wait_parity(free[0][slot(before, 0)], phase(before, 0))
                load(tensors["KRope"], at, key, rotated, rotated_full, place, rotated_first, KEYS)

        @T.macro
        def gather(tensors, shared, item, at, step, part, is_first):  # type: ignore[no-untyped-def]
            _, keys, rotated, _, _, full, rotated_full, _, _, _, free = shared
            place, lane, first = (
                slot(step, part),
                T.get_thread_binding() % 32,
                T.get_thread_binding() // 32 % warps * LANE_ROWS,
            )
            if not is_first:
                T.mbarrier_wait_parity(free[part][place], 1 - phase(step, part))
            chosen = T.alloc_var("int32")
            for i in T.unroll(LANE_ROWS):
                chosen = T.shfl_sync(at, i)
                T.ptx_cp_async(
                    T.access_ptr(keys[part][place, first + i, lane * CHUNK], "w", CHUNK),
                    T.access_ptr(
                        element(tensors["KV"], item, chosen, part * half + lane * CHUNK), "r", CHUNK
                    ),
                    CHUNK,
                )
            T.cp_async_barrier_noinc(full[part][place])
            if part == 1:
                if not is_first:
                    before = step - STAGES[1]
                    T.mbarrier_wait_parity(free[0][slot(before, 0)], phase(before, 0))
                for i in T.unroll(LANE_ROWS // 4):
                    row, column = i * 4 + lane // 8, lane % 8 * CHUNK
                    chosen = T.shfl_sync(at, row)
                    T.ptx_cp_async(
                        T.access_ptr(rotated[place, first + row, column], "w", CHUNK),
                        T.access_ptr(
                            element(tensors["KRope"], item, chosen, rotated_first + column), "r", CHUNK
                        ),
                        CHUNK,
                    )
                T.cp_async_barrier_noinc(rotated_full[place])

        @T.macro
        def begin_scores(q_first, keys, full, step, scores):  # type: ignore[no-untyped-def]
            wait_full(full[0], slot(step, 0), phase(step, 0))
            T.wgmma_gemm(
                q_first, keys[0][slot(step, 0), :, :], scores,
                transpose_B=True, policy=policy, clear_accum=True,
            )  # fmt: skip

        @T.macro
        def weights(tensors, shared, where, begin, trips):  # type: ignore[no-untyped-def]
            queries, keys, rotated, factors, inverse, full, rotated_full, scaled, ready, done, _ = shared
            q_second, q_rotated = queries
            q_first = T.alloc_fragment((ROWS, half), dtype)
            following = T.alloc_fragment((ROWS, KEYS), "float32")
            scores = T.alloc_fragment((ROWS, KEYS), "float32")
            row_max = T.alloc_fragment((ROWS,), "float32")
            old_max = T.alloc_fragment((ROWS,), "float32")
            rescale = T.alloc_fragment((ROWS,), "float32")
            tile_sum = T.alloc_fragment((ROWS,), "float32")
            row_sum = T.alloc_fragment((ROWS,), "float32")
            for tile, name, first, columns in [
                (q_first, "Q", 0, half), (q_second, "Q", half, half),
                (q_rotated, "QRope", rotated_first, KEYS),
            ]:  # fmt: skip
                for i, j in T.Parallel(ROWS, columns):
                    tile[i, j] = query(tensors[name], where, i, first + j)
            T.fence_proxy_async()
            T.sync_threads(WEIGHTS_BARRIER, GROUP)
            T.fill(row_sum, 0)
            T.fill(row_max, LOWEST)
            if trips > 0:
                begin_scores(q_first, keys, full, 0, following)
                T.wait_wgmma(0)
            for step in T.serial(trips):
                at = slot(step)
                wait_full(full[1], at, phase(step))
                T.wgmma_gemm(q_second, keys[1][at, :, :], following, transpose_B=True, policy=policy)
                wait_full(rotated_full, at, phase(step))
                T.wgmma_gemm(q_rotated, rotated[at, :, :], following, transpose_B=True, policy=policy)
                T.wait_wgmma(0)
                T.copy(following, scores)
                # the last one is repeated, since a product under a condition would not be asynchronous
                begin_scores(q_first, keys, full, T.min(step + 1, trips - 1), following)
                hide(tensors, where, scores, begin + step * KEYS)
                T.copy(row_max, old_max)
                T.reduce_max(scores, row_max, dim=1, clear=False)
                for i in T.Parallel(ROWS):
                    row_max[i] = T.if_then_else(
                        row_max[i] - old_max[i] > LAZY / scale, row_max[i], old_max[i]
                    )
                    rescale[i] = T.exp2((old_max[i] - row_max[i]) * scale)
                T.sync_threads(WEIGHTS_BARRIER, GROUP)  # no warp reads the rotated keys any more
                T.copy(rescale, factors[slot(step), :])
                report(scaled, slot(step))
                for part in HALVES:  # of the keys: products with the first ones begin early
                    for i, j in T.Parallel(ROWS, KEYS // 2):
                        scores[i, part * (KEYS // 2) + j] = T.exp2(
                            scores[i, part * (KEYS // 2) + j] * scale - row_max[i] * scale
                        )
                    T.copy(scores[:, keys_of[part]], rotated[at, :, keys_of[part]])
                    T.fence_proxy_async()
                    report(ready[part], at)
                T.reduce_sum(scores, tile_sum, dim=1)  # while others use the weights
                for i in T.Parallel(ROWS):
                    row_sum[i] = row_sum[i] * rescale[i] + tile_sum[i]
                T.wait_wgmma(0)
            for i in T.Parallel(ROWS):
                row_max[i] = row_max[i] * scale + T.log2(row_sum[i])
                inverse[i] = T.if_then_else(row_sum[i] > 0, 1 / row_sum[i], 0)
            report(done, 0)
            keep(tensors, where, row_max)

        @T.macro
        def sums(tensors, shared, where, part, begin, trips, last):  # type: ignore[no-untyped-def]
            _, keys, rotated, factors, inverse, full, _, scaled, ready, done, free = shared
            o_sum = T.alloc_fragment((ROWS, half), "float32")
            rescale = T.alloc_fragment((ROWS,), "float32")
            at = T.alloc_var("int32")
            thread = T.get_thread_binding()
            copies = thread // 32 == (1 + part) * GROUP // 32
            row = thread // 32 % warps * LANE_ROWS + thread % LANE_ROWS  # whose key a thread knows
            if selected:
                for step in T.serial(T.min(trips, STAGES[part])):
                    at = place_of(tensors, where, key_of(tensors, where, begin + step * KEYS + row))
                    gather(tensors, shared, where[0], at, step, part, True)
                if page:
                    following = T.alloc_var("int32")
                    following = key_of(tensors, where, begin + STAGES[part] * KEYS + row)
            else:
                if copies:
                    for step in T.serial(T.min(trips, STAGES[part])):
                        key = begin + step * KEYS
                        fill(tensors, shared, page_of(tensors, where, key, last), key, step, part, True)
            T.fill(o_sum, 0)
            for step in T.serial(trips):
                key = begin + (step + STAGES[part]) * KEYS
                # long before it is needed
                if selected and page:  # its key was read a step before, so that no thread waits for it here
                    at = place_of(tensors, where, following)
                    following = key_of(tensors, where, key + KEYS + row)
                else:
                    at = key_of(tensors, where, key + row) if selected else page_of(tensors, where, key, last)
                place = slot(step, part)
                wait_full(full[part], place, phase(step, part))
                T.mbarrier_wait_parity(scaled[slot(step)], phase(step))
                T.copy(factors[slot(step), :], rescale)
                scale_sums(o_sum, rescale)
                for first in HALVES:
                    T.mbarrier_wait_parity(ready[first][slot(step)], phase(step))
                    T.wgmma_gemm(
                        rotated[slot(step), :, keys_of[first]], keys[part][place, keys_of[first], :], o_sum,
                        policy=policy,
                    )  # fmt: skip
                T.wait_wgmma(0)
                rings[part].release(free[part], step)
                if selected:
                    if step + STAGES[part] < trips:
                        gather(tensors, shared, where[0], at, step + STAGES[part], part, False)
                else:
                    if copies and step + STAGES[part] < trips:
                        fill(tensors, shared, at, key, step + STAGES[part], part, False)
            T.mbarrier_wait_parity(done[0], 0)
            T.copy(inverse, rescale)
            for i, j in T.Parallel(ROWS, half):
                o_sum[i, j] *= rescale[i]
            write(tensors, where, o_sum, part * half, half)

        @T.macro
        def attention(tensors, where, begin, trips, last):  # type: ignore[no-untyped-def]
            queries = (T.alloc_shared((ROWS, half), dtype), T.alloc_shared((ROWS, KEYS), dtype))
            keys = [T.alloc_shared((STAGES[part], KEYS, half), dtype) for part in HALVES]
            rotated = T.alloc_shared((ROTATED_STAGES, KEYS, KEYS), dtype)
            factors = T.alloc_shared((ROTATED_STAGES, ROWS), "float32")
            inverse = T.alloc_shared((ROWS,), "float32")
            copying = GROUP if selected else 1  # threads that report it
            full = [T.alloc_barrier([copying] * STAGES[part]) for part in HALVES]
            rotated_full = T.alloc_barrier([copying] * ROTATED_STAGES)
            scaled = T.alloc_barrier([warps] * ROTATED_STAGES)
            ready = [T.alloc_barrier([warps] * ROTATED_STAGES) for _ in HALVES]
            done = T.alloc_barrier([warps])
            if pair:
                free = [T.alloc_cluster_barrier([2 * warps] * STAGES[part]) for part in HALVES]
            else:
                free = [T.alloc_barrier([warps] * STAGES[part]) for part in HALVES]
            shared = (queries, keys, rotated, factors, inverse, full, rotated_full, scaled, ready, done, free)
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
