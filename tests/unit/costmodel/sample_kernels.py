# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func when it traces it.
"""Small TileLang kernels whose demands can be counted by hand."""

import tilelang.language as T


def matmul(m, n, k, block_m, block_n, block_k, stages, threads, swizzle=0, dtype="bfloat16"):
    @T.prim_func
    def main(A: T.Tensor((m, k), dtype), B: T.Tensor((k, n), dtype), C: T.Tensor((m, n), dtype)):
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (bx, by):
            a = T.alloc_shared((block_m, block_k), dtype)
            b = T.alloc_shared((block_k, block_n), dtype)
            c = T.alloc_fragment((block_m, block_n), "float32")
            T.use_swizzle(swizzle, enable=swizzle > 0)
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=stages):
                T.copy(A[by * block_m, ko * block_k], a)
                T.copy(B[ko * block_k, bx * block_n], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * block_m, bx * block_n])

    return main


def renamed_matmul(rows, columns, depth, tile_r, tile_c, tile_d, buffers, lanes, dtype="bfloat16"):
    """The same kernel with every name changed."""

    @T.prim_func
    def other(X: T.Tensor((rows, depth), dtype), Y: T.Tensor((depth, columns), dtype), Z: T.Tensor((rows, columns), dtype)):
        with T.Kernel(T.ceildiv(columns, tile_c), T.ceildiv(rows, tile_r), threads=lanes) as (p, q):
            left = T.alloc_shared((tile_r, tile_d), dtype)
            right = T.alloc_shared((tile_d, tile_c), dtype)
            total = T.alloc_fragment((tile_r, tile_c), "float32")
            T.clear(total)
            for step in T.Pipelined(T.ceildiv(depth, tile_d), num_stages=buffers):
                T.copy(X[q * tile_r, step * tile_d], left)
                T.copy(Y[step * tile_d, p * tile_c], right)
                T.gemm(left, right, total)
            T.copy(total, Z[q * tile_r, p * tile_c])

    return other


def causal_scores(seq, dim, block_m, block_n, threads=128, dtype="bfloat16"):
    """Q K^T over the keys up to a block's last row: the trip count depends on the block."""

    @T.prim_func
    def main(Q: T.Tensor((seq, dim), dtype), K: T.Tensor((seq, dim), dtype), O: T.Tensor((seq, block_n), "float32")):  # noqa: E741
        with T.Kernel(T.ceildiv(seq, block_m), threads=threads) as bx:
            q = T.alloc_shared((block_m, dim), dtype)
            k = T.alloc_shared((block_n, dim), dtype)
            s = T.alloc_fragment((block_m, block_n), "float32")
            T.copy(Q[bx * block_m, 0], q)
            T.clear(s)
            for step in T.Pipelined(T.ceildiv((bx + 1) * block_m, block_n), num_stages=1):
                T.copy(K[step * block_n, 0], k)
                T.gemm(q, k, s, transpose_B=True)
            T.copy(s, O[bx * block_m, 0])

    return main


def scale(n, block, threads=128, dtype="float32"):
    """y = 2 x: nothing but memory."""

    @T.prim_func
    def main(X: T.Tensor((n,), dtype), Y: T.Tensor((n,), dtype)):
        with T.Kernel(T.ceildiv(n, block), threads=threads) as bx:
            for i in T.Parallel(block):
                Y[bx * block + i] = X[bx * block + i] * 2.0

    return main


def strided_read(rows, threads=128, dtype="float32"):
    """Each lane reads from a row of its own: no two lanes share a sector."""

    @T.prim_func
    def main(X: T.Tensor((rows, 64), dtype), Y: T.Tensor((rows,), dtype)):
        with T.Kernel(T.ceildiv(rows, threads), threads=threads) as bx:
            i = T.get_thread_binding(0)
            Y[bx * threads + i] = X[bx * threads + i, 0]

    return main


def transpose(m, n, block, pad, threads=256, dtype="float32"):
    """Through shared memory, read by columns: conflict-free only with a padded row."""

    @T.prim_func
    def main(X: T.Tensor((m, n), dtype), Y: T.Tensor((n, m), dtype)):
        with T.Kernel(T.ceildiv(n, block), T.ceildiv(m, block), threads=threads) as (bx, by):
            tile = T.alloc_shared((block, block + pad), dtype)
            tx = T.get_thread_binding(0)
            for r in T.serial(block * block // threads):
                tile[(r * threads + tx) // block, (r * threads + tx) % block] = X[
                    by * block + (r * threads + tx) // block, bx * block + (r * threads + tx) % block
                ]
            T.sync_threads()
            for r in T.serial(block * block // threads):
                Y[bx * block + (r * threads + tx) // block, by * block + (r * threads + tx) % block] = tile[
                    (r * threads + tx) % block, (r * threads + tx) // block
                ]

    return main


def exponentials(n, block, threads=128):
    """One exp2 an element."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block), threads=threads) as bx:
            for i in T.Parallel(block):
                Y[bx * block + i] = T.exp2(X[bx * block + i])

    return main


def opaque_call(n, threads=128):
    """A device function that nobody has told us about."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, threads), threads=threads) as bx:
            i = T.get_thread_binding(0)
            Y[bx * threads + i] = T.call_extern("float32", "somebodys_function", X[bx * threads + i])

    return main


def sliding_rows(rows, columns, window):
    """Each block sums rows of its own: the loop starts where the block does."""

    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float32"), Y: T.Tensor((rows // window, columns), "float32")):
        with T.Kernel(rows // window, threads=columns) as bx:
            i = T.get_thread_binding(0)
            total = T.alloc_local((1,), "float32")
            total[0] = 0.0
            for row in T.serial(bx * window, bx * window + window):
                total[0] += X[row, i]
            Y[bx, i] = total[0]

    return main


def thread_quarters(n, threads=128):
    """A chain of conditions that sends each warp its own way."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((n,), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            if i < 32:
                Y[bx * threads + i] = X[bx * threads + i]
            else:
                if i < 64:
                    Y[bx * threads + i] = X[bx * threads + i] * 2.0
                else:
                    Y[bx * threads + i] = X[bx * threads + i] * 3.0

    return main


def counter(n, threads=128):
    """Every element adds to one word."""

    @T.prim_func
    def main(X: T.Tensor((n,), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(n // threads, threads=threads) as bx:
            i = T.get_thread_binding(0)
            T.atomic_add(Y[0], X[bx * threads + i])

    return main


def any_rows(columns=128):
    """A shape that is known only at run time."""
    rows = T.dynamic("rows")

    @T.prim_func
    def main(X: T.Tensor((rows, columns), "float32"), Y: T.Tensor((rows, columns), "float32")):
        with T.Kernel(rows):
            for j in T.serial(columns):
                Y[0, j] = X[0, j] * 2.0

    return main
