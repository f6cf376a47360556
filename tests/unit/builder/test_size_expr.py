"""Sizes that are known when a kernel is called: the C expressions have TVM's values; unsafe forms are
refused.
"""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tilesight.builder.size_expr import SIZE_FUNCTIONS, Expression, UnsupportedSizeError, read_size
from tilesight.machine.toolchain import find_cxx

tilelang = pytest.importorskip("tilelang")
from tvm import tirx  # noqa: E402

M, N = tirx.Var("m", "int32"), tirx.Var("n", "int32")
VALUES = [(1, 1), (7, 64), (127, 128), (128, 127), (129, 3), (2**31 - 65536, 65535)]

# TIR expression, the same in Python
GOOD: list[tuple[Any, Callable[[int, int], int]]] = [
    (tirx.floordiv(M + 127, 128) + N, lambda m, n: (m + 127) // 128 + n),
    (tirx.floordiv(M - 300, 128) + N, lambda m, n: (m - 300) // 128 + n),
    (tirx.floormod(M - 300, 128) + N, lambda m, n: (m - 300) % 128 + n),
    (M * N * 128 + 5, lambda m, n: m * n * 128 + 5),  # beyond 32 bits
    (tirx.Cast("int64", M) * tirx.Cast("int64", N), lambda m, n: m * n),
    (tirx.min(M, N) + tirx.max(M, 100) * 3, lambda m, n: min(m, n) + max(m, 100) * 3),
    (tirx.Select(tirx.all(M > 64, N < 100), M, N * 2), lambda m, n: m if m > 64 and n < 100 else n * 2),
    (
        tirx.if_then_else(tirx.any(M == 1, tirx.Not(N >= 64)), 1, M),
        lambda m, n: 1 if m == 1 or not n >= 64 else m,
    ),
    (tirx.shift_right(M + 63, 6) + tirx.shift_left(N, 3), lambda m, n: ((m + 63) >> 6) + (n << 3)),
]


def test_expressions_in_c_have_the_values_of_tir(tmp_path: Path) -> None:
    cxx = find_cxx()
    assert cxx is not None
    lines = ["#include <stdint.h>", SIZE_FUNCTIONS]
    for i, (expression, _) in enumerate(GOOD):
        found = read_size(expression, (M, N))
        assert isinstance(found, Expression)
        lines.append(f'extern "C" int64_t f{i}(int64_t size_0, int64_t size_1) {{ return {found}; }}')
    (tmp_path / "f.cpp").write_text("\n".join(lines))
    subprocess.run(
        [cxx, "-shared", "-fPIC", "-Wall", "-Werror", "-Wno-unused-function", "f.cpp", "-o", "f.so"],
        cwd=tmp_path,
        check=True,
    )
    library = ctypes.CDLL(str(tmp_path / "f.so"))
    for i, (expression, expected) in enumerate(GOOD):
        function = library[f"f{i}"]
        function.restype, function.argtypes = ctypes.c_int64, [ctypes.c_int64] * 2
        for m, n in VALUES:
            assert function(m, n) == expected(m, n), (expression, m, n)


def test_a_constant_is_a_number() -> None:
    assert read_size(tirx.IntImm("int32", 7), (M,)) == 7
    assert read_size(tirx.IntImm("int32", 7) * 3 + M - M, (M,)) == 21


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        (M + N, "'n' is not known to be a size"),
        (tirx.floordiv(tirx.IntImm("int32", 4096), M), "need not be positive"),
        (tirx.floordiv(M, -3), "need not be positive"),
        (tirx.Cast("int32", tirx.Cast("int64", M) * tirx.IntImm("int64", 2**31)), "may cut digits off"),
        (tirx.Cast("int32", tirx.Cast("float32", M) * 0.5), "is not known to be a size"),
        (tirx.shift_right(M, M), "no shift by a constant"),
        (tirx.call_extern("int32", "rand"), "is not known to be a size"),
    ],
)
def test_expressions_without_a_safe_form_are_refused(expression: Any, message: str) -> None:
    with pytest.raises(UnsupportedSizeError, match=message):
        read_size(expression, (M,))
