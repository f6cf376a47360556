"""Products of packed int4 and float8 activations, by float8 matrix units.

As e4m3, a byte of 0 .. 15 is that many 512ths: the first binade follows the subnormal numbers without a gap.
So an integer of -8 .. 7 becomes a sign and a magnitude, and products are 512 times too small. Sums of a group
of weights are scaled and added in float32.

Annotations are evaluated here (no `from __future__`): TileLang reads those of its functions.
"""

from collections.abc import Callable
from typing import Any

from ..problem.space import Config
from ._warp_policy import warp_policy

UNIT = 512.0


def spread(codes: Any) -> Any:
    """Four codes, of the lower 16 bits of a uint32, in a byte each."""
    pairs = (codes | codes << 8) & 0x00FF00FF
    return (pairs | pairs << 4) & 0x0F0F0F0F


def float8_of_int4(apart: Any) -> Any:
    """The bits of four e4m3 numbers, (q - 8) / 512, from codes that have a byte each."""
    negative = ((apart ^ 0x08080808) >> 3) & 0x01010101
    return (apart ^ (0x08080808 - negative)) + negative * 0x81


# bytes of the numbers of codes below 8, with a bit that an addition moves to the sign, and of the others
TABLES = (0x45464748, 0x41424344, 0x03020100, 0x07060504)


def permuted_float8(codes: Any, tables: Any, permute: Callable[[Any, Any, Any], Any]) -> Any:
    """The bits of four e4m3 numbers, (q - 8) / 512, from the codes in the lower 16 bits of a uint32.

    `permute` takes the lower and upper half of eight bytes, here of `TABLES`, and places in them. A place
    with its fourth bit set gives the sign of the byte in the other three bits, here 0.
    """
    negative, positive = permute(tables[0], tables[1], codes), permute(tables[2], tables[3], codes ^ 0x8888)
    return negative + positive + (negative & 0x40404040)


def float8_product(
    output: str, sizes: tuple[Any, int, int], group: int, unpack: int, scales: str, config: Config
) -> Any:
    """The tile program: a function of A, B, S, A_scale and C.

    Args:
        output: dtype of C.
        sizes: m, n and k.
        group: weights of a row that share a scale; -1: all.
        unpack: weights that a thread unpacks at a time.
        scales: none, or what of A has one: tensor or row.
        config: of the template; block_k divides the group.
    """
    import tilelang.language as T  # noqa: N812

    m, n, k = sizes
    dtype = "float8_e4m3fn"
    block_m, block_n, block_k = config.int("block_m"), config.int("block_n"), config.int("block_k")
    num_stages, threads, swizzle = config.int("num_stages"), config.int("threads"), config.int("swizzle")
    policy = warp_policy(config.str("policy"))
    runs = block_k // unpack
    is_moved = not (isinstance(m, int) and (m % block_m == 0 or m < block_m))

    def of_row(A_scale: Any, row: Any) -> Any:  # noqa: N803
        unit = T.float32(UNIT)
        return unit if scales == "none" else unit * A_scale[row if scales == "row" else 0]

    @T.macro
    def program(A: Any, B: Any, S: Any, A_scale: Any, C: Any) -> None:  # noqa: N803
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (bx, by):
            a_tile = T.alloc_shared((block_m, block_k), dtype)
            b_tile = T.alloc_shared((block_n, block_k // 2), "uint8")
            s_tile = T.alloc_shared((1, block_n), output)
            weights = T.alloc_shared((block_n, block_k), dtype)
            c_tile = T.alloc_shared((block_m, block_n), output)
            part = T.alloc_fragment((block_m, block_n), "float32")
            c_sum = T.alloc_fragment((block_m, block_n), "float32")
            packed = T.alloc_local((unpack // 2,), "uint8")
            values = T.alloc_local((unpack,), dtype)
            codes = T.view(packed, (unpack // 4,), "uint16")
            words = T.view(values, (unpack // 4,), "uint32")
            T.use_swizzle(swizzle, enable=swizzle > 0)
            T.clear(c_sum)
            first = T.min(by * block_m, T.max(m - block_m, 0)) if is_moved else by * block_m
            thread = T.get_thread_binding()
            # copies beyond an edge read zeros; those of A cancel any weights beside them
            for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=num_stages):
                T.copy(A[first, ko * block_k], a_tile)
                T.copy(B[bx * block_n, ko * (block_k // 2)], b_tile)
                T.copy(S[0 if group == -1 else ko * block_k // group, bx * block_n], s_tile)
                for step in T.serial(block_n * runs // threads):
                    row = (step * threads + thread) // runs
                    column = (step * threads + thread) % runs * unpack
                    for v in T.vectorized(unpack // 2):
                        packed[v] = b_tile[row, column // 2 + v]
                    for v in T.unroll(unpack // 4):
                        words[v] = spread(T.cast(codes[v], "uint32"))
                        words[v] = float8_of_int4(words[v])
                    for v in T.vectorized(unpack):
                        weights[row, column + v] = values[v]
                T.gemm(a_tile, weights, part, transpose_B=True, policy=policy, clear_accum=True)
                for i, j in T.Parallel(block_m, block_n):
                    c_sum[i, j] += part[i, j] * T.cast(s_tile[0, j], "float32")
            for i, j in T.Parallel(block_m, block_n):
                c_sum[i, j] = c_sum[i, j] * of_row(A_scale, first + i)
            T.copy(c_sum, c_tile)
            T.copy(c_tile, C[first, bx * block_n])

    return program
