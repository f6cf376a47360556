"""Matrix instructions, and the loads and stores that move their operands between shared memory and registers."""

from __future__ import annotations

import re
from typing import Any

from ...profile import MatrixWork
from .accesses import matrix_access
from .book import Book, text
from .dtypes import MATRIX_TYPES, element_type
from .expressions import constant
from .scope import Scope


def wgmma(book: Book, call: Any, scope: Scope) -> None:
    from_registers = call.op.name.endswith("_rs")
    sparse = "_sp_" in call.op.name
    shape = text(call.args[0])
    m, n, k = (int(v) for v in re.findall(r"\d+", shape))
    offset = 2 if from_registers else 3
    dtype = MATRIX_TYPES.get(text(call.args[offset]), "bfloat16")
    size = element_type(dtype).bytes or 2
    book.ledger.matrix.append(
        MatrixWork(
            instruction=f"wgmma.{shape}",
            count=scope.executions / 128,
            flops=2.0 * m * n * k,
            shared_bytes=n * k * size + (0 if from_registers else m * k * size * (0.5 if sparse else 1)),
            warps=4,
            dtype=dtype,
        )
    )


def mma(book: Book, call: Any, scope: Scope) -> None:
    shape = next(t for t in map(text, call.args) if re.fullmatch(r"m\d+n\d+k\d+", t))
    m, n, k = (int(v) for v in re.findall(r"\d+", shape))
    types = [MATRIX_TYPES[t] for t in map(text, call.args) if t in MATRIX_TYPES and not t.startswith("m")]
    book.ledger.matrix.append(
        MatrixWork(
            f"mma.{shape}",
            scope.executions / scope.launch.warp_threads,
            2.0 * m * n * k,
            0.0,
            1,
            types[1] if len(types) > 1 else "bfloat16",
        )
    )


def mfma(book: Book, call: Any, scope: Scope) -> None:
    name = text(call.args[0])  # e.g. f32_16x16x16bf16_1k
    match = re.search(r"(\d+)x(\d+)x(\d+)_?([a-z]+\d+)", name)
    if match is None:
        book.unknown(f"mfma {name}", scope)
        return
    m, n, k = (int(match[i]) for i in (1, 2, 3))
    dtype = {"bf16": "bfloat16", "f16": "float16", "fp8": "float8", "i8": "int8", "f32": "float32"}.get(match[4], "bfloat16")
    book.ledger.matrix.append(MatrixWork(f"mfma.{m}x{n}x{k}", scope.executions / scope.launch.warp_threads, 2.0 * m * n * k, 0.0, 1, dtype))


def ldmatrix(book: Book, call: Any, scope: Scope) -> None:
    # ldmatrix(transposed, matrices, shared pointer, destination...)
    place = book.memory.pointer(call.args[2])
    matrices = constant(call.args[1]) or 4
    if place is not None:
        book.ledger.accesses.append(matrix_access(scope, place, matrices=matrices, write=False, mechanism="ldmatrix"))


def stmatrix(book: Book, call: Any, scope: Scope) -> None:
    place = book.memory.pointer(call.args[2])
    matrices = constant(call.args[1]) or 4
    if place is not None:
        book.ledger.accesses.append(matrix_access(scope, place, matrices=matrices, write=True, mechanism="stmatrix"))
    for argument in call.args[3:]:
        book.value(argument, scope)
