"""Counts matrix instructions, and the loads and stores of their operands in shared memory."""

from __future__ import annotations

import math
import re
from typing import Any

from ...profile.values import MatrixWork
from .accesses import matrix_access
from .counting import CountingContext, text
from .element_types import MATRIX_TYPES, element_type
from .expressions import constant, identity
from .scope import Scope

WARP_GROUP_THREADS = 128


def wgmma(context: CountingContext, call: Any, scope: Scope) -> None:
    """Count a warp-group matrix instruction of Hopper."""
    from_registers = call.op.name.endswith("_rs")
    sparse = "_sp_" in call.op.name
    shape = text(call.args[0])
    m, n, k = (int(v) for v in re.findall(r"\d+", shape))
    offset = 2 if from_registers else 3
    dtype = MATRIX_TYPES.get(text(call.args[offset]), "bfloat16")
    _mark_accumulator(context, call, fenced_bytes=m * n * 4 / WARP_GROUP_THREADS)
    size = element_type(dtype).bytes or 2
    context.phase.matrix.append(
        MatrixWork(
            instruction=f"wgmma.{shape}",
            count=scope.executions / WARP_GROUP_THREADS,
            flops=2.0 * m * n * k,
            shared_bytes=n * k * size + (0 if from_registers else m * k * size * (0.5 if sparse else 1)),
            warps=4,
            dtype=dtype,
        )
    )


def _mark_accumulator(context: CountingContext, call: Any, *, fenced_bytes: float = 0.0) -> None:
    """Record the buffer that a matrix instruction adds to: it follows the other operands.

    Its values are kept from one iteration to the next if the fence of one instruction reads all of them:
    `fenced_bytes` a thread.
    """
    for buffer in [a for a in call.args if type(a).__name__ == "Var" and str(a.dtype) == "handle"][-1:]:
        kept = context.memory.local_bytes.get(identity(buffer), math.inf) <= fenced_bytes
        context.mark_accumulator(buffer, kept=kept)


def mma(context: CountingContext, call: Any, scope: Scope) -> None:
    """Count an mma.sync instruction."""
    shape = next(t for t in map(text, call.args) if re.fullmatch(r"m\d+n\d+k\d+", t))
    m, n, k = (int(v) for v in re.findall(r"\d+", shape))
    _mark_accumulator(context, call)
    types = [MATRIX_TYPES[t] for t in map(text, call.args) if t in MATRIX_TYPES and not t.startswith("m")]
    context.phase.matrix.append(
        MatrixWork(
            f"mma.{shape}",
            scope.executions / scope.launch.warp_threads,
            2.0 * m * n * k,
            0.0,
            1,
            types[1] if len(types) > 1 else "bfloat16",
        )
    )


def mfma(context: CountingContext, call: Any, scope: Scope) -> None:
    """Count a matrix instruction of CDNA."""
    name = text(call.args[0])  # e.g. f32_16x16x16bf16_1k
    match = re.search(r"(\d+)x(\d+)x(\d+)_?([a-z]+\d+)", name)
    if match is None:
        context.count_unknown(f"mfma {name}", scope)
        return
    m, n, k = (int(match[i]) for i in (1, 2, 3))
    dtype = {"bf16": "bfloat16", "f16": "float16", "fp8": "float8", "i8": "int8", "f32": "float32"}.get(
        match[4], "bfloat16"
    )
    context.phase.matrix.append(
        MatrixWork(
            f"mfma.{m}x{n}x{k}", scope.executions / scope.launch.warp_threads, 2.0 * m * n * k, 0.0, 1, dtype
        )
    )


def ldmatrix(context: CountingContext, call: Any, scope: Scope) -> None:
    """Count ldmatrix(transposed, matrices, shared pointer, destination...)."""
    site = context.memory.pointer_site(call.args[2])
    matrices = constant(call.args[1]) or 4
    if site is not None:
        context.phase.accesses.append(
            matrix_access(scope, site, matrices=matrices, write=False, mechanism="ldmatrix")
        )


def stmatrix(context: CountingContext, call: Any, scope: Scope) -> None:
    """Count stmatrix(transposed, matrices, shared pointer, values...)."""
    site = context.memory.pointer_site(call.args[2])
    matrices = constant(call.args[1]) or 4
    if site is not None:
        context.phase.accesses.append(
            matrix_access(scope, site, matrices=matrices, write=True, mechanism="stmatrix")
        )
    for argument in call.args[3:]:
        context.count_value(argument, scope)
