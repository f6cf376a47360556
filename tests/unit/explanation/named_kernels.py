"""Kernels whose tensors, buffers and loops have names that findings must say. No `from __future__`: TileLang
reads annotations."""

from typing import Any

# ruff: noqa: N803, N806, N812
import tilelang.language as T


def product(stages: int = 0, threads: int = 128, size: int = 2048) -> Any:
    @T.prim_func
    def main(
        left: T.Tensor((size, size), "float16"),
        right: T.Tensor((size, size), "float16"),
        result: T.Tensor((size, size), "float16"),
    ):
        with T.Kernel(size // 128, size // 128, threads=threads) as (bx, by):
            left_tile = T.alloc_shared((128, 32), "float16")
            right_tile = T.alloc_shared((32, 128), "float16")
            total = T.alloc_fragment((128, 128), "float32")
            T.clear(total)
            for step in T.Pipelined(size // 32, num_stages=stages):
                T.copy(left[by * 128, step * 32], left_tile)
                T.copy(right[step * 32, bx * 128], right_tile)
                T.gemm(left_tile, right_tile, total)
            T.copy(total, result[by * 128, bx * 128])

    return main


def held_over() -> Any:
    """Its loop loads the next tile into registers while it computes, and stores it to shared memory then."""

    @T.prim_func
    def main(
        left: T.Tensor((1024, 1024), "float16"),
        right: T.Tensor((1024, 128), "float16"),
        result: T.Tensor((1024, 128), "float16"),
    ):
        with T.Kernel(8, threads=128) as by:
            left_tile = T.alloc_shared((128, 32), "float16")
            right_tile = T.alloc_shared((32, 128), "float16")
            following = T.alloc_fragment((128, 32), "float16")
            right_following = T.alloc_fragment((32, 128), "float16")
            total = T.alloc_fragment((128, 128), "float32")
            T.clear(total)
            T.copy(left[by * 128, 0], left_tile)
            T.copy(right[0, 0], right_tile)
            for step in T.serial(31):
                T.copy(left[by * 128, (step + 1) * 32], following)
                T.copy(right[(step + 1) * 32, 0], right_following)
                T.gemm(left_tile, right_tile, total)
                T.copy(following, left_tile)
                T.copy(right_following, right_tile)
            T.gemm(left_tile, right_tile, total)
            T.copy(total, result[by * 128, 0])

    return main


def turned(size: int = 2048, block: int = 64) -> Any:
    @T.prim_func
    def main(source: T.Tensor((size, size), "float16"), dest: T.Tensor((size, size), "float16")):
        with T.Kernel(size // block, size // block, threads=128) as (bx, by):
            tile = T.alloc_shared((block, block), "float16")
            T.copy(source[by * block, bx * block], tile)
            for i, j in T.Parallel(block, block):
                dest[bx * block + i, by * block + j] = tile[j, i]

    return main


def columns(rows: int = 8192, width: int = 4096) -> Any:
    """Each thread reads four elements of a row; rows are far apart."""

    @T.prim_func
    def main(
        matrix: T.Tensor((rows, width), "float32"),
        weights: T.Tensor((rows,), "float32"),
        sums: T.Tensor((width,), "float32"),
    ):
        with T.Kernel(width // 4, threads=128) as bx:
            partial = T.alloc_fragment((4, 128), "float32")
            whole = T.alloc_fragment((4,), "float32")
            T.clear(partial)
            for r in T.serial(rows // 128):
                for c, t in T.Parallel(4, 128):
                    partial[c, t] += matrix[r * 128 + t, bx * 4 + c] * weights[r * 128 + t]
            T.reduce_sum(partial, whole, dim=1)
            T.copy(whole, sums[bx * 4])

    return main


def crowded(rows: int = 4096, depth: int = 1024) -> Any:
    """Two fragments of 256 registers a thread each, which no thread has."""

    @T.prim_func
    def main(
        X: T.Tensor((rows, depth), "float16"),
        W: T.Tensor((depth, 256), "float16"),
        Y: T.Tensor((rows, 256), "float16"),
    ):
        with T.Kernel(rows // 128, threads=128) as by:
            X_tile = T.alloc_shared((128, 64), "float16")
            W_tile = T.alloc_shared((64, 256), "float16")
            fresh = T.alloc_fragment((128, 256), "float32")
            decayed = T.alloc_fragment((128, 256), "float32")
            T.clear(decayed)
            for k in T.serial(depth // 64):
                T.copy(X[by * 128, k * 64], X_tile)
                T.copy(W[k * 64, 0], W_tile)
                T.clear(fresh)
                T.gemm(X_tile, W_tile, fresh)
                for i, j in T.Parallel(128, 256):
                    decayed[i, j] = decayed[i, j] * 0.5 + fresh[i, j]
            T.copy(decayed, Y[by * 128, 0])

    return main


def two_products(size: int = 4096, depth: int = 128) -> Any:
    """Its loop also stores what the first product gave to shared memory, for the second one."""

    @T.prim_func
    def main(
        Q: T.Tensor((size, depth), "float16"),
        K: T.Tensor((size, depth), "float16"),
        V: T.Tensor((size, depth), "float16"),
        O: T.Tensor((size, depth), "float16"),  # noqa: E741
    ):
        with T.Kernel(size // 64, threads=128) as b:
            Q_tile = T.alloc_shared((64, depth), "float16")
            K_tile = T.alloc_shared((64, depth), "float16")
            V_tile = T.alloc_shared((64, depth), "float16")
            weights = T.alloc_shared((64, 64), "float16")
            scores = T.alloc_fragment((64, 64), "float32")
            rows = T.alloc_fragment((64, depth), "float32")
            T.copy(Q[b * 64, 0], Q_tile)
            T.clear(rows)
            for block in T.serial(size // 64):
                T.copy(K[block * 64, 0], K_tile)
                T.clear(scores)
                T.gemm(Q_tile, K_tile, scores, transpose_B=True)
                T.copy(scores, weights)
                T.copy(V[block * 64, 0], V_tile)
                T.gemm(weights, V_tile, rows)
            T.copy(rows, O[b * 64, 0])

    return main
