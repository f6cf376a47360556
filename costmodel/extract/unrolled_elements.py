"""Tells which elements of a local buffer a statement in unrolled loops uses.

The compiler turns each iteration into statements of its own, so each element of a local buffer is a register
with a live range of its own.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .expressions import UnevaluableError, call_name, constant, evaluate, identity, variables
from .mathematics import MATH_NAMES

MOST_ITERATIONS = 4096  # of the loops together; beyond that, all elements count as used
_BITS = frozenset(("bitwise_and", "bitwise_or", "bitwise_xor", "shift_left", "shift_right", "reinterpret"))
_ARITHMETIC = frozenset(("Add", "Sub", "Mul", "Div", "Min", "Max"))


@dataclass
class UnrolledElements:
    """The unrolled loops and the conditions on their counters around the current statement."""

    _counters: dict[int, NDArray[np.int64]] = field(default_factory=dict)  # values by variable
    _conditions: list[tuple[Any, set[int]]] = field(default_factory=list)  # with their variables

    @contextmanager
    def loop(self, node: Any) -> Iterator[None]:
        """A context in the body of the unrolled loop `node`."""
        start, extent = constant(node.min), constant(node.extent)
        if start is None or extent is None:
            yield
            return
        variable = identity(node.loop_var)
        self._counters[variable] = np.arange(start, start + extent)
        yield
        del self._counters[variable]

    @property
    def counters(self) -> frozenset[int]:
        """The variables of these loops."""
        return frozenset(self._counters)

    @contextmanager
    def condition(self, condition: Any) -> Iterator[None]:
        """A context in which `condition` holds, which `is_static`."""
        self._conditions.append((condition, variables(condition)))
        yield
        self._conditions.pop()

    def is_static(self, condition: Any) -> bool:
        """Whether `condition` depends on the counters alone, so that it is no branch of the program."""
        return bool(self._counters) and variables(condition) <= self._counters.keys()

    def used(self, buffer: Any, index: Any) -> NDArray[np.bool_] | None:
        """A mask over the elements of `buffer` that are accessed at `index`; None if that is not known."""
        sizes = [size for size in map(constant, buffer.shape) if size is not None]
        if len(sizes) < len(buffer.shape):
            return None
        is_vector = type(index).__name__ == "Ramp"
        lanes = constant(index.lanes) if is_vector else 1
        stride = constant(index.stride) if is_vector else 1
        needed = variables(index).union(*(needed for _, needed in self._conditions))
        if lanes is None or stride is None or not needed <= self._counters.keys():
            return None
        bindings = self._iterations(needed)
        if bindings is None:
            return None
        try:
            places = np.asarray(evaluate(index, bindings))
            holds = [np.asarray(evaluate(condition, bindings), bool) for condition, _ in self._conditions]
        except UnevaluableError:
            return None
        mask = np.zeros(math.prod(sizes), bool)
        places, *holds = np.broadcast_arrays(places, True, *holds)
        taken = np.logical_and.reduce(holds)
        touched = (places[taken].astype(np.int64)[:, None] + stride * np.arange(lanes)).ravel()
        mask[touched[(touched >= 0) & (touched < len(mask))]] = True
        return mask

    def _iterations(self, needed: set[int]) -> Mapping[int, NDArray[np.int64]] | None:
        """Values of the counters in `needed` in all iterations; None if there are too many."""
        counters = {v: values for v, values in self._counters.items() if v in needed}
        if math.prod(len(values) for values in counters.values()) > MOST_ITERATIONS:
            return None
        mesh = np.meshgrid(*counters.values(), indexing="ij")
        return {variable: values.ravel() for variable, values in zip(counters, mesh, strict=True)}


def transformed_buffer(value: Any, counters: frozenset[int] = frozenset()) -> int | None:
    """The identity of the local buffer of which `value` transforms one element; None for other values.

    The value follows from this element, from constants and from numbers in memory that all elements share, as
    the scale of a tensor, by arithmetic and mathematical functions.

    Args:
        value: the value.
        counters: variables of the unrolled loops over the elements.
    """
    found: dict[int, Any] = {}

    def visit(node: Any) -> bool:
        kind = type(node).__name__
        if kind == "BufferLoad":
            if not str(node.buffer.scope()).startswith("local"):
                return _is_one_number(node) and not counters & variables(node)
            found.setdefault(identity(node.buffer.data), node.indices)
            return all(map(_equal, node.indices, found[identity(node.buffer.data)]))
        if kind in ("Cast", "Broadcast"):
            return visit(node.value)
        if kind == "Call":
            name = call_name(node).partition(".")[2]
            return (name in MATH_NAMES or name in _BITS) and all(map(visit, node.args))
        if kind in ("FloatImm", "IntImm"):
            return True
        if found and variables(node) <= counters:  # a constant of the iteration
            return True
        return kind in _ARITHMETIC and visit(node.a) and visit(node.b)

    return next(iter(found)) if visit(value) and len(found) == 1 else None


def _is_one_number(load: Any) -> bool:
    return all(type(index).__name__ != "Ramp" for index in load.indices)


def _equal(one: Any, other: Any) -> bool:
    from tvm.ir import structural_equal

    return bool(structural_equal(one, other))
