"""Weights in registers pass from one product to the next, and each of two warpgroups has 128 rows of them."""

import tilelang.language as T
from obstacle import expect_error

ROWS, KEYS, WIDTH = 256, 64, 64


@T.prim_func
def attention(
    Q: T.Tensor((ROWS, WIDTH), "bfloat16"),
    K: T.Tensor((KEYS, WIDTH), "bfloat16"),
    V: T.Tensor((KEYS, WIDTH), "bfloat16"),
    Out: T.Tensor((ROWS, WIDTH), "float32"),
):
    with T.Kernel(1, threads=256):
        q = T.alloc_shared((ROWS, WIDTH), "bfloat16")
        k = T.alloc_shared((KEYS, WIDTH), "bfloat16")
        v = T.alloc_shared((KEYS, WIDTH), "bfloat16")
        scores = T.alloc_fragment((ROWS, KEYS), "float32")
        weights = T.alloc_fragment((ROWS, KEYS), "bfloat16")
        out = T.alloc_fragment((ROWS, WIDTH), "float32")
        T.copy(Q, q)
        T.copy(K, k)
        T.copy(V, v)
        T.gemm(q, k, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
        T.copy(scores, weights)
        T.gemm(weights, v, out, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
        T.copy(out, Out)


if __name__ == "__main__":
    expect_error(attention, "h100", "Layout infer conflict between scores and weights")
