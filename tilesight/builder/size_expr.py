"""Translates TIR expressions of dynamic dimensions, known only when a kernel is called, into C expressions.

All arithmetic is exact in 64 bits: dynamic dimensions are within 32 bits, which the launcher checks first.
Expressions without a safe form in C are refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


class UnsupportedSizeError(Exception):
    """A size depends on other values than dynamic dimensions, or has an unknown form."""


@dataclass(frozen=True, slots=True)
class Expression:
    """A C expression of type int64_t. Dynamic dimension number i of the function is `size_i`."""

    text: str

    def __str__(self) -> str:
        return self.text


Size = int | Expression

# division and remainder that round down, for positive divisors
SIZE_FUNCTIONS = """
static inline int64_t tilesight_div(int64_t a, int64_t b) { return a / b - (a % b < 0); }
static inline int64_t tilesight_mod(int64_t a, int64_t b) { return a % b + (a % b < 0 ? b : 0); }
static inline int64_t tilesight_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t tilesight_max(int64_t a, int64_t b) { return a < b ? b : a; }
""".strip()


def read_size(value: Any, sizes: Sequence[Any]) -> Size:
    """`value` (a TIR expression) as a number, or as a C expression of the variables `sizes`.

    Raises `UnsupportedSizeError`.
    """
    from tvm import arith, tirx

    value = arith.Analyzer().simplify(value)
    if isinstance(value, tirx.IntImm):
        return int(value.value)
    return Expression(_text(value, {size: f"size_{i}" for i, size in enumerate(sizes)}))


def _text(node: Any, names: Mapping[Any, str]) -> str:
    kind = type(node).__name__
    if kind == "IntImm":
        return f"INT64_C({int(node.value)})"
    if kind == "Var" and node in names:
        return names[node]
    if kind in _INFIX:
        return f"({_text(node.a, names)} {_INFIX[kind]} {_text(node.b, names)})"
    if kind in _ROUNDED:
        if type(node.b).__name__ != "IntImm" or int(node.b.value) <= 0:
            raise UnsupportedSizeError(f"'{node}' divides by what need not be positive")
        return f"{_ROUNDED[kind]}({_text(node.a, names)}, {_text(node.b, names)})"
    if kind in _PAIRS:
        return f"{_PAIRS[kind]}({_text(node.a, names)}, {_text(node.b, names)})"
    if kind == "Not":
        return f"(int64_t)!{_text(node.a, names)}"
    if kind == "Cast" and str(node.dtype) in _WIDTHS and str(node.value.dtype) in _WIDTHS:
        if _WIDTHS[str(node.dtype)] < _WIDTHS[str(node.value.dtype)]:
            raise UnsupportedSizeError(f"'{node}' may cut digits off")
        return _text(node.value, names)  # all arithmetic is in 64 bits
    if kind == "Select":
        return _choice(node.condition, node.true_value, node.false_value, names)
    if kind == "Call" and node.op.name in _CALLS:
        return _CALLS[node.op.name](node.args, names)
    raise UnsupportedSizeError(f"'{node}' is not known to be a size")


def _choice(condition: Any, yes: Any, no: Any, names: Mapping[Any, str]) -> str:
    return f"({_text(condition, names)} ? {_text(yes, names)} : {_text(no, names)})"


def _shift(operator: str) -> Callable[[Sequence[Any], Mapping[Any, str]], str]:
    """A shift by a constant: to the right it divides and rounds down, to the left it multiplies."""

    def text(arguments: Sequence[Any], names: Mapping[Any, str]) -> str:
        value, by = arguments
        if type(by).__name__ != "IntImm" or not 0 <= int(by.value) < 32:
            raise UnsupportedSizeError(f"'{value} {operator} {by}' is no shift by a constant")
        factor = f"INT64_C({1 << int(by.value)})"
        return (
            f"({_text(value, names)} * {factor})"
            if operator == "<<"
            else f"tilesight_div({_text(value, names)}, {factor})"
        )

    return text


_INFIX = {
    "Add": "+",
    "Sub": "-",
    "Mul": "*",
    "LT": "<",
    "LE": "<=",
    "GT": ">",
    "GE": ">=",
    "EQ": "==",
    "NE": "!=",
    "And": "&&",
    "Or": "||",
}
_ROUNDED = {"FloorDiv": "tilesight_div", "FloorMod": "tilesight_mod"}
_PAIRS = {"Min": "tilesight_min", "Max": "tilesight_max"}
_WIDTHS = {"bool": 1, "int8": 8, "int16": 16, "int32": 32, "int64": 64}
_CALLS: Mapping[str, Callable[[Sequence[Any], Mapping[Any, str]], str]] = {
    "tirx.if_then_else": lambda arguments, names: _choice(arguments[0], arguments[1], arguments[2], names),
    "tirx.likely": lambda arguments, names: _text(arguments[0], names),
    "tirx.shift_right": _shift(">>"),
    "tirx.shift_left": _shift("<<"),
}
