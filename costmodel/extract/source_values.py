"""Evaluates constant expressions and loop bounds in CUDA C++ text that tree-sitter has parsed."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tree_sitter import Node

_MOST_SCALED = 64  # iterations of a loop whose counter is multiplied or divided
_WHOLE: Mapping[str, Callable[[int, int], int]] = {
    "<<": operator.lshift,
    ">>": operator.rshift,
    "&": operator.and_,
    "|": operator.or_,
    "^": operator.xor,
    "%": operator.mod,
}
_REAL: Mapping[str, Callable[[float, float], float]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "==": operator.eq,
    "!=": operator.ne,
    "&&": lambda a, b: bool(a) and bool(b),
    "||": lambda a, b: bool(a) or bool(b),
}


def nodes(node: Node) -> Iterator[Node]:
    """A node and all nodes within it."""
    yield node
    for child in node.named_children:
        yield from nodes(child)


def text(node: Node | None) -> str:
    """The text of a node; "" of None."""
    return "" if node is None else (node.text or b"").decode()


def value(node: Node | None, known: Mapping[str, float]) -> float | None:
    """The value of an expression of numbers and known names; None if it is not known."""
    if node is None:
        return None
    if node.type == "number_literal":
        return _number(text(node).replace("'", ""))
    if node.type in ("true", "false"):
        return float(node.type == "true")
    if node.type == "identifier":
        return known.get(text(node))
    if node.type in ("parenthesized_expression", "condition_clause") and node.named_child_count == 1:
        return value(node.named_children[0], known)
    if node.type == "binary_expression":
        a = value(node.child_by_field_name("left"), known)
        b = value(node.child_by_field_name("right"), known)
        return None if a is None or b is None else _folded(text(node.child_by_field_name("operator")), a, b)
    return None


def _number(digits: str) -> float | None:
    for read, suffix in ((lambda s: int(s, 0), "uUlL"), (float, "fFlL")):
        try:
            return float(read(digits.rstrip(suffix)))
        except ValueError:
            continue
    return None


def _folded(symbol: str, a: float, b: float) -> float | None:
    are_whole = a.is_integer() and b.is_integer()
    if symbol in ("/", "%") and not b:
        return None
    if symbol == "/":
        return float(a // b) if are_whole else a / b
    if symbol in _WHOLE:
        fits = are_whole and (0 <= b < 64 or symbol not in ("<<", ">>"))
        return float(_WHOLE[symbol](int(a), int(b))) if fits else None
    return float(_REAL[symbol](a, b)) if symbol in _REAL else None


def counter_of(loop: Node) -> str:
    """The name of a loop's counter; "" if its condition does not begin with one."""
    condition = loop.child_by_field_name("condition")
    left = condition.child_by_field_name("left") if condition is not None else None
    return text(left) if left is not None and left.type == "identifier" else ""


def trips_of(loop: Node, known: Mapping[str, float]) -> float | None:
    """The iterations of a `for` loop with constant bounds and step; None for other loops.

    `known` holds the start of its counter. A counter may also be multiplied or divided
    by a constant.
    """
    condition, update = loop.child_by_field_name("condition"), loop.child_by_field_name("update")
    start = known.get(counter_of(loop))
    if condition is None or update is None or start is None:
        return None
    bound = value(condition.child_by_field_name("right"), known)
    if bound is None:
        return None
    if update.type == "update_expression":
        symbol, amount = ("-=" if "--" in text(update) else "+="), 1.0
    else:
        symbol = text(update.child_by_field_name("operator"))
        found = value(update.child_by_field_name("right"), known)
        if found is None:
            return None
        amount = found
    if symbol in ("+=", "-=") and amount:
        step = amount if symbol == "+=" else -amount
        inclusive = step / abs(step) if "=" in text(condition.child_by_field_name("operator")) else 0.0
        return max(0.0, -((start - bound - inclusive) // step))
    return _scaled_trips(start, bound, symbol, amount)


def _scaled_trips(start: float, bound: float, symbol: str, amount: float) -> float | None:
    factor = 2.0**amount if symbol in ("<<=", ">>=") else amount
    grows = symbol in ("<<=", "*=")
    if factor <= 1 or start <= 0 or not (grows or symbol in (">>=", "/=")):
        return None
    trips, current = 0.0, start
    while trips < _MOST_SCALED and (current < bound if grows else current > bound):
        current, trips = (current * factor if grows else float(current // factor)), trips + 1
    return trips
