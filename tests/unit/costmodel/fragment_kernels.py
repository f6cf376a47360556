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
