"""A pipeline of cp.async copies in a loop whose number of iterations depends on the block.

As in causal attention, an iteration copies two tiles and uses the first one before the second one.
"""

import tilelang.language as T
from obstacle import expect_error

BLOCKS, TILE = 8, 64


@T.prim_func
def attention(
    K: T.Tensor((BLOCKS * TILE, TILE), "bfloat16"),
    V: T.Tensor((BLOCKS * TILE, TILE), "bfloat16"),
    Out: T.Tensor((BLOCKS * TILE, TILE), "float32"),
):
    with T.Kernel(BLOCKS, threads=128) as block:
        q = T.alloc_shared((TILE, TILE), "bfloat16")
        k = T.alloc_shared((TILE, TILE), "bfloat16")
        v = T.alloc_shared((TILE, TILE), "bfloat16")
        scores = T.alloc_fragment((TILE, TILE), "float32")
        weights = T.alloc_fragment((TILE, TILE), "bfloat16")
        out = T.alloc_fragment((TILE, TILE), "float32")
        T.copy(K[block * TILE, 0], q)
        T.clear(out)
        for step in T.Pipelined(block + 1, num_stages=2):
            T.copy(K[step * TILE, 0], k)
            T.gemm(q, k, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
            T.copy(scores, weights)
            T.copy(V[step * TILE, 0], v)
            T.gemm(weights, v, out, policy=T.GemmWarpPolicy.FullRow)
        T.copy(out, Out[block * TILE, 0])


if __name__ == "__main__":
    expect_error(attention, "a100", "Downcast from tirx.Sub to ir.IntImm failed")
