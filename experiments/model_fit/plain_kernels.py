# No `from __future__ import annotations`: TileLang evaluates the annotations of a prim_func when it traces
# it.
"""Two kernels that are simpler than the project's templates, on which constants of the model were fitted."""

import tilelang.language as T


def matmul(m, n, k, block_m, block_n, block_k, stages, threads, policy, swizzle, dtype="bfloat16"):
    policy = getattr(T.GemmWarpPolicy, policy)

    @T.prim_func
    def main(A: T.Tensor((m, k), dtype), B: T.Tensor((k, n), dtype), C: T.Tensor((m, n), dtype)):
        with T.Kernel(T.ceildiv(n, block_n), T.ceildiv(m, block_m), threads=threads) as (bx, by):
            a = T.alloc_shared((block_m, block_k), dtype)
            b = T.alloc_shared((block_k, block_n), dtype)
            c = T.alloc_fragment((block_m, block_n), "float32")
            c_tile = T.alloc_shared((block_m, block_n), dtype)
            T.use_swizzle(max(swizzle, 1), enable=swizzle > 0)
            T.clear(c)
            for ko in T.Pipelined(T.ceildiv(k, block_k), num_stages=stages):
                T.copy(A[by * block_m, ko * block_k], a)
                T.copy(B[ko * block_k, bx * block_n], b)
                T.gemm(a, b, c, policy=policy)
            T.copy(c, c_tile)
            T.copy(c_tile, C[by * block_m, bx * block_n])

    return main


def attention(batch, heads, seq, dim, causal, block_m, block_n, stages, threads, dtype="bfloat16"):
    """Attention; `seq` must be a multiple of both tiles."""
    scale = dim**-0.5 * 1.44269504
    shape = (batch, seq, heads, dim)
    rows = T.GemmWarpPolicy.FullRow

    @T.prim_func
    def main(
        Q: T.Tensor(shape, dtype),
        K: T.Tensor(shape, dtype),
        V: T.Tensor(shape, dtype),
        O: T.Tensor(shape, dtype),  # noqa: E741
    ):
        with T.Kernel(T.ceildiv(seq, block_m), heads, batch, threads=threads) as (bx, by, bz):
            q = T.alloc_shared((block_m, dim), dtype)
            k = T.alloc_shared((block_n, dim), dtype)
            v = T.alloc_shared((block_n, dim), dtype)
            o = T.alloc_shared((block_m, dim), dtype)
            scores = T.alloc_fragment((block_m, block_n), "float32")
            weights = T.alloc_fragment((block_m, block_n), dtype)
            total = T.alloc_fragment((block_m, dim), "float32")
            top = T.alloc_fragment((block_m,), "float32")
            old_top = T.alloc_fragment((block_m,), "float32")
            rescale = T.alloc_fragment((block_m,), "float32")
            tile_sum = T.alloc_fragment((block_m,), "float32")
            row_sum = T.alloc_fragment((block_m,), "float32")
            T.copy(Q[bz, bx * block_m : (bx + 1) * block_m, by, :], q)
            T.fill(total, 0)
            T.fill(row_sum, 0)
            T.fill(top, -T.infinity("float32"))
            trips = (
                T.min(T.ceildiv(seq, block_n), T.ceildiv((bx + 1) * block_m, block_n))
                if causal
                else T.ceildiv(seq, block_n)
            )
            for step in T.Pipelined(trips, num_stages=stages):
                T.copy(K[bz, step * block_n : (step + 1) * block_n, by, :], k)
                if causal:
                    for i, j in T.Parallel(block_m, block_n):
                        scores[i, j] = T.if_then_else(
                            bx * block_m + i >= step * block_n + j, 0, -T.infinity("float32")
                        )
                else:
                    T.clear(scores)
                T.gemm(q, k, scores, transpose_B=True, policy=rows)
                T.copy(top, old_top)
                T.fill(top, -T.infinity("float32"))
                T.reduce_max(scores, top, dim=1, clear=False)
                for i in T.Parallel(block_m):
                    top[i] = T.max(top[i], old_top[i])
                for i in T.Parallel(block_m):
                    rescale[i] = T.exp2(old_top[i] * scale - top[i] * scale)
                for i, j in T.Parallel(block_m, block_n):
                    scores[i, j] = T.exp2(scores[i, j] * scale - top[i] * scale)
                T.reduce_sum(scores, tile_sum, dim=1)
                for i in T.Parallel(block_m):
                    row_sum[i] = row_sum[i] * rescale[i] + tile_sum[i]
                T.copy(scores, weights)
                for i, j in T.Parallel(block_m, dim):
                    total[i, j] *= rescale[i]
                T.copy(V[bz, step * block_n : (step + 1) * block_n, by, :], v)
                T.gemm(weights, v, total, policy=rows)
            for i, j in T.Parallel(block_m, dim):
                total[i, j] /= row_sum[i]
            T.copy(total, o)
            T.copy(o, O[bz, bx * block_m : (bx + 1) * block_m, by, :])

    return main


def build(kind, shape, config):
    """The PrimFunc of one row of rows.csv."""
    return matmul(*shape, *config) if kind == "matmul" else attention(*shape, *config)
