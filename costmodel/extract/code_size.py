"""Counts the operations by which the compiler decides whether it unrolls a loop.

LLVM, on which nvcc is built, decides before it simplifies the copies of an iteration: a comparison that is
known in each copy counts like any other.
"""

from __future__ import annotations

import math
from typing import Any

from .counting import text
from .element_types import element_type
from .exchange_calls import REDUCTION
from .expressions import call_name, constant, identity, is_choice, is_single, loads
from .mathematics import MATH, math_function

LOOP_OPERATIONS = 2.0  # of a loop itself, in each iteration
BRANCH_OPERATIONS = 2.0
STEP_OPERATIONS = 3.0  # of a step of a reduction over the threads of a warp


def code_size(node: Any) -> float:
    """Operations of a statement whose inner loops are unrolled, as the compiler counts them.

    Loads, stores, comparisons and integer operations count like arithmetic on floating-point numbers. The
    addresses of loads and stores are free. Read off the machine code of loops over local arrays with bodies
    of 13 kinds (nvcc 13.0, experiments/unrolled_loops).
    """
    kind = type(node).__name__
    if kind == "SeqStmt":
        return sum(code_size(part) for part in node.seq)
    if kind == "For":
        extent = constant(node.extent)
        return code_size(node.body) * extent if extent else code_size(node.body) + LOOP_OPERATIONS
    if kind == "IfThenElse":
        parts = [part for part in (node.then_case, node.else_case) if part is not None]
        return BRANCH_OPERATIONS + _of_value(node.condition) + sum(code_size(part) for part in parts)
    if kind == "BufferStore":
        return _of_value(node.value) + (0.0 if _is_update(node) else _moved(node.buffer, node.value))
    if kind in ("Bind", "Evaluate"):
        return _of_value(node.value)
    return code_size(node.body) if hasattr(node, "body") else 0.0


def _of_value(value: Any) -> float:
    kind = type(value).__name__
    if kind == "BufferLoad":
        return _moved(value.buffer, value)
    if kind in ("Broadcast", "Not"):
        return _of_value(value.value if kind == "Broadcast" else value.a)
    if kind == "Cast":
        return _lanes(value) + _of_value(value.value)
    if kind == "Call":
        return _of_call(value) + sum(_of_value(part) for part in value.args)
    if kind == "Select":
        return _lanes(value) + sum(map(_of_value, (value.condition, value.true_value, value.false_value)))
    if hasattr(value, "a") and hasattr(value, "b"):
        own = BRANCH_OPERATIONS if kind in ("And", "Or") else _lanes(value.a)
        return own + _of_value(value.a) + _of_value(value.b)
    return 0.0


def _of_call(call: Any) -> float:
    reduction = REDUCTION.match(text(call.args[0])) if call_name(call) == "tirx.call_extern" else None
    if reduction:
        return STEP_OPERATIONS * math.log2(max(2, int(reduction[2]) // max(1, int(reduction[3]))))
    if is_choice(call):
        return BRANCH_OPERATIONS * _lanes(call)
    cost = MATH.get(math_function(call) or "")
    return (1 if cost is None else sum(cost)) * _lanes(call)


def _moved(buffer: Any, value: Any) -> float:
    """Operations of a load or store. That of a single number is none."""
    return 0.0 if is_single(buffer) else _lanes(value)


def _lanes(value: Any) -> int:
    return element_type(str(value.dtype)).lanes


def _is_update(store: Any) -> bool:
    """Whether a store replaces an element by a value that derives from it."""
    from tvm.ir import structural_equal

    return any(
        identity(load.buffer.data) == identity(store.buffer.data)
        and structural_equal(load.indices[0], store.indices[0])
        for load in loads(store.value)
    )
