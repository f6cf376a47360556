"""Products of packed weights with many rows of A on Hopper: weights are unpacked during the products before.

Tiles are those of C^T = W A^T, and threads of their own copy. Each computing warpgroup has 64 rows of W in
registers, as the left operand: those of one iteration are multiplied while those of the next one are
unpacked. Two blocks side by side may read their rows of A together, as a cluster.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from typing import Any

from ..problem.space import Config
from ._packed import Packing, constant_of, decoder, scale_of, word_of
from ._scheduled_tiles import GROUP, scheduled_tiles
from ._warp_policy import warp_policy


def overlapped_product(
    packing: Packing,
    format_name: str,
    output: str,
    sizes: tuple[Any, int, int],
    group: int,
    config: Config,
    with_zeros: bool,
) -> Any:
    """The tile program: a function of A, B, S, Z and C.

    Args:
        packing: the format, of weights that become numbers of C's dtype.
        format_name: its name.
        output: dtype of A and C.
        sizes: m, n and k.
        group: weights of a row that share a scale; -1: all.
        config: of the template.
        with_zeros: whether there are zero points.
    """
    import tilelang.language as T  # noqa: N812

    m, n, k = sizes
    block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
    num_stages, threads, swizzle = config.int("num_stages"), config.int("threads"), config.int("swizzle")
    blocks, cluster = config.int("persistent", 0), config.int("cluster_n", 0) or 1
    by_table, by_words = config["decode"] == "table", config["decode"] == "words"
    per_byte, scale_dtype = packing.per_byte, packing.scales or output
    policy = warp_policy("full_row")
    tile_rows, tile_cols = (m + block_m - 1) // block_m, -(-n // (block_n * cluster))  # of clusters
    depths = -(-k // (2 * block_k)) * 2  # two at a time; those beyond k add nothing
    bytes_deep, scale_rows = block_k // per_byte, 1 if group == -1 else -(-block_k // group)
    last_group = 0 if group == -1 else (k - 1) // group
    word: Any = word_of(format_name, output) if by_words else None
    number, scaled = decoder(format_name, with_zeros, output, config.str("decode"))

    def place(tile: Any) -> tuple[Any, Any]:
        # column of a cluster and row of a tile, by panels of rows
        panel = max(swizzle, 1)
        first = tile // (panel * tile_cols) * panel
        rows = T.min(panel, tile_rows - first)
        inner = tile % (panel * tile_cols)
        return inner // rows, first + inner % rows

    def issue(source: Any, tile: Any, barrier: Any, is_shared: bool) -> Any:
        mask = 3 if is_shared else None
        return T.tma_copy(source, tile, barrier=barrier, leader_scope_threads=32, cluster_mask=mask)

    def scale_slices(depth: Any, col: Any) -> tuple[slice, slice]:
        first = 0 if group == -1 else depth * block_k // group
        if group != -1 and (depths - 1) * block_k // group > last_group:
            first = T.min(first, last_group)
        return slice(first, first + scale_rows), slice(col, col + block_n)

    @T.macro
    def load(tensors, where, depth, a_tile, packed_tiles, stage, full):  # type: ignore[no-untyped-def]
        A, B, S, Z, _ = tensors  # noqa: N806
        b_tile, s_tile, z_tile, _ = packed_tiles
        row, col = where[1] * block_m, where[0] * block_n
        deep, deep_bytes = depth * block_k, depth * bytes_deep
        rows, cols = scale_slices(depth, col)
        issue(A[row : row + block_m, deep : deep + block_k], a_tile[stage, :, :], full[stage], cluster > 1)
        issue(
            B[col : col + block_n, deep_bytes : deep_bytes + bytes_deep],
            b_tile[stage, :, :],
            full[stage],
            False,
        )
        issue(S[rows, cols], s_tile[stage, :, :], full[stage], False)
        if with_zeros:
            issue(Z[rows, cols], z_tile[stage, :, :], full[stage], False)

    @T.macro
    def unpack(packed_tiles, stage, weights):  # type: ignore[no-untyped-def]
        b_tile, s_tile, z_tile, table = packed_tiles
        values, factor = T.alloc_local((per_byte,), output), T.alloc_local((1,), output)
        words = T.view(values, (1,), "uint32")
        for i, byte in T.Parallel(block_n, bytes_deep):
            of = byte * per_byte // group if scale_rows > 1 else 0
            if by_words:
                words[0] = word(T.cast(b_tile[stage, i, byte], "uint32"))
            else:
                for v in T.unroll(per_byte):
                    values[v] = number(b_tile[stage, i, byte], v, table)
            factor[0] = scale_of(s_tile[stage, of, i], output)
            for v in T.vectorized(per_byte):
                weights[i, byte * per_byte + v] = scaled(
                    values[v], factor[0], z_tile[stage, of, i] if with_zeros else None
                )

    def multiply(weights: Any, a_tile: Any, c_sum: Any, clear: Any) -> Any:
        return T.wgmma_gemm(weights, a_tile, c_sum, transpose_B=True, policy=policy, clear_accum=clear)

    @T.macro
    def store(tensors, where, _target, c_sum):  # type: ignore[no-untyped-def]
        c_tile = T.alloc_shared((block_m, block_n), output)
        for i, j in T.Parallel(block_n, block_m):
            c_tile[j, i] = c_sum[i, j]
        T.copy(c_tile, tensors[4][where[1] * block_m, where[0] * block_n])

    @T.macro
    def walk(role, tensors, buffers, barriers, block):  # type: ignore[no-untyped-def]
        if blocks:
            for turn in T.serial(T.ceildiv(tile_rows * tile_cols - block, blocks)):
                role(
                    tensors, buffers, barriers, place(turn * blocks + block), (0, depths), turn * depths, None
                )
        else:
            col, row = place(block // cluster)
            where = (col * cluster + block % cluster, row)
            role(tensors, buffers, barriers, where, (0, depths), 0, None)

    run = scheduled_tiles(load, multiply, store, num_stages, threads, cluster > 1, unpack)
    reported = T.alloc_cluster_barrier if cluster > 1 else T.alloc_barrier

    grid = blocks if blocks else tile_rows * tile_cols * cluster

    def zero_tile() -> Any:
        return T.alloc_shared((num_stages, scale_rows, block_n), output) if with_zeros else None

    def code_table() -> Any:
        return T.alloc_shared((len(packing.values),), output) if by_table else None

    @T.macro
    def program(A: Any, B: Any, S: Any, Z: Any, C: Any) -> None:  # noqa: N803
        with T.Kernel(grid, threads=threads + GROUP, cluster_dims=cluster if cluster > 1 else None) as block:
            a_tile = T.alloc_shared((num_stages, block_m, block_k), output)
            b_tile = T.alloc_shared((num_stages, block_n, bytes_deep), "uint8")
            s_tile = T.alloc_shared((num_stages, scale_rows, block_n), scale_dtype)
            z_tile, table = zero_tile(), code_table()
            even = T.alloc_fragment((block_n, block_k), output)
            odd = T.alloc_fragment((block_n, block_k), output)
            c_sum = T.alloc_fragment((block_n, block_m), "float32")
            full = T.alloc_barrier([1] * num_stages)
            free = reported([cluster * threads // 32] * num_stages)
            if by_table:
                for i in T.Parallel(len(packing.values)):
                    table[i] = constant_of(packing.values, i, output)
                T.sync_threads()
            buffers = (a_tile, (b_tile, s_tile, z_tile, table), (c_sum, even, odd))
            run((A, B, S, Z, C), buffers, (full, free), walk, block)

    return program
