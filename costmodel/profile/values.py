"""Value expressions: the loads and the arithmetic behind a value that is stored, passed or tested."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .accesses import lane_access
from .arithmetic import MATH, MATH_NAMES
from .dtypes import element_type
from .expressions import identity
from .scope import Scope

if TYPE_CHECKING:
    from .walk import Reader

_LEAVES = ("IntImm", "FloatImm", "StringImm", "Var", "Ramp")


def book_value(reader: Reader, node: Any, scope: Scope) -> None:
    kind = type(node).__name__
    if kind in _LEAVES:
        return
    if kind == "BufferLoad":
        _load(reader, node, scope)
    elif kind == "Broadcast":
        book_value(reader, node.value, scope)
    elif kind == "Cast":
        _cast(reader, node, scope)
    elif kind == "Call":
        _call(reader, node, scope)
    elif kind == "Select":
        for part in (node.condition, node.true_value, node.false_value):
            book_value(reader, part, scope)
        _arithmetic(reader, node, scope)
    elif _is_index(node):
        # arithmetic on indices is hoisted and strength-reduced by the compiler; what stays is each comparison
        reader.ledger.counts["integer_ops"] += scope.executions * _comparisons(node)
    elif hasattr(node, "a") and hasattr(node, "b"):
        book_value(reader, node.a, scope)
        book_value(reader, node.b, scope)
        # a product that feeds a sum is one multiply-add
        fused = kind in ("Add", "Sub") and "Mul" in (type(node.a).__name__, type(node.b).__name__)
        if not (fused and element_type(str(node.dtype)).kind == "float"):
            _arithmetic(reader, node, scope, "divide" if kind == "Div" else None)
    elif kind == "Not":
        book_value(reader, node.a, scope)
    elif kind == "Let":
        book_value(reader, node.value, scope)
        book_value(reader, node.body, scope.with_binding(identity(node.var), node.value))
    elif kind == "Shuffle":
        for part in node.vectors:
            book_value(reader, part, scope)
    else:
        reader.unknown(f"expression {kind}", scope)


def book_math(reader: Reader, name: str, call: Any, scope: Scope) -> bool:
    """Book a math function by its name; False where it is none."""
    function = MATH_NAMES.get(name)
    if function is None:
        return False
    dtype = element_type(str(call.dtype))
    if dtype.kind == "int":
        reader.ledger.counts["integer_ops"] += scope.executions * dtype.lanes
    else:
        lanes = dtype.lanes / 2 if function == "packed" else dtype.lanes
        _math_ops(reader, function, scope.executions * max(1.0, lanes))
    return True


def _math_ops(reader: Reader, function: str, lane_operations: float) -> None:
    cost = MATH[function]
    reader.ledger.counts["special_ops"] += lane_operations * cost.special
    reader.ledger.counts["vector_ops"] += lane_operations * cost.vector


def _arithmetic(reader: Reader, node: Any, scope: Scope, function: str | None = None) -> None:
    dtype = element_type(str(node.dtype))
    operands = element_type(str(node.a.dtype)) if hasattr(node, "a") else dtype
    lanes = scope.executions * max(dtype.lanes, operands.lanes)
    if operands.kind == "float" and function is not None:
        _math_ops(reader, function, lanes)
    elif operands.kind == "float":
        # two 16-bit elements share an instruction where they come as a vector
        reader.ledger.counts["vector_ops"] += lanes * (0.5 if operands.bits == 16 and operands.lanes > 1 else 1)
    elif operands.kind in ("int", "bool"):
        reader.ledger.counts["integer_ops"] += lanes * (8 if function == "divide" else 1)


def _cast(reader: Reader, node: Any, scope: Scope) -> None:
    book_value(reader, node.value, scope)
    into, source = element_type(str(node.dtype)), element_type(str(node.value.dtype))
    lanes = scope.executions * into.lanes
    counts = reader.ledger.counts
    if into.kind == "float" and source.kind == "float":
        if into.bits == 16:  # two results are packed by one instruction
            counts["convert_ops"] += lanes / 2
        elif str(node.value.dtype).startswith("bfloat16"):  # a shift or a byte permutation
            counts["integer_ops"] += lanes
        else:
            counts["convert_ops"] += lanes
    elif into.kind != source.kind and "float" in (into.kind, source.kind):
        counts["convert_ops"] += lanes
    elif into.bits != source.bits:
        counts["integer_ops"] += lanes


def _load(reader: Reader, node: Any, scope: Scope) -> None:
    reader.touch(node.buffer.data)
    place = reader.memory.place(node.buffer, node.indices[0], element_type(str(node.dtype)).lanes)
    if place is not None:
        reader.ledger.accesses.append(lane_access(scope, place, write=False, mechanism="ld"))
        reader.ledger.counts["integer_ops"] += scope.executions


def _call(reader: Reader, node: Any, scope: Scope) -> None:
    from . import calls

    name = getattr(node.op, "name", str(node.op))
    for argument in node.args:
        if type(argument).__name__ == "Var":
            reader.touch(argument)
        elif getattr(getattr(argument, "op", None), "name", "") == "tirx.tvm_access_ptr":
            reader.touch(argument.args[1])
    if name == "tirx.if_then_else":
        _selection(reader, node, scope)
    elif name == "tl.set_max_nreg":
        reader.limit_registers(node.args[0])
    elif calls.handle(reader, node, scope):
        return
    else:
        known = book_math(reader, name.rsplit(".", 1)[-1], node, scope)
        if not known:
            reader.unknown(name, scope)
        for argument in node.args:
            if type(argument).__name__ not in ("StringImm", "Var"):
                book_value(reader, argument, scope)


def _selection(reader: Reader, node: Any, scope: Scope) -> None:
    from tvm import tirx

    condition, yes, no = node.args
    book_value(reader, condition, scope)
    reader.ledger.counts["vector_ops"] += scope.executions * element_type(str(node.dtype)).lanes
    for part, where in ((yes, scope.with_condition(condition)), (no, scope.with_condition(tirx.Not(condition)))):
        if where is not None:
            book_value(reader, part, where)


def _is_index(node: Any) -> bool:
    """Whether an expression is integer or boolean arithmetic on launch and loop variables alone."""
    kind = type(node).__name__
    if kind in ("IntImm", "Var"):
        return True
    if kind == "Not":
        return _is_index(node.a)
    if kind in ("And", "Or") or (hasattr(node, "a") and hasattr(node, "b") and element_type(str(node.a.dtype)).kind == "int"):
        return _is_index(node.a) and _is_index(node.b)
    return False


def _comparisons(node: Any) -> int:
    kind = type(node).__name__
    if kind in ("And", "Or"):
        return _comparisons(node.a) + _comparisons(node.b)
    if kind == "Not":
        return _comparisons(node.a)
    return int(kind in ("LT", "LE", "GT", "GE", "EQ", "NE"))
