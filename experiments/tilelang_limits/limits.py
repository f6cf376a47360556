"""Obstacles of TileLang 0.1.15 that the templates go around, as small kernels: `python limits.py`.

Lowers each kernel, without a GPU, and prints whether the obstacle is still there. The exit code is the number
of obstacles that are gone, so that a later version of TileLang can be judged.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import tilelang.language as T

from tilesight.lowering.lower import lower
from tilesight.target.spec import load_target


def narrow_wgmma() -> Any:
    """Two warpgroups side by side on a tile of 16 columns: 8 columns for each."""

    @T.prim_func
    def kernel(
        a: T.Tensor((128, 64), "bfloat16"),
        b: T.Tensor((64, 32), "bfloat16"),
        c: T.Tensor((128, 32), "float32"),
    ):
        with T.Kernel(2, 2, threads=256) as (i, j):
            a_tile = T.alloc_shared((64, 64), "bfloat16")
            b_tile = T.alloc_shared((64, 16), "bfloat16")
            total = T.alloc_fragment((64, 16), "float32")
            T.copy(a[i * 64, 0], a_tile)
            T.copy(b[0, j * 16], b_tile)
            T.gemm(a_tile, b_tile, total, clear_accum=True)
            T.copy(total, c[i * 64, j * 16])

    return kernel


def weights_of_two_warpgroups() -> Any:
    """Weights of 256 rows pass from one product to the next in registers of two warpgroups."""

    @T.prim_func
    def kernel(
        q: T.Tensor((256, 64), "bfloat16"),
        k: T.Tensor((64, 64), "bfloat16"),
        v: T.Tensor((64, 64), "bfloat16"),
        out: T.Tensor((256, 64), "float32"),
    ):
        with T.Kernel(2, threads=256) as _:
            q_tile = T.alloc_shared((256, 64), "bfloat16")
            k_tile = T.alloc_shared((64, 64), "bfloat16")
            v_tile = T.alloc_shared((64, 64), "bfloat16")
            scores = T.alloc_fragment((256, 64), "float32")
            weights = T.alloc_fragment((256, 64), "bfloat16")
            total = T.alloc_fragment((256, 64), "float32")
            T.copy(q, q_tile)
            T.copy(k, k_tile)
            T.copy(v, v_tile)
            T.gemm(
                q_tile, k_tile, scores, transpose_B=True, policy=T.GemmWarpPolicy.FullRow, clear_accum=True
            )
            T.copy(scores, weights)
            T.gemm(weights, v_tile, total, policy=T.GemmWarpPolicy.FullRow, clear_accum=True)
            T.copy(total, out)

    return kernel


def wide_reduction() -> Any:
    """Eight warps side by side, each with 16 columns of a product, and the maximum of each row."""

    @T.prim_func
    def kernel(
        a: T.Tensor((16, 64), "bfloat16"),
        b: T.Tensor((128, 64), "bfloat16"),
        c: T.Tensor((16,), "float32"),
    ):
        with T.Kernel(2, threads=256) as _:
            a_tile = T.alloc_shared((16, 64), "bfloat16")
            b_tile = T.alloc_shared((128, 64), "bfloat16")
            scores = T.alloc_fragment((16, 128), "float32")
            most = T.alloc_fragment((16,), "float32")
            T.copy(a, a_tile)
            T.copy(b, b_tile)
            T.gemm(a_tile, b_tile, scores, transpose_B=True, clear_accum=True)
            T.reduce_max(scores, most, dim=1)
            T.copy(most, c)

    return kernel


CASES: tuple[tuple[str, str, Callable[[], Any]], ...] = (
    ("wgmma with 8 columns of a warpgroup", "h100", narrow_wgmma),
    ("weights of two warpgroups with 128 rows each", "h100", weights_of_two_warpgroups),
    ("reduction over eight warps of 16 columns", "h100", wide_reduction),
)


def main() -> None:
    gone = 0
    for title, target, make in CASES:
        try:
            lower(make(), load_target(target))
        except Exception as error:
            text = str(error).strip().splitlines() or [type(error).__name__]
            print(f"{title}: still there on {target}: {text[-1][:160]}")
        else:
            gone += 1
            print(f"{title}: gone on {target}")
    sys.exit(gone)


if __name__ == "__main__":
    main()
