# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func when it traces
# it.
"""Kernels whose amount of work depends on integer tensors."""

import tilelang.language as T


def sequences(batch: int, total: int, dim: int = 128, block: int = 64):
    """Sums over the rows of sequences of different lengths, one sequence a block."""

    @T.prim_func
    def kernel(
        X: T.Tensor((total, dim), "float16"),
        Starts: T.Tensor((batch + 1,), "int32"),
        Out: T.Tensor((batch, dim), "float32"),
    ):
        with T.Kernel(batch, threads=128) as b:
            tile = T.alloc_shared((block, dim), "float16")
            sums = T.alloc_fragment((dim,), "float32")
            T.clear(sums)
            kv_len = Starts[b + 1] - Starts[b]
            for i in T.Pipelined(T.ceildiv(kv_len, block), num_stages=2):
                T.copy(X[Starts[b] + i * block, 0], tile)
                for j in T.Parallel(dim):
                    sums[j] += tile[0, j]
            T.copy(sums, Out[b, :])

    return kernel


def grouped(groups: int, rows: int, dim: int, block: int = 64):
    """A product whose right side is chosen by the group of the rows, which a loop over offsets finds."""

    @T.prim_func
    def kernel(
        A: T.Tensor((rows, dim), "float16"),
        B: T.Tensor((groups, dim, dim), "float16"),
        Ends: T.Tensor((groups,), "int32"),
        C: T.Tensor((rows, dim), "float16"),
    ):
        with T.Kernel(dim // block, rows // block, threads=128) as (bx, by):
            a = T.alloc_shared((block, block), "float16")
            b = T.alloc_shared((block, block), "float16")
            c = T.alloc_fragment((block, block), "float32")
            group = T.alloc_var("int32")
            group = 0
            for g in range(groups):
                if by * block >= Ends[g]:
                    group = g + 1
            T.clear(c)
            for k in T.Pipelined(dim // block, num_stages=2):
                T.copy(A[by * block, k * block], a)
                T.copy(B[group, k * block, bx * block], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * block, bx * block])

    return kernel


def masked(rows: int, dim: int, block: int = 64):
    """A product of the tiles that a mask chooses."""

    @T.prim_func
    def kernel(
        A: T.Tensor((rows, dim), "float16"),
        B: T.Tensor((dim, dim), "float16"),
        Mask: T.Tensor((rows // block, dim // block), "int8"),
        C: T.Tensor((rows, dim), "float16"),
    ):
        with T.Kernel(dim // block, rows // block, threads=128) as (bx, by):
            a = T.alloc_shared((block, block), "float16")
            b = T.alloc_shared((block, block), "float16")
            c = T.alloc_fragment((block, block), "float32")
            T.clear(c)
            if Mask[by, bx] != 0:
                for k in T.Pipelined(dim // block, num_stages=2):
                    T.copy(A[by * block, k * block], a)
                    T.copy(B[k * block, bx * block], b)
                    T.gemm(a, b, c)
            T.copy(c, C[by * block, bx * block])

    return kernel
