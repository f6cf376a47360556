"""Value expressions: the loads and the arithmetic behind a value that is stored, passed or tested."""

from __future__ import annotations

from typing import Any

from . import calls
from .accesses import lane_access
from .book import Book, book_function, book_math
from .dtypes import element_type
from .expressions import identity, loads
from .scope import Scope

_LEAVES = ("IntImm", "FloatImm", "StringImm", "Var", "Ramp")  # a ramp is an address, whose loads `book_loads` takes


def book_value(book: Book, node: Any, scope: Scope) -> None:
    kind = type(node).__name__
    if kind in _LEAVES:
        return
    if kind == "BufferLoad":
        _load(book, node, scope)
    elif kind == "Broadcast":
        book_value(book, node.value, scope)
    elif kind == "Cast":
        _cast(book, node, scope)
    elif kind == "Call":
        _call(book, node, scope)
    elif kind == "Select":
        for part in (node.condition, node.true_value, node.false_value):
            book_value(book, part, scope)
        _arithmetic(book, node, scope)
    elif _is_index(node):
        # arithmetic on indices is hoisted and strength-reduced by the compiler; what stays is each comparison
        book.ledger.counts["integer_ops"] += scope.executions * _comparisons(node)
    elif hasattr(node, "a") and hasattr(node, "b"):
        book_value(book, node.a, scope)
        book_value(book, node.b, scope)
        # a product that feeds a sum is one multiply-add
        fused = kind in ("Add", "Sub") and "Mul" in (type(node.a).__name__, type(node.b).__name__)
        if not (fused and element_type(str(node.dtype)).kind == "float"):
            _arithmetic(book, node, scope, "divide" if kind == "Div" else None)
    elif kind == "Not":
        book_value(book, node.a, scope)
    elif kind == "Let":
        book_value(book, node.value, scope)
        book_value(book, node.body, scope.with_binding(identity(node.var), node.value))
    elif kind == "Shuffle":
        for part in node.vectors:
            book_value(book, part, scope)
    else:
        book.unknown(f"expression {kind}", scope)


def _arithmetic(book: Book, node: Any, scope: Scope, function: str | None = None) -> None:
    dtype = element_type(str(node.dtype))
    operands = element_type(str(node.a.dtype)) if hasattr(node, "a") else dtype
    lanes = scope.executions * max(dtype.lanes, operands.lanes)
    if operands.kind == "float" and function is not None:
        book_function(book, function, lanes)
    elif operands.kind == "float":
        # two 16-bit elements share an instruction where they come as a vector
        book.ledger.counts["vector_ops"] += lanes * (0.5 if operands.bits == 16 and operands.lanes > 1 else 1)
    elif operands.kind in ("int", "bool"):
        book.ledger.counts["integer_ops"] += lanes * (8 if function == "divide" else 1)


def _cast(book: Book, node: Any, scope: Scope) -> None:
    book_value(book, node.value, scope)
    into, source = element_type(str(node.dtype)), element_type(str(node.value.dtype))
    lanes = scope.executions * into.lanes
    counts = book.ledger.counts
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
        counts["integer_ops"] += lanes / 2  # loads widen by themselves, packing instructions narrow two values


def book_loads(book: Book, index: Any, scope: Scope) -> None:
    """Book the loads in an address. Its arithmetic is not: the compiler hoists and reduces it."""
    if type(index).__name__ not in ("IntImm", "Var"):
        for load in loads(index):
            _one_load(book, load, scope)


def _load(book: Book, node: Any, scope: Scope) -> None:
    book_loads(book, node.indices[0], scope)
    _one_load(book, node, scope)


def _one_load(book: Book, node: Any, scope: Scope) -> None:
    book.touch(node.buffer.data)
    place = book.memory.place(node.buffer, node.indices[0], element_type(str(node.dtype)).lanes)
    if place is not None:
        book.ledger.accesses.append(lane_access(scope, place, write=False, mechanism="ld"))
        book.ledger.counts["integer_ops"] += scope.executions


def _call(book: Book, node: Any, scope: Scope) -> None:
    name = getattr(node.op, "name", str(node.op))
    for argument in node.args:
        if type(argument).__name__ == "Var":
            book.touch(argument)
        elif getattr(getattr(argument, "op", None), "name", "") == "tirx.tvm_access_ptr":
            book.touch(argument.args[1])
    if name == "tirx.if_then_else":
        _selection(book, node, scope)
    elif name == "tl.set_max_nreg":
        book.limit_registers(node.args[0])
    elif calls.handle(book, node, scope):
        return
    else:
        known = book_math(book, name.rsplit(".", 1)[-1], node, scope)
        if not known:
            book.unknown(name, scope)
        for argument in node.args:
            if type(argument).__name__ not in ("StringImm", "Var"):
                book_value(book, argument, scope)


def _selection(book: Book, node: Any, scope: Scope) -> None:
    from tvm import tirx

    condition, yes, no = node.args
    book_value(book, condition, scope)
    book.ledger.counts["vector_ops"] += scope.executions * element_type(str(node.dtype)).lanes
    for part, where in ((yes, scope.with_condition(condition)), (no, scope.with_condition(tirx.Not(condition)))):
        if where is not None:
            book_value(book, part, where)


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
