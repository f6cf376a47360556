"""The largest score of each row, where the columns of a row are divided over eight warps, 16 for each."""

import tilelang.language as T
from obstacle import expect_error

ROWS, KEYS, DEPTH = 16, 128, 64


@T.prim_func
def largest(
    Q: T.Tensor((ROWS, DEPTH), "bfloat16"),
    K: T.Tensor((KEYS, DEPTH), "bfloat16"),
    Out: T.Tensor((ROWS,), "float32"),
):
    with T.Kernel(1, threads=256):
        q = T.alloc_shared((ROWS, DEPTH), "bfloat16")
        k = T.alloc_shared((KEYS, DEPTH), "bfloat16")
        scores = T.alloc_fragment((ROWS, KEYS), "float32")
        row_max = T.alloc_fragment((ROWS,), "float32")
        T.copy(Q, q)
        T.copy(K, k)
        T.gemm(q, k, scores, transpose_B=True, clear_accum=True)
        T.reduce_max(scores, row_max, dim=1)
        T.copy(row_max, Out)


if __name__ == "__main__":
    expect_error(largest, "a100", "ReduceOp cannot lower")
