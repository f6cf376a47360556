"""A wgmma on 8 columns of a shared tile whose rows lie along its columns: two warpgroups share 16 columns."""

import tilelang.language as T
from obstacle import expect_error

ROWS, COLS, DEPTH = 64, 16, 64


@T.prim_func
def product(
    A: T.Tensor((ROWS, DEPTH), "bfloat16"),
    B: T.Tensor((DEPTH, COLS), "bfloat16"),
    C: T.Tensor((ROWS, COLS), "float32"),
):
    with T.Kernel(1, threads=256):
        a = T.alloc_shared((ROWS, DEPTH), "bfloat16")
        b = T.alloc_shared((DEPTH, COLS), "bfloat16")
        c = T.alloc_fragment((ROWS, COLS), "float32")
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, c, clear_accum=True)
        T.copy(c, C)


if __name__ == "__main__":
    expect_error(product, "h100", "Not a canonical GMMA_MN layout")
