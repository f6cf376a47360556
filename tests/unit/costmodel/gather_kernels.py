# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func when it traces
# it.
"""Kernels whose addresses depend on loaded data."""

import tilelang.language as T


def embedding(table: int, dim: int, picks: int):
    """Copies of chosen rows, four rows a block."""

    @T.prim_func
    def kernel(
        Table: T.Tensor((table, dim), "float32"),
        Index: T.Tensor((picks,), "int32"),
        Out: T.Tensor((picks, dim), "float32"),
    ):
        with T.Kernel(picks // 4, threads=128) as b:
            for r, j in T.Parallel(4, dim):
                Out[b * 4 + r, j] = Table[Index[b * 4 + r], j]

    return kernel


def elements(table: int, picks: int):
    """Copies of chosen single elements."""

    @T.prim_func
    def kernel(
        Table: T.Tensor((table,), "float32"),
        Index: T.Tensor((picks,), "int32"),
        Out: T.Tensor((picks,), "float32"),
    ):
        with T.Kernel(picks // 1024, threads=128) as b:
            for j in T.Parallel(1024):
                Out[b * 1024 + j] = Table[Index[b * 1024 + j]]

    return kernel


def scatter(table: int, dim: int, picks: int):
    """Rows that are stored at chosen places."""

    @T.prim_func
    def kernel(
        Rows: T.Tensor((picks, dim), "float32"),
        Index: T.Tensor((picks,), "int32"),
        Table: T.Tensor((table, dim), "float32"),
    ):
        with T.Kernel(picks // 4, threads=128) as b:
            for r, j in T.Parallel(4, dim):
                Table[Index[b * 4 + r], j] = Rows[b * 4 + r, j]

    return kernel


def histogram(bins: int, picks: int):
    """Atomic additions at chosen places."""

    @T.prim_func
    def kernel(Index: T.Tensor((picks,), "int32"), Bins: T.Tensor((bins,), "float32")):
        with T.Kernel(picks // 1024, threads=128) as b:
            for j in T.Parallel(1024):
                T.atomic_add(Bins[Index[b * 1024 + j]], 1.0)

    return kernel


def token_matmul(tokens: int, k: int, n: int, picks: int, staged: bool):
    """Products of chosen tokens (mixture of experts); `staged`: their numbers are copied to shared memory."""

    @T.prim_func
    def kernel(
        X: T.Tensor((tokens, k), "float16"),
        Index: T.Tensor((picks,), "int32"),
        W: T.Tensor((k, n), "float16"),
        Out: T.Tensor((picks, n), "float16"),
    ):
        with T.Kernel(n // 128, picks // 64, threads=128) as (bn, bm):
            x = T.alloc_shared((64, 64), "float16")
            w = T.alloc_shared((64, 128), "float16")
            index = T.alloc_shared((64,), "int32")
            out = T.alloc_fragment((64, 128), "float32")
            if staged:
                T.copy(Index[bm * 64 : (bm + 1) * 64], index)
            T.clear(out)
            for step in T.Pipelined(k // 64, num_stages=2):
                for i, j in T.Parallel(64, 64):
                    if staged:
                        x[i, j] = X[index[i], step * 64 + j]
                    else:
                        x[i, j] = X[Index[bm * 64 + i], step * 64 + j]
                T.copy(W[step * 64, bn * 128], w)
                T.gemm(x, w, out)
            T.copy(out, Out[bm * 64, bn * 128])

    return kernel


def paged_scores(batch: int, heads: int, pages: int, total: int, page: int, dim: int):
    """Scores of each query with the pages of keys that its block table names."""

    @T.prim_func
    def kernel(
        Q: T.Tensor((batch, heads, dim), "float16"),
        K: T.Tensor((total, page, dim), "float16"),
        block_table: T.Tensor((batch, pages), "int32"),
        Out: T.Tensor((batch, heads, page), "float32"),
    ):
        with T.Kernel(batch, threads=128) as b:
            q = T.alloc_shared((heads, dim), "float16")
            keys = T.alloc_shared((page, dim), "float16")
            scores = T.alloc_fragment((heads, page), "float32")
            T.copy(Q[b, 0, 0], q)
            T.clear(scores)
            for p in T.Pipelined(pages, num_stages=2):
                T.copy(K[block_table[b, p], 0, 0], keys)
                T.gemm(q, keys, scores, transpose_B=True)
            T.copy(scores, Out[b, 0, 0])

    return kernel


def row_by_row(table: int, dim: int, picks: int):
    """Copies of chosen rows in plain loops, with the number of the row in a variable."""

    @T.prim_func
    def kernel(
        Table: T.Tensor((table, dim), "float32"),
        Index: T.Tensor((picks,), "int32"),
        Out: T.Tensor((picks, dim), "float32"),
    ):
        with T.Kernel(picks, threads=1) as b:
            row = Index[b]
            for j in T.serial(dim):
                Out[b, j] = Table[row, j]

    return kernel


def two_steps(table: int, dim: int, picks: int):
    """Copies of rows that a table of numbers names for each chosen number."""

    @T.prim_func
    def kernel(
        Table: T.Tensor((table, dim), "float32"),
        Page: T.Tensor((table,), "int32"),
        Index: T.Tensor((picks,), "int32"),
        Out: T.Tensor((picks, dim), "float32"),
    ):
        with T.Kernel(picks // 4, threads=128) as b:
            for r, j in T.Parallel(4, dim):
                Out[b * 4 + r, j] = Table[Page[Index[b * 4 + r]], j]

    return kernel


def through_registers(table: int, dim: int, picks: int, variable: bool):
    """Copies of chosen rows whose numbers are kept in a fragment, or in a local variable."""

    @T.prim_func
    def kernel(
        Table: T.Tensor((table, dim), "float32"),
        Index: T.Tensor((picks,), "int32"),
        Out: T.Tensor((picks, dim), "float32"),
    ):
        with T.Kernel(picks // 4, threads=128) as b:
            if variable:
                row = T.alloc_var("int32")
                for r in T.serial(4):
                    row = Index[b * 4 + r]
                    for j in T.Parallel(dim):
                        Out[b * 4 + r, j] = Table[row, j]
            else:
                index = T.alloc_fragment((4,), "int32")
                T.copy(Index[b * 4 : b * 4 + 4], index)
                for r, j in T.Parallel(4, dim):
                    Out[b * 4 + r, j] = Table[index[r], j]

    return kernel


def row_numbers_first(table: int, dim: int, picks: int):
    """Copies of chosen rows in plain loops, whose numbers are first copied to a local array."""

    @T.prim_func
    def kernel(
        Table: T.Tensor((table, dim), "float32"),
        Index: T.Tensor((picks,), "int32"),
        Out: T.Tensor((picks, dim), "float32"),
    ):
        with T.Kernel(picks // 4, threads=1) as b:
            index = T.alloc_local((4,), "int32")
            for r in T.serial(4):
                index[r] = Index[b * 4 + r]
            for r in T.serial(4):
                for j in T.serial(dim):
                    Out[b * 4 + r, j] = Table[index[r], j]

    return kernel
