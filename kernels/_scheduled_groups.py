"""Grouped products on Hopper with explicit pipelines, whose copies go on from tile to tile.

Blocks stay and take the tiles of all groups in turns, or each has one tile. The numbers of tiles of the
groups before each group are in shared memory, where all threads find the group of a tile.

Of a tile that ends its group, warpgroups without a row leave the matrix unit to the others, and rows are
stored one by one. Other tiles leave by parts through TMA.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from typing import Any

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config
from ..search_spaces.stored_parts import part_columns
from ._float8 import BLOCK
from ._group_tiles import GroupTiles
from ._grouped_tensors import GroupedTensors
from ._promoted_sums import promoting_consumer, promotion_registers
from ._row_tiles import LOG2_E
from ._scheduled_tiles import GROUP, in_order, scheduled_tiles
from ._stored_parts import columns_of, stored_by_parts
from ._warp_policy import warp_policy

VECTOR_BYTES = 16  # that a thread stores at once


def overlapped_groups(
    of: GroupedTensors, sizes: tuple[Any, int, int, int], dtype: str, output: str, config: Config, blocks: Any
) -> Any:
    """The tile program: a function of A, B, A_scale, B_scale, ends and C.

    Args:
        of: the layout of the tensors.
        sizes: tokens, groups, n and k.
        dtype: of the operands.
        output: dtype of C.
        config: of the template.
        blocks: number of blocks.
    """
    import tilelang.language as T  # noqa: N812

    tokens, groups, n, k = sizes
    block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
    num_stages, threads = config.int("num_stages"), config.int("threads")
    policy = warp_policy(config.str("policy"))
    halves = 2 if of.fused else 1  # of the columns of a product
    by_blocks, by_sums = of.scales == "block128", of.scales in ("tensor", "row")
    scaled_cols = min(block_n, BLOCK)  # columns that have one scale, in each iteration
    sum_parts = halves * block_n // scaled_cols
    depths, cols = -(-k // block_k), -(-n // block_n)
    part_cols = part_columns(block_n, DTYPE_BYTES[output])
    vector = VECTOR_BYTES // DTYPE_BYTES[output]
    sum_shape = (block_m, halves * block_n)
    a_shape = (block_m, block_k)
    b_shape = (halves * block_n, block_k) if of.is_nt else (block_k, halves * block_n)

    def issue(source: Any, tile: Any, barrier: Any) -> Any:
        return T.tma_copy(source, tile, barrier=barrier, leader_scope_threads=32)

    @T.macro
    def load(tensors, place, depth, a_tile, b_tile, stage, full):  # type: ignore[no-untyped-def]
        group, row, col = place[:3]
        deep = depth * block_k
        deeps = slice(deep, deep + block_k)
        # rows beyond the group's end are those of other groups, or zeros: their products are not stored
        rows = of.rows_of(tensors[0], group, slice(row, row + block_m), deeps)
        issue(rows, a_tile[stage, :, :], full[stage])
        weights = of.weights_of(tensors[1], group, 0, slice(col, col + block_n), deeps)
        if not of.fused:
            issue(weights, b_tile[stage, :, :], full[stage])
        else:
            others = of.weights_of(tensors[1], group, 1, slice(col, col + block_n), deeps)
            if of.is_nt:
                issue(weights, b_tile[stage, :block_n, :], full[stage])
                issue(others, b_tile[stage, block_n:, :], full[stage])
            else:
                issue(weights, b_tile[stage, :, :block_n], full[stage])
                issue(others, b_tile[stage, :, block_n:], full[stage])

    def multiply(a: Any, b: Any, total: Any, clear: Any) -> Any:
        return T.wgmma_gemm(a, b, total, transpose_B=of.is_nt, policy=policy, clear_accum=clear)

    def scaled(tensors: Any, place: Any, half: int, total: Any, i: Any, j: Any) -> Any:
        group, row, col = place[:3]
        if not by_sums:
            return total
        return total * of.factor_of(tensors[2], tensors[3], group, half, row + i, col + j)

    @T.macro
    def fill(where, c_sum, first, c_parts, slot):  # type: ignore[no-untyped-def]
        tensors, place = where
        if of.fused:
            # step by step, since TileLang repeats an expression wherever it is used
            gate = T.alloc_fragment((block_m, part_cols), "float32")
            root = T.alloc_fragment((block_m, part_cols), "float32")
            for i, j in T.Parallel(block_m, part_cols):
                gate[i, j] = scaled(tensors, place, 0, columns_of(c_sum, first).sum(i, j), i, first + j)
            for i, j in T.Parallel(block_m, part_cols):
                # its square is what silu multiplies a value by; faster than a division
                root[i, j] = T.rsqrt(T.float32(1) + T.exp2(-gate[i, j] * LOG2_E))
            for i, j in T.Parallel(block_m, part_cols):
                gate[i, j] *= root[i, j] * root[i, j]
            for i, j in T.Parallel(block_m, part_cols):
                up = columns_of(c_sum, block_n + first)
                gate[i, j] *= scaled(tensors, place, 1, up.sum(i, j), i, first + j)
            T.copy(gate, c_parts[slot, :, :])
        elif by_sums:
            values = T.alloc_fragment((block_m, part_cols), "float32")
            for i, j in T.Parallel(block_m, part_cols):
                values[i, j] = scaled(tensors, place, 0, c_sum[i, first + j], i, first + j)
            T.copy(values, c_parts[slot, :, :])
        else:
            T.copy(columns_of(c_sum, first).all(part_cols), c_parts[slot, :, :])

    @T.macro
    def send(where, first, c_parts, slot):  # type: ignore[no-untyped-def]
        tensors, (group, row, left, end) = where
        C, col = tensors[4], left + first  # noqa: N806
        if row + block_m <= end:
            T.tma_copy(
                c_parts[slot, :, :],
                of.rows_of(C, group, slice(row, row + block_m), slice(col, col + part_cols)),
            )
        else:
            # neighbours store 16 bytes each of a row
            for step in T.unroll(block_m * part_cols // (vector * threads)):
                at = step * threads + T.get_thread_binding() - GROUP
                i, j = at // (part_cols // vector), at % (part_cols // vector) * vector
                if row + i < end and col + j < n:
                    for v in T.vectorized(vector):
                        if of.masked:
                            C[group, row + i, col + j + v] = c_parts[slot, i, j + v]
                        else:
                            C[row + i, col + j + v] = c_parts[slot, i, j + v]

    store_parts = stored_by_parts(fill, send, block_m, block_n, output)

    @T.macro
    def store(tensors, place, _, c_sum):  # type: ignore[no-untyped-def]
        store_parts((tensors, place), c_sum)

    def scale_of_row(tensors: Any, place: Any, row: Any, depth: Any) -> Any:
        group, first = place[:2]
        return of.rows_of(tensors[2], group, T.min(first + row, tokens - 1), depth)

    def scale_of_columns(tensors: Any, place: Any, part: Any, depth: Any) -> Any:
        group, col = place[0], place[2]
        if of.fused:  # a part is a half, the gate or what it multiplies
            return of.block_of_columns(tensors[3], group, part, col, depth)
        # the last tile may end before its last part
        return of.block_of_columns(tensors[3], group, 0, T.min(col + part * scaled_cols, n - 1), depth)

    def sum_registers() -> Any:
        if by_blocks:
            return promotion_registers(sum_parts, (block_m, scaled_cols))
        return T.alloc_fragment(sum_shape, "float32")

    def works(place: Any) -> Any:
        # whether this thread's warpgroup has rows of the group
        _, row, _, end = place
        return row + (T.get_thread_binding() // GROUP - 1) * (block_m * GROUP // threads) < end

    consumer = in_order(works)
    if by_blocks:
        registers = block_m * scaled_cols // threads
        consumer = promoting_consumer(scale_of_row, scale_of_columns, depths, sum_parts, registers, works)
    group_tiles = GroupTiles(of, groups, block_m, block_n, cols, depths, blocks)
    count, walk = group_tiles.count(), group_tiles.walk()
    run = scheduled_tiles(load, multiply, store, num_stages, threads, False, consumer)

    @T.macro
    def program(A: Any, B: Any, A_scale: Any, B_scale: Any, ends: Any, C: Any) -> None:  # noqa: N803
        with T.Kernel(blocks, threads=threads + GROUP) as block:
            a_tile = T.alloc_shared((num_stages, *a_shape), dtype)
            b_tile = T.alloc_shared((num_stages, *b_shape), dtype)
            tiles = T.alloc_shared((groups + 1,), "int32")
            sums = sum_registers()
            full = T.alloc_barrier([1] * num_stages)
            free = T.alloc_barrier([threads // 32] * num_stages)
            if T.get_thread_binding() == 0:
                count(ends, tiles)
            T.sync_threads()
            tensors = (A, B, A_scale, B_scale, C, ends, tiles)
            run(tensors, (a_tile, b_tile, sums), (full, free), walk, block)
            T.tma_store_wait(0)  # a block keeps its tiles until they have been read

    return program
