"""Finds local arrays in local memory: those whose elements cannot be in registers, which have no addresses.

The compiler gives registers to the elements of an array only if it unrolls every loop that indexes them. It
keeps a loop if the number of its iterations is known only at run time, if it has more than MOST_ITERATIONS,
or if the unrolled loop would have more than MOST_STEPS instructions. Source: the stack frames that ptxas
reports for 580 public kernels of an outside set, of which 60 have such loops: loops of up to 128 iterations
or 1,536 instructions are unrolled; those of 512 iterations, or of 4 with 2,560 instructions, are not.
"""

from __future__ import annotations

from typing import Any

from .element_types import element_type
from .expressions import constant, identity, variables
from .loops import is_unrolled, visit
from .mathematics import MATH, MATH_NAMES

MOST_ITERATIONS = 256
MOST_STEPS = 2000


def arrays_in_local_memory(function: Any) -> frozenset[int]:
    """The identities of the local arrays of a device function that lie in local memory."""
    found: set[int] = set()
    _collect(function.body, frozenset(), frozenset(), found)
    return frozenset(found)


def _collect(node: Any, outer: frozenset[int], kept: frozenset[int], found: set[int]) -> None:
    """Add the arrays that a statement indexes by the variable of a kept loop.

    `outer` are the variables of the loops around the statement, `kept` those of them that stay loops. Both
    contain the variables that are computed from them.
    """
    kind = type(node).__name__
    if kind == "SeqStmt":
        for part in node.seq:
            _collect(part, outer, kept, found)
            if type(part).__name__ == "Bind":
                bound, sources = frozenset({identity(part.var)}), variables(part.value)
                outer, kept = (
                    outer | bound if sources <= outer else outer,
                    kept | bound if sources & kept else kept,
                )
    elif kind == "For":
        _collect_indexed(node.extent, kept, found)
        variable = frozenset({identity(node.loop_var)})
        _collect(node.body, outer | variable, kept | variable if _is_kept(node, outer) else kept, found)
    elif kind == "IfThenElse":
        _collect_indexed(node.condition, kept, found)
        for part in (node.then_case, node.else_case):
            if part is not None:
                _collect(part, outer, kept, found)
    elif kind == "While":
        _collect_indexed(node.condition, kept, found)
        _collect(node.body, outer, kept, found)
    elif kind == "AttrStmt":
        _collect(node.body, outer, kept, found)
    elif kind in ("BufferStore", "Evaluate", "Bind"):
        _collect_indexed(node, kept, found)


def _collect_indexed(node: Any, kept: frozenset[int], found: set[int]) -> None:
    """Add the arrays that a statement or an expression indexes by one of the variables `kept`."""
    if not kept:
        return

    def look(part: Any, kind: str) -> None:
        if kind not in ("BufferLoad", "BufferStore") or not str(part.buffer.scope()).startswith("local"):
            return
        if kept & variables(part.indices[0]):
            found.add(identity(part.buffer.data))

    visit(node, look)


def _is_kept(loop: Any, outer: frozenset[int]) -> bool:
    """Whether the compiler keeps `loop`, which is inside the loops with the variables `outer`."""
    if is_unrolled(loop):
        return False
    extent = constant(loop.extent)
    if extent is None:  # it is constant once the loops around it are unrolled
        return not variables(loop.extent) <= outer
    return extent > MOST_ITERATIONS or extent * _steps(loop.body) > MOST_STEPS


def _steps(node: Any) -> float:
    """Instructions of a statement whose inner loops are unrolled, without those of its addresses."""
    kind = type(node).__name__
    if kind == "SeqStmt":
        return sum(_steps(part) for part in node.seq)
    if kind == "For":
        return (constant(node.extent) or 1) * _steps(node.body)
    if kind == "IfThenElse":
        return sum(_steps(part) for part in (node.then_case, node.else_case) if part is not None)
    if kind in ("BufferStore", "Bind"):
        return 1 + _operations(node.value)
    return _steps(node.body) if hasattr(node, "body") else 1


def _operations(value: Any) -> float:
    """Instructions of floating-point arithmetic in an expression."""
    total = 0.0

    def look(part: Any, kind: str) -> None:
        nonlocal total
        if kind == "Call":
            cost = MATH.get(MATH_NAMES.get(getattr(part.op, "name", "").rsplit(".", 1)[-1], ""))
            total += (sum(cost) if cost is not None else 1) * element_type(str(part.dtype)).lanes
        elif hasattr(part, "a") and hasattr(part, "b"):
            operand = element_type(str(part.a.dtype))
            total += operand.lanes if operand.kind == "float" else 0

    visit(value, look)
    return total
