"""Products of packed weights with few rows of A on Hopper: W streams through shared memory.

Blocks stay and walk over the tiles of C. A warp of its own copies packed weights, scales and zero points
through TMA into a ring of stages. It runs ahead of the tile that is computed, so that memory always has
requests, also while sums of a tile are added and stored.

`reduce_warps` warps share rows of W: each has `block_k` weights of a row of every stage. Their sums are added
once a tile. `_weight_fragments.py` says how a warp multiplies.

A stage has rows of 128 bytes, swizzled by TMA: the 16-byte piece p of row r is at p ^ r % 8. Eight lanes read
at once, four pieces of each of two rows. The rows of lanes 8 j .. 8 j + 7 are j and j + 4, whose pieces are
in different banks.

Blocks keep all of A in shared memory, in the order of the products, if it is small. Else each stage has its
part of A, of every tile again.

A stage is free when all warps have read it to registers. TMA writes through another proxy than that of their
reads, so that a fence comes before their report.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from typing import Any

from ..dtypes import DTYPE_BYTES
from ..search_spaces import dequant_matmul as search_space
from ._scheduled_tiles import Stages
from ._weight_fragments import COLUMNS, LANE_WORDS, OF_A, ROWS, TILE_WORDS, WARP, Fragments

ALIGNMENT = 128  # bytes, of what TMA copies to
SUMS_BARRIER = 1  # of the warps that compute


def streamed_product(of: Fragments) -> Any:
    """The tile program: a function of A, B, S, Z and C."""
    import tilelang.language as T  # noqa: N812
    from tilelang.layout import make_full_bank_swizzled_layout

    config, (m, n, k), group, with_zeros = of.config, of.sizes, of.group, of.with_zeros
    block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
    num_stages, threads = config.int("num_stages"), config.int("threads")
    parts, step, tiles = of.parts, of.step, of.tiles
    tokens, groups, columns, is_scaled_late = of.tokens, of.groups, of.columns, of.is_scaled_late
    per_word = 32 // of.packing.bits
    depth = parts * block_k  # weights of a row of a stage
    pieces = depth // per_word // TILE_WORDS  # tiles of a stage with rows of 128 bytes
    steps = tuple(range(block_k // step))  # of a warp, in a stage
    last = len(steps) - 1
    depths = -(-k // depth)
    tile_rows, tile_cols = (m + block_m - 1) // block_m, -(-n // block_n)
    blocks = config.int("persistent")
    if isinstance(m, int):  # a loop over no tiles would still have one
        blocks = min(blocks, tile_rows * tile_cols)
    width = tokens * groups  # columns of a tile's sums
    scale_rows = 1 if group == -1 else max(1, depth // group)
    scale_dtype = of.packing.scales or of.output
    stages = Stages(num_stages, pair=False)
    computing = (SUMS_BARRIER, threads)
    begin_all, clear, multiply = of.begin(threads, computing), of.clear(), of.multiply()
    keeps_a = isinstance(m, int) and search_space.keeps_a(m, k, of.bits // 8, block_m)
    all_steps = depths * depth // step
    keep_a, kept_a, staged_a = of.keep_a(all_steps, threads), of.take_kept_a(), of.take_staged_a()
    a_pieces = depth // (32 // of.bits) // TILE_WORDS  # tiles of A of a stage

    def rows_of_scales(dtype: str) -> int:
        # stages of scales begin at aligned addresses
        return max(scale_rows, ALIGNMENT // (block_n * DTYPE_BYTES[dtype]))

    def scale_tile(dtype: str, is_used: bool) -> Any:
        return T.alloc_shared((num_stages, rows_of_scales(dtype), block_n), dtype) if is_used else None

    def a_memory() -> tuple[Any, Any]:
        if keeps_a:
            return None, of.kept_a(all_steps)
        return T.alloc_shared((num_stages * a_pieces, block_m, TILE_WORDS), "uint32"), None

    def place(turn: Any, block: Any) -> tuple[Any, Any]:
        # first row of A and of W of a tile; tiles of the same weights follow each other
        tile = turn * blocks + block
        return tile % tile_rows * block_m, tile // tile_rows * block_n

    def turns(block: Any) -> Any:
        return T.ceildiv(tile_rows * tile_cols - block, blocks)

    def row_of(lane: Any) -> Any:
        return lane // 8 + lane // 4 % 2 * 4

    def issue(source: Any, tile: Any, barrier: Any) -> Any:
        return T.tma_copy(source, tile, barrier=barrier, leader_scope_threads=WARP)

    @T.macro
    def fill(tensors, stage_tiles, full, where, step, stage):  # type: ignore[no-untyped-def]
        a_words, b_words, scales, zeros, _ = tensors
        a_tile, b_tile, s_tile, z_tile = stage_tiles
        rows = slice(where[1], where[1] + block_n)
        for piece in T.unroll(pieces):
            word = (step * pieces + piece) * TILE_WORDS
            issue(b_words[rows, word : word + TILE_WORDS], b_tile[stage * pieces + piece, :, :], full[stage])
        if not keeps_a:
            for piece in T.unroll(a_pieces):
                word = (step * a_pieces + piece) * TILE_WORDS
                issue(
                    a_words[where[0] : where[0] + block_m, word : word + TILE_WORDS],
                    a_tile[stage * a_pieces + piece, :, :],
                    full[stage],
                )
        first = 0 if group == -1 else step * depth // group
        if not is_scaled_late:
            issue(scales[first : first + scale_rows, rows], s_tile[stage, 0:scale_rows, :], full[stage])
        if with_zeros:
            issue(zeros[first : first + scale_rows, rows], z_tile[stage, 0:scale_rows, :], full[stage])

    @T.macro
    def produce(tensors, stage_tiles, barriers, block):  # type: ignore[no-untyped-def]
        full, free = barriers
        for turn in T.serial(turns(block)):
            for step in T.serial(depths):
                iteration = turn * depths + step
                stage = stages.slot(iteration)
                T.mbarrier_wait_parity(free[stage], 1 - stages.phase(iteration))
                # a lane that still waits when the stage is free again would wait for a phase that never comes
                T.sync_warp()
                fill(tensors, stage_tiles, full, place(turn, block), step, stage)
                if T.shuffle_elect(WARP):
                    T.mbarrier_arrive(full[stage])

    @T.macro
    def take(registers, stage_tiles, lane, warp, stage, begin):  # type: ignore[no-untyped-def]
        # `begin` is the step's first weight, in the stage
        a_tile, b_tile, s_tile, z_tile = stage_tiles
        codes, factors, zeros = (registers[name] for name in ("codes", "factors", "zeros"))
        row, t, word = warp // parts * tiles * ROWS + row_of(lane), lane % 4, begin // per_word
        if not keeps_a:
            staged_a(a_tile, stage * a_pieces, registers, lane, begin)
        for i in T.unroll(tiles * 2):
            for v in T.vectorized(LANE_WORDS):
                codes[i * LANE_WORDS + v] = b_tile[
                    stage * pieces + word // TILE_WORDS, row + i * 8, word % TILE_WORDS + t * LANE_WORDS + v
                ]
        for i in T.unroll(tiles * 4):
            of_group = 0 if scale_rows == 1 else begin // group + (2 * t + i % 2) % groups
            if not is_scaled_late:
                factors[i] = of.scale_of(s_tile[stage, of_group, row + i // 2 * 8])
            if with_zeros:
                zeros[i] = of.scale_of(z_tile[stage, of_group, row + i // 2 * 8])

    @T.macro
    def store(tensors, shared_sums, registers, thread, turn, where):  # type: ignore[no-untyped-def]
        lane, warp, scales, C = thread % WARP, thread // WARP, tensors[2], tensors[4]  # noqa: N806
        total = T.alloc_local((1,), of.accumulator)
        # two sets of sums, so that one barrier is enough: the next one says that all have read this set
        here = turn % 2 * parts
        for i in T.unroll(tiles):
            for c in T.unroll(columns):
                for e in T.unroll(4):
                    row = warp // parts * tiles * ROWS + i * ROWS + e // 2 * 8 + row_of(lane)
                    column = c * COLUMNS + lane % 4 * 2 + e % 2
                    if column < width:
                        shared_sums[here + warp % parts, column, row] = of.total(registers, i, c, e)
        T.sync_threads(*computing)
        for i in T.serial((block_n * tokens + threads - 1) // threads):
            row, token = (i * threads + thread) % block_n, (i * threads + thread) // block_n
            if token < tokens and where[0] + token < m and where[1] + row < n:
                total[0] = 0
                for p in T.unroll(parts):
                    for slot in T.unroll(groups):
                        total[0] += shared_sums[here + p, token * groups + slot, row]
                C[where[0] + token, where[1] + row] = of.result(total[0], scales[0, where[1] + row])

    @T.macro
    def consume(tensors, stage_tiles, barriers, own, block):  # type: ignore[no-untyped-def]
        registers, tables, kept, shared_sums = own
        full, free = barriers
        thread = T.get_thread_binding()
        lane, warp = thread % WARP, thread // WARP
        begin_all(registers, tables, thread)
        if keeps_a:
            keep_a(tensors[0], kept, registers, thread)
            T.sync_threads(*computing)
        for i in T.unroll(columns * OF_A):
            registers["ordered"][i] = T.uint32(0)
        for turn in T.serial(turns(block)):
            clear(registers)
            for of_tile in T.serial(depths):
                iteration = turn * depths + of_tile
                for number in steps:
                    begin = warp % parts * block_k + number * step
                    if keeps_a:  # while the warp waits for weights
                        kept_a(kept, registers, lane, (of_tile * depth + begin) // step)
                    if number == 0:
                        stages.wait_full(full, iteration)
                    take(registers, stage_tiles, lane, warp, stages.slot(iteration), begin)
                    if number == last:
                        T.fence_proxy_async()
                        T.sync_warp()
                        stages.release(free, iteration)
                    multiply(registers, tables, lane, 0)
            store(tensors, shared_sums, registers, thread, turn, place(turn, block))

    @T.macro
    def program(A: Any, B: Any, S: Any, Z: Any, C: Any) -> None:  # noqa: N803
        a_words = T.view(A, (m, k // (32 // of.bits)), "uint32")
        b_words = T.view(B, (n, k // per_word), "uint32")
        with T.Kernel(blocks, threads=threads + WARP) as block:
            thread = T.get_thread_binding()
            a_tile, kept = a_memory()
            b_tile = T.alloc_shared((num_stages * pieces, block_n, TILE_WORDS), "uint32")
            s_tile, z_tile = scale_tile(scale_dtype, not is_scaled_late), scale_tile(of.output, with_zeros)
            shared_sums = T.alloc_shared((2 * parts, width, block_n), of.accumulator)
            T.annotate_layout({b_tile: make_full_bank_swizzled_layout(b_tile)})
            if not keeps_a:
                T.annotate_layout({a_tile: make_full_bank_swizzled_layout(a_tile)})
            full = T.alloc_barrier([1] * num_stages)
            free = T.alloc_barrier([threads // WARP] * num_stages)
            registers, tables = of.registers(1), of.tables()
            tensors, stage_tiles = (a_words, b_words, S, Z, C), (a_tile, b_tile, s_tile, z_tile)
            # not T.ws, between whose branches TileLang 0.1.15 synchronises all threads
            if thread < threads:
                own = (registers, tables, kept, shared_sums)
                consume(tensors, stage_tiles, (full, free), own, block)
            else:
                produce(tensors, stage_tiles, (full, free), block)

    return program
