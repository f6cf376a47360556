"""A file of a user's kernels, which the tests give as `kernels_of_a_user.py:name`. No `from __future__`:
TileLang reads annotations."""

import os
import sys
from typing import Any

# ruff: noqa: N803, N806, N812
import tilelang
import tilelang.language as T

import tilesight

NUMBER = 3
if os.environ.get("TILESIGHT_TEST_FILE_ENDS"):
    sys.exit(4)


def copy(n: int, block: int = 1024, dtype: str = "float32") -> Any:
    @T.prim_func
    def main(A: T.Tensor((n,), dtype), B: T.Tensor((n,), dtype)):
        with T.Kernel(T.ceildiv(n, block), threads=256) as b:
            for i in T.Parallel(block):
                B[b * block + i] = A[b * block + i]

    return main


jitted = tilelang.jit(out_idx=[-1], pass_configs={"tl.disable_tma_lower": True})(copy)
whole = copy(1 << 24)


def stepped(n: int, block: int) -> Any:
    if n % block:
        raise ValueError(f"no tile of {block}")
    return copy(n, block)


CONFIGS = [{"block": 2048}, {"block": 512}, {"block": 1000}]


@tilelang.autotune(configs=CONFIGS)
@tilelang.jit(out_idx=[-1])
def listed(n: int, block: int = 0) -> Any:
    return stepped(n, block)


@tilesight.autotune(configs=CONFIGS)
@tilelang.jit(out_idx=[-1])
def listed_here(n: int, block: int = 0) -> Any:
    return stepped(n, block)


@tilelang.autotune(configs=lambda n: [{"block": n // 4}, {"block": n // 2}])
@tilelang.jit(out_idx=[-1])
def made(n: int, block: int = 0) -> Any:
    return stepped(n, block)


def exponentials(n: int) -> Any:
    @T.prim_func
    def main(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, 1024), threads=256) as b:
            for i in T.Parallel(1024):
                B[b * 1024 + i] = T.exp(A[b * 1024 + i])

    return main


@tilelang.autotune(
    configs=[{"pass_configs": {}}, {"pass_configs": {tilelang.PassConfigKey.TL_ENABLE_FAST_MATH: True}}]
)
@tilelang.jit(out_idx=[-1])
def with_passes(n: int) -> Any:
    return exponentials(n)


def rows(width: int) -> Any:
    """Its number of rows, a factor and an offset are known at run time."""
    m = T.dynamic("m")

    @T.prim_func
    def scale(
        A: T.Tensor((m, width), "float32"), s: T.float32, offset: T.int32, B: T.Tensor((m, width), "float32")
    ):
        with T.Kernel(T.ceildiv(m, 8), threads=128) as b:
            for i, j in T.Parallel(8, width):
                B[b * 8 + i, j] = A[b * 8 + i, j] * s + offset

    return scale


open_rows = rows(128)


N = 1 << 16


@T.prim_func
def two_weights(
    w_0: T.Tensor((N,), "float32"),
    w_1: T.Tensor((N,), "float32"),
    out: T.Tensor((N,), "float32"),
    rank: T.int32,
):
    """Of one device, with names that kernels of several devices have too."""
    with T.Kernel(N // 1024, threads=256) as b:
        for i in T.Parallel(1024):
            out[b * 1024 + i] = w_0[b * 1024 + i] * rank + w_1[b * 1024 + i]


@T.prim_func
def other_names(
    w: T.Tensor((N,), "float32"),
    v: T.Tensor((N,), "float32"),
    out: T.Tensor((N,), "float32"),
    factor: T.int32,
):
    with T.Kernel(N // 1024, threads=256) as b:
        for i in T.Parallel(1024):
            out[b * 1024 + i] = w[b * 1024 + i] * factor + v[b * 1024 + i]


def pairs() -> Any:
    """The length of its tensors is twice a number that is known at run time."""
    n = T.dynamic("n")

    @T.prim_func
    def negate(A: T.Tensor((2 * n,), "float32"), B: T.Tensor((2 * n,), "float32")):
        with T.Kernel(T.ceildiv(2 * n, 256), threads=128) as b:
            for i in T.Parallel(256):
                B[b * 256 + i] = -A[b * 256 + i]

    return negate


@tilelang.jit
def eager(A, B, block: int = 1024):  # type: ignore[no-untyped-def]
    N = T.const("N")
    A: T.Tensor[[N], T.float32]  # type: ignore[no-redef]
    B: T.Tensor[[N], T.float32]  # type: ignore[no-redef]
    C = T.empty([N], T.float32)
    with T.Kernel(T.ceildiv(N, block), threads=256) as b:
        for i in T.Parallel(block):
            C[b * block + i] = A[b * block + i] + B[b * block + i]
    return C


def raises(n: int) -> Any:
    raise ValueError(f"no tile of {n}")


def aborts() -> None:
    os.abort()


def nothing() -> None: ...
