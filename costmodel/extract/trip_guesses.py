"""Guesses the iterations of a loop whose extent depends on data, from known tables or sizes of tensors."""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np

from .expressions import UnevaluableError, call_name, identity, is_choice
from .loops import visit
from .memory import Memory
from .scope import Scope
from .tables import Table

_COORDINATES = 3  # the first coordinate among the arguments of a TMA load


def guessed_trips(node: Any, scope: Scope, memory: Memory) -> float | None:
    """The iterations of a `for` loop if its data divides the tensors evenly; None without a clue.

    The loop goes through a tensor by equal steps, so the tensor bounds its iterations. A table that the
    extent is loaded from, such as the lengths of sequences, has an entry for each part of the tensor.

    Args:
        node: the loop.
        scope: the scope around it.
        memory: the tensors of the kernel.
    """
    bounds = list(_bounds(node, scope.with_arbitrary_data(), memory))
    tables = [memory.elements(key) for key in scope.depends_on(node.extent) if memory.is_tensor(key)]
    if not bounds:
        return None
    return max(1.0, min(bounds) / max([1.0, *tables]))


def typical_value(expression: Any, scope: Scope) -> float | None:
    """The value of an expression if its known tables have their mean at each place that is unknown.

    An index that goes through shared memory is unknown, such as the number of a sequence that a block
    searched for; the lengths that are loaded with it are not. Conditions that are unknown count as passed,
    as checks of indices do. Of a minimum or maximum with an unknown part the other one is taken.

    Args:
        expression: the expression.
        scope: the scope in which it stands.

    Returns:
        The mean over the samples; None if something else is unknown.
    """
    try:
        return float(np.mean(scope.over_chance(expression)))
    except UnevaluableError:
        pass
    kind = type(expression).__name__
    if kind == "BufferLoad":
        table = scope.chance.get(identity(expression.buffer.data))
        if isinstance(table, Table):
            return float(table.values.mean())
        return _assigned(identity(expression.buffer.data), scope)
    if kind == "Var":
        return _assigned(identity(expression), scope)
    if kind == "Cast":
        return typical_value(expression.value, scope)
    if kind == "Call" and is_choice(expression):
        return typical_value(expression.args[1], scope)
    if kind not in _OPERATIONS:
        return None
    parts = [typical_value(part, scope) for part in (expression.a, expression.b)]
    known = [part for part in parts if part is not None]
    if len(known) == 2:
        return float(_OPERATIONS[kind](*known))
    return known[0] if known and kind in ("Min", "Max") else None


def _assigned(variable: int, scope: Scope) -> float | None:
    """The typical value of what was assigned to a variable; None if that is not known."""
    expression = scope.derived.get(variable)
    return None if expression is None else typical_value(expression, scope)


_OPERATIONS: Mapping[str, Callable[[float, float], float]] = {
    "Add": operator.add,
    "Sub": operator.sub,
    "Mul": operator.mul,
    "FloorDiv": lambda a, b: math.floor(a / b) if b else 0.0,
    "Min": min,
    "Max": max,
}


def _bounds(node: Any, scope: Scope, memory: Memory) -> Iterator[float]:
    """For each access of the loop, the iterations after which it has gone through its tensor."""
    accesses: list[tuple[float, Any]] = []  # (elements, index)

    def look(part: Any, kind: str) -> None:
        if kind == "BufferLoad" and memory.is_global(part.buffer):
            accesses.append((memory.elements(identity(part.buffer.data)), part.indices[0]))
        elif kind == "Call" and call_name(part) == "tl.tma_load":
            descriptor = memory.descriptor(part.args[0])
            for place, extent in enumerate(descriptor.shape if descriptor is not None else ()):
                accesses.append((float(extent), part.args[_COORDINATES + place]))

    visit(node.body, look)
    variable = identity(node.loop_var)
    for elements, index in accesses:
        try:
            first, second = (scope.at(index, {variable: step}) for step in (0, 1))
        except UnevaluableError:
            continue
        step = abs(float(second) - float(first))
        if step and elements > step:
            yield elements / step
