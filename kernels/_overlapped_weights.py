"""Products of packed weights with many rows of A on Hopper: weights are unpacked during the products before.

Tiles are those of C^T = W A^T, and threads of their own copy. Each computing warpgroup has 64 rows of W in
registers, as the left operand: those of one iteration are multiplied while those of the next one are
unpacked.

Products of float8 are sums of a group of weights, which are scaled and added in float32 while the other
warpgroup multiplies.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable
from typing import Any

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config
from ._float8 import FLOAT8
from ._float8_activations import TABLES, UNIT, permuted_float8
from ._packed import Packing, byte_tables, decoder, permuted, scale_of, word_of
from ._scheduled_tiles import GROUP, Stages, scheduled_tiles
from ._warp_policy import warp_policy

PERMUTED = "permuted_bytes"
PERMUTE = f"""
__device__ __forceinline__ unsigned int {PERMUTED}(unsigned int low, unsigned int high, unsigned int at) {{
  unsigned int found;
  asm("prmt.b32 %0, %1, %2, %3;" : "=r"(found) : "r"(low), "r"(high), "r"(at));
  return found;
}}
"""


def overlapped_product(
    packing: Packing,
    format_name: str,
    output: str,
    sizes: tuple[Any, int, int],
    group: int,
    config: Config,
    with_zeros: bool,
    scales: str = "",
) -> Any:
    """The tile program: a function of A, B, S, Z and C; of float8 A_scale takes the place of Z.

    Args:
        packing: the format, of weights that become numbers of A's dtype.
        format_name: its name.
        output: dtype of C.
        sizes: m, n and k.
        group: weights of a row that share a scale; -1: all.
        config: of the template.
        with_zeros: whether there are zero points.
        scales: of float8, none or what of A has one: tensor or row; "" for A of C's dtype.
    """
    import tilelang.language as T  # noqa: N812
    from tilelang.layout import make_half_bank_swizzled_layout, make_quarter_bank_swizzled_layout

    m, n, k = sizes
    block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
    num_stages, threads, swizzle = config.int("num_stages"), config.int("threads"), config.int("swizzle")
    blocks, by_table = config.int("persistent", 0), config["decode"] == "table"
    scale_dtype, is_float8 = packing.scales or output, scales != ""
    # `unit`: neighbours along k that a thread has, packed
    dtype, unit = (FLOAT8, "uint16") if is_float8 else (output, "uint8")
    per_unit = 4 if is_float8 else packing.per_byte
    registers = block_n * block_k * DTYPE_BYTES[dtype] // 4 // threads  # of a thread, for weights
    policy = warp_policy("full_row")
    tile_rows, tile_cols = (m + block_m - 1) // block_m, -(-n // block_n)
    depths = -(-k // (2 * block_k)) * 2  # two at a time; those beyond k add nothing
    units, scale_rows = block_k // per_unit, 1 if group == -1 else -(-block_k // group)
    last_group = 0 if group == -1 else (k - 1) // group
    word: Any = None if by_table else word_of(format_name, output)
    _, scaled = decoder(format_name, with_zeros, output, config.str("decode"))
    tables = TABLES if is_float8 else byte_tables(packing.values, output) if by_table else ()

    def permute(low: Any, high: Any, places: Any) -> Any:
        # CUDA's function takes three bits of each place, PTX's instruction the fourth one, too
        return T.call_pure_extern("uint32", PERMUTED if is_float8 else "__byte_perm", low, high, places)

    def place(tile: Any) -> tuple[Any, Any]:
        # column and row of a tile, by panels of rows
        panel = max(swizzle, 1)
        first = tile // (panel * tile_cols) * panel
        rows = T.min(panel, tile_rows - first)
        inner = tile % (panel * tile_cols)
        return inner // rows, first + inner % rows

    def issue(source: Any, tile: Any, barrier: Any) -> Any:
        return T.tma_copy(source, tile, barrier=barrier, leader_scope_threads=32)

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
        deep, first = depth * block_k, depth * units
        rows, cols = scale_slices(depth, col)
        issue(A[row : row + block_m, deep : deep + block_k], a_tile[stage, :, :], full[stage])
        issue(B[col : col + block_n, first : first + units], b_tile[stage, :, :], full[stage])
        issue(S[rows, cols], s_tile[stage, :, :], full[stage])
        if with_zeros:
            issue(Z[rows, cols], z_tile[stage, :, :], full[stage])

    @T.macro
    def unpack(packed_tiles, stage, weights):  # type: ignore[no-untyped-def]
        b_tile, s_tile, z_tile, table = packed_tiles
        values, factor = T.alloc_local((per_unit,), dtype), T.alloc_local((1,), output)
        words = T.view(values, (1,), "uint32")
        for i, at in T.Parallel(block_n, units):
            of = at * per_unit // group if scale_rows > 1 else 0
            if is_float8:
                words[0] = permuted_float8(T.cast(b_tile[stage, i, at], "uint32"), table, permute)
            else:
                words[0] = word(T.cast(b_tile[stage, i, at], "uint32"))
                factor[0] = scale_of(s_tile[stage, of, i], output)
            for v in T.vectorized(per_unit):
                weights[i, at * per_unit + v] = (
                    values[v]
                    if is_float8
                    else scaled(values[v], factor[0], z_tile[stage, of, i] if with_zeros else None)
                )

        # a fence, or the compiler may unpack after it has waited for the product before
        T.warpgroup_fence_operand(weights, num_regs=registers)

    @T.macro
    def unpack_fours(packed_tiles, stage, weights):  # type: ignore[no-untyped-def]
        b_tile, s_tile, _, table = packed_tiles
        codes, values = T.alloc_local((1,), "uint32"), T.alloc_local((4,), dtype)
        factor = T.alloc_local((1,), output)
        words = T.view(values, (2,), "uint32")
        # the two bytes of a thread, of 16 weights
        for i, at, byte in T.Parallel(block_n, block_k // 16, 4):
            of = at * 16 // group if scale_rows > 1 else 0
            codes[0] = T.cast(b_tile[stage, i, at * 8 + byte], "uint32")
            codes[0] = codes[0] | T.cast(b_tile[stage, i, at * 8 + 4 + byte], "uint32") << T.uint32(8)
            words[0], words[1] = permuted(codes[0], table, permute)
            factor[0] = s_tile[stage, of, i]
            for half in T.unroll(2):
                for v in T.vectorized(2):
                    weights[i, at * 16 + half * 8 + byte * 2 + v] = values[half * 2 + v] * factor[0]

    @T.macro
    def add(packed_tiles, stage, part, c_sum):  # type: ignore[no-untyped-def]
        for i, j in T.Parallel(block_n, block_m):
            c_sum[i, j] += part[i, j] * T.cast(packed_tiles[1][stage, 0, i], "float32")

    def finished(total: Any, a_scale: Any, row: Any) -> Any:
        if not is_float8:
            return total
        scale = T.float32(UNIT)
        if scales != "none":
            scale = scale * a_scale[T.min(row, m - 1) if scales == "row" else 0]
        return total * scale

    def multiply(weights: Any, a_tile: Any, c_sum: Any, clear: Any) -> Any:
        return T.wgmma_gemm(weights, a_tile, c_sum, transpose_B=True, policy=policy, clear_accum=clear)

    @T.macro
    def store(tensors, where, _target, c_sum):  # type: ignore[no-untyped-def]
        c_tile = T.alloc_shared((block_m, block_n), output)
        for i, j in T.Parallel(block_n, block_m):
            c_tile[j, i] = finished(c_sum[i, j], tensors[3], where[1] * block_m + j)
        T.copy(c_tile, tensors[4][where[1] * block_m, where[0] * block_n])

    @T.macro
    def walk(role, tensors, buffers, barriers, block):  # type: ignore[no-untyped-def]
        if blocks:
            for turn in T.serial(T.ceildiv(tile_rows * tile_cols - block, blocks)):
                where = place(turn * blocks + block)
                role(tensors, buffers, barriers, where, (0, depths), turn * depths, None)
        else:
            role(tensors, buffers, barriers, place(block), (0, depths), 0, None)

    unpacking = unpack_fours if by_table else unpack
    consumer = overlapped_consumer(unpacking, add if is_float8 else None)
    run = scheduled_tiles(load, multiply, store, num_stages, threads, False, consumer)

    swizzled = (
        make_half_bank_swizzled_layout
        if block_k // packing.per_byte == 64
        else make_quarter_bank_swizzled_layout
    )
    source = PERMUTE if is_float8 else None
    grid = blocks if blocks else tile_rows * tile_cols

    def zero_tile() -> Any:
        return T.alloc_shared((num_stages, scale_rows, block_n), output) if with_zeros else None

    def byte_table() -> Any:
        return T.alloc_local((len(tables),), "uint32") if tables else None

    def part_sums() -> Any:
        return T.alloc_fragment((block_n, block_m), "float32") if is_float8 else None

    @T.macro
    def program(A: Any, B: Any, S: Any, Z: Any, C: Any) -> None:  # noqa: N803
        packed = T.view(B, (n, k // per_unit), unit) if is_float8 else B
        with T.Kernel(grid, threads=threads + GROUP) as block:
            T.import_source(source)
            a_tile = T.alloc_shared((num_stages, block_m, block_k), dtype)
            b_tile = T.alloc_shared((num_stages, block_n, units), unit)
            s_tile = T.alloc_shared((num_stages, scale_rows, block_n), scale_dtype)
            z_tile, table = zero_tile(), byte_table()
            T.annotate_layout({b_tile: swizzled(b_tile)})
            even = T.alloc_fragment((block_n, block_k), dtype)
            odd = T.alloc_fragment((block_n, block_k), dtype)
            c_sum, part = T.alloc_fragment((block_n, block_m), "float32"), part_sums()
            full = T.alloc_barrier([1] * num_stages)
            free = T.alloc_barrier([threads // 32] * num_stages)
            # constants that the compiler does not see: it would load them before each use
            for index, value in enumerate(tables):
                table[index] = T.shfl_sync(
                    T.if_then_else(T.get_thread_binding() % 32 == 0, T.uint32(value), T.uint32(0)), 0
                )
            buffers = (a_tile, (b_tile, s_tile, z_tile, table), (c_sum, even, odd, part))
            run((A, packed, S, Z, C), buffers, (full, free), walk, block)

    return program


def overlapped_consumer(unpack: Any, add: Any) -> Any:
    """What computing threads do with a tile, for `scheduled_tiles`.

    Its sums are followed by registers of two left operands, and by those of a product for `add`. Iterations
    are even in number.

    Args:
        unpack: a macro `(packed_tiles, stage, weights)` that brings a left operand to registers.
        add: a macro `(packed_tiles, stage, product, c_sum)` that scales and adds the product of an iteration;
            None where the product adds itself.
    """
    import tilelang.language as T  # noqa: N812

    is_added = add is not None

    def consumer(multiply: Callable[[Any, Any, Any, Any], Any], store: Any, stages: Stages) -> Any:
        @T.macro
        def overlap(buffers, barriers, weights, iteration, step):  # type: ignore[no-untyped-def]
            a_tile, packed_tiles, sums = buffers
            full, free = barriers
            at = stages.slot(iteration)
            stages.wait_full(full, iteration)
            unpack(packed_tiles, at, weights)  # during the product before
            if is_added:
                # a branch, beyond which the compiler does not move what it unpacks
                stages.wait_full(full, iteration)
                before = iteration - T.min(step, 1)  # the first product is zeros
                T.wait_wgmma(0)
                add(packed_tiles, stages.slot(before), sums[3], sums[0])
                multiply(weights, a_tile[at, :, :], sums[3], True)
            else:
                multiply(weights, a_tile[at, :, :], sums[0], step == 0)
                T.wait_wgmma(1)
            if step > 0:
                stages.release(free, iteration - 1)

        @T.macro
        def consume(tensors, buffers, barriers, place, part, done, target):  # type: ignore[no-untyped-def]
            c_sum, even, odd, product = buffers[2]
            count = part[1]
            if is_added:
                T.clear(c_sum)
                T.clear(product)
            for two in T.serial(count // 2):
                overlap(buffers, barriers, even, done + 2 * two, 2 * two)
                overlap(buffers, barriers, odd, done + 2 * two + 1, 2 * two + 1)
            T.wait_wgmma(0)
            if is_added:
                add(buffers[1], stages.slot(done + count - 1), product, c_sum)
                T.sync_warp()  # all its threads have read the scales
            stages.release(barriers[1], done + count - 1)
            store(tensors, place, target, c_sum)

        return consume

    return consumer
