# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func when it traces
# it.
"""Small TileLang kernels that compute with fragments in several steps."""

import tilelang.language as T

ROWS, COLUMNS, THREADS = 128, 64, 128  # 64 values a thread


def gated(threads=THREADS):
    """Each value times its sigmoid, which is kept in a fragment of its own."""

    @T.prim_func
    def main(X: T.Tensor((ROWS, COLUMNS), "float32"), Y: T.Tensor((ROWS, COLUMNS), "float32")):
        with T.Kernel(1, threads=threads) as _:
            values = T.alloc_fragment((ROWS, COLUMNS), "float32")
            gates = T.alloc_fragment((ROWS, COLUMNS), "float32")
            T.copy(X, values)
            for i, j in T.Parallel(ROWS, COLUMNS):
                gates[i, j] = 1.0 / (1.0 + T.exp2(-values[i, j]))
            for i, j in T.Parallel(ROWS, COLUMNS):
                values[i, j] = values[i, j] * gates[i, j]
            T.copy(values, Y)

    return main


def in_halves(threads=THREADS):
    """Each thread takes the exponentials of half of its values, and then of the others."""
    half = COLUMNS // 2

    @T.prim_func
    def main(X: T.Tensor((ROWS, COLUMNS), "float32"), Y: T.Tensor((ROWS, COLUMNS), "float32")):
        with T.Kernel(1, threads=threads) as _:
            tx = T.get_thread_binding()
            values = T.alloc_local((COLUMNS,), "float32")
            first = T.alloc_local((half,), "float32")
            second = T.alloc_local((half,), "float32")
            for i in T.unroll(COLUMNS):
                values[i] = X[tx, i]
            for i in T.unroll(half):
                first[i] = T.exp2(values[i])
            T.sync_threads()
            for i in T.unroll(half):
                Y[tx, i] = first[i]
            for i in T.unroll(half):
                second[i] = T.exp2(values[half + i])
            T.sync_threads()
            for i in T.unroll(half):
                Y[tx, half + i] = second[i]

    return main


def padded_product(threads, kept, rows=64):
    """A tile of `rows` rows times a tile, of which only the first `kept` rows are stored."""

    @T.prim_func
    def main(
        A: T.Tensor((rows, 64), "bfloat16"),
        B: T.Tensor((64, 64), "bfloat16"),
        Y: T.Tensor((rows, 64), "float32"),
    ):
        with T.Kernel(1, threads=threads) as _:
            left = T.alloc_shared((rows, 64), "bfloat16")
            right = T.alloc_shared((64, 64), "bfloat16")
            sums = T.alloc_fragment((rows, 64), "float32")
            T.copy(A, left, disable_tma=True)
            T.copy(B, right, disable_tma=True)
            T.gemm(left, right, sums, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
            for i, j in T.Parallel(rows, 64):
                sums[i, j] = T.exp2(sums[i, j])
            for i, j in T.Parallel(rows, 64):
                if i < kept:
                    Y[i, j] = sums[i, j]

    return main


def on_the_diagonal(nested, rows=64, dtype="float32"):
    """Each value with a number from shared memory added: on the diagonal, below it or everywhere."""

    @T.prim_func
    def main(
        X: T.Tensor((rows, rows), dtype),
        D: T.Tensor((1,), dtype),
        Y: T.Tensor((rows, rows), dtype),
    ):
        with T.Kernel(1, threads=THREADS) as _:
            own = T.alloc_shared((1,), dtype)
            values = T.alloc_fragment((rows, rows), dtype)
            T.copy(X, values)
            for i in T.Parallel(1):
                own[i] = D[i]
            for i, j in T.Parallel(rows, rows):
                if nested:
                    values[i, j] = T.if_then_else(j > i, 0, values[i, j] + T.if_then_else(i == j, own[0], 0))
                else:
                    values[i, j] = values[i, j] + T.if_then_else(i == j, own[0], 0)
            T.copy(values, Y)

    return main


def stripes(width, rows=256):
    """A block moves `width` columns of a matrix of 1,024 columns."""

    @T.prim_func
    def main(X: T.Tensor((rows, 1024), "float32"), Y: T.Tensor((rows, 1024), "float32")):
        with T.Kernel(1024 // width, threads=THREADS) as stripe:
            values = T.alloc_fragment((rows, width), "float32")
            T.copy(X[0:rows, stripe * width : (stripe + 1) * width], values, disable_tma=True)
            T.copy(values, Y[0:rows, stripe * width : (stripe + 1) * width], disable_tma=True)

    return main
