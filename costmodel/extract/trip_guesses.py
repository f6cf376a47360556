"""Guesses the iterations of a loop whose extent depends on data, from the sizes of its tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from .expressions import UnevaluableError, identity
from .loops import visit
from .memory import Memory
from .scope import Scope

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


def _bounds(node: Any, scope: Scope, memory: Memory) -> Iterator[float]:
    """For each access of the loop, the iterations after which it has gone through its tensor."""
    accesses: list[tuple[float, Any]] = []  # (elements, index)

    def look(part: Any, kind: str) -> None:
        if kind == "BufferLoad" and memory.is_global(part.buffer):
            accesses.append((memory.elements(identity(part.buffer.data)), part.indices[0]))
        elif kind == "Call" and getattr(part.op, "name", "") == "tl.tma_load":
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
