"""Kernels as users write them, for the tests of autotune. No `from __future__`: TileLang reads
annotations."""

from typing import Any

# ruff: noqa: N803, N806, N812
import tilelang
import tilelang.language as T
import torch


def sum_of(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return a + b


def add_factory(n: int, block: int = 16, wrong: bool = False) -> Any:
    """c = a + b; with `wrong` it is not."""
    factor = 2.0 if wrong else 1.0

    @T.prim_func
    def add(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32"), C: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                C[bx * block + i] = A[bx * block + i] + B[bx * block + i] * T.float32(factor)

    return add


def accumulate_factory(n: int, block: int = 16) -> Any:
    """y += 3 x, with its output before its input."""

    @T.prim_func
    def accumulate(Y: T.Tensor((n,), "int32"), X: T.Tensor((n,), "int8")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                Y[bx * block + i] = Y[bx * block + i] + T.cast(X[bx * block + i], "int32") * 3

    return accumulate


def eager_add(A, B, block: int = 16):  # type: ignore[no-untyped-def]
    N = T.const("N")
    A: T.Tensor[[N], T.float32]  # type: ignore[no-redef]
    B: T.Tensor[[N], T.float32]  # type: ignore[no-redef]
    C = T.empty([N], T.float32)
    with T.Kernel(T.ceildiv(N, block)) as bx:
        for i in T.serial(block):
            C[bx * block + i] = A[bx * block + i] + B[bx * block + i]
    return C


def jitted_add() -> Any:
    return tilelang.jit(out_idx=[-1], target="c")(add_factory)


def dynamic_factory(block: int = 16) -> Any:
    n = T.dynamic("n")

    @T.prim_func
    def copy(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i]

    return copy


def scalar_factory(n: int, block: int = 16) -> Any:
    @T.prim_func
    def shift(A: T.Tensor((n,), "float32"), s: T.float32, B: T.Tensor((n,), "float32")):
        with T.Kernel(T.ceildiv(n, block)) as bx:
            for i in T.serial(block):
                B[bx * block + i] = A[bx * block + i] + s

    return shift


def sum_of_a_file(a: torch.Tensor, b: torch.Tensor, zero: str) -> torch.Tensor:
    """`sum_of` with a file that is there or not."""
    return sum_of(a, b) + torch.load(zero)


def rows_factory(width: int, block: int = 8, wrong: bool = False) -> Any:
    """B = A * s + offset, for any number of rows; with `wrong` another one."""
    m = T.dynamic("m")
    more = 1 if wrong else 0

    @T.prim_func
    def rows(
        A: T.Tensor((m, width), "float32"), s: T.float32, offset: T.int32, B: T.Tensor((m, width), "float32")
    ):
        with T.Kernel(T.ceildiv(m, block)) as bx:
            for i, j in T.grid(block, width):
                if bx * block + i < m:
                    B[bx * block + i, j] = A[bx * block + i, j] * s + offset + more

    return rows


def eager_rows(A, s: T.float32, block: int = 8):  # type: ignore[no-untyped-def]
    m = T.dynamic("m")
    N = T.const("N")
    A: T.Tensor[[m, N], T.float32]  # type: ignore[no-redef]
    B = T.empty([m, N], T.float32)
    with T.Kernel(T.ceildiv(m, block)) as bx:
        for i, j in T.grid(block, N):
            if bx * block + i < m:
                B[bx * block + i, j] = A[bx * block + i, j] * s
    return B


def scaled(a: torch.Tensor, s: float, offset: int) -> torch.Tensor:
    return a * s + offset
