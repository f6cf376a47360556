"""Finds what the device compiler computes once, although the program states it several times.

Read off the machine code of cross_entropy kernels (nvcc 13.0): a comparison is left once for the copies of an
unrolled loop in which it does not change, and the second of two loops that convert the same registers takes
the results of the first.
"""

from __future__ import annotations

import math
from collections.abc import Hashable
from typing import Any

import numpy as np

from ...lowering.call_effects import may_change_memory
from .counting import CountingContext
from .expressions import UnevaluableError, conjuncts, constant, identity, loads, variables
from .scope import Scope

COMPARISONS = ("LT", "LE", "GT", "GE", "EQ", "NE")
MOST_COPIES = 4096  # of unrolled loops together; beyond that, each comparison counts
_UNIFORM_COPIES = 2.0  # uses of a condition from which on the compiler branches instead of selecting


def new_lanes(context: CountingContext, node: Any, scope: Scope, *, in_branch: bool = False) -> float:
    """Lane executions of `node` that no earlier statement of the phase or copy of it has computed.

    Args:
        context: the state of the reader.
        node: a comparison of indices, or a conversion or function of values in registers.
        scope: where it stands.
        in_branch: whether it stays in the branches around it.
    """
    key = _key(context, node, scope)
    lanes = scope.issued_lanes / copies(node, scope, in_branch=in_branch)
    computed = context.phase.computed
    found = max(0.0, lanes - computed.get(key, 0.0))
    computed[key] = max(lanes, computed.get(key, 0.0))
    return found


def copies(node: Any, scope: Scope, *, in_branch: bool = False) -> float:
    """Iterations of the loops within the phase that repeat `node` with the same operands.

    If it stays in the branches around it, they repeat it under the same conditions as well.
    """
    depends, read = scope.depends_on(node), variables(node)
    depends |= scope.reached_by if in_branch else frozenset()
    same = math.prod(
        max(1.0, loop.extent)
        for loop in scope.loops
        if loop.variable not in depends and not read & loop.stores
    )
    return same * _equal_comparisons(node, scope, depends)


def _equal_comparisons(node: Any, scope: Scope, depends: frozenset[int]) -> float:
    """How often the copies of unrolled loops make each of their comparisons of indices, in the mean.

    The quotient of a loop's variable is the same in several of its iterations, for example. Read off the
    machine code of a product by others in serial loops over rows and columns (nvcc 13.0).
    """
    loops = [loop for loop in scope.loops if loop.unrolled and loop.variable in depends]
    if not loops or type(node).__name__ not in COMPARISONS or loads(node):
        return 1.0
    if math.prod(loop.extent for loop in loops) > MOST_COPIES:
        return 1.0
    try:
        left, right = (scope.over_loops_anywhere(side, loops) for side in (node.a, node.b))
    except UnevaluableError:
        return 1.0
    difference = left - right
    return float(difference.shape[1] / np.unique(difference, axis=1).shape[1])


def iterations(node: Any, scope: Scope) -> float:
    """Iterations of the phase's loops before which the compiler computes `node`, since they do not change it.

    Read off the machine code of norms whose loops over a row multiply by an inverse deviation (nvcc 13.0).
    """
    depends = scope.depends_on(node)  # with the buffers behind bound variables
    if any(loop.variable in depends and not loop.unrolled for loop in scope.loops):
        return 1.0
    total, read = 1.0, depends | variables(node)
    for loop in reversed(scope.phase_loops):
        if loop.variable in depends or read & loop.stores:
            break
        total *= max(1.0, loop.extent)
    return total


def is_constant(node: Any, scope: Scope) -> bool:
    """Whether the compiler knows the value of `node` in each copy of the unrolled loops around it.

    It does not know the contents of tensors, which the caller may have stated, nor what other loops change.
    """
    if not scope.depends_on(node) <= {loop.variable for loop in scope.loops if loop.unrolled}:
        return False
    changed = frozenset().union(*(loop.stores for loop in scope.loops if not loop.unrolled))
    return not variables(node) & changed and not scope.reads_tables(node)


def open_share(condition: Any, scope: Scope) -> float:
    """Share of the copies of unrolled loops in which a condition on data is no constant.

    Of a conjunction, the compiler knows the parts that depend on the loops alone: where one of them is false,
    nothing is left of the condition and of what stands under it.
    """
    if type(condition).__name__ != "And" or not scope.is_data(condition):
        return 1.0
    loops = [loop for loop in scope.loops if loop.unrolled]
    held = np.ones(1, bool)
    for part in conjuncts(condition):
        if loops and is_constant(part, scope):
            held = held & scope.over_loops(part, loops).astype(bool)
    return float(held.mean())


def uniform_copies(condition: Any, scope: Scope) -> float:
    """Selections that share a branch on `condition`; 1 if the compiler selects each value by itself.

    It tests a condition once, and has the code of several selections for both cases, if the condition is the
    same for all threads. Such code computes anew what other code computes as well.
    """
    loops = (*scope.loops, *scope.phase_loops)
    same = scope.launch.block_variables | {loop.variable for loop in loops}
    if not scope.depends_on(condition) <= same:
        return 1.0
    shared = copies(condition, scope)
    return shared if shared >= _UNIFORM_COPIES else 1.0


def _key(context: CountingContext, node: Any, scope: Scope) -> Hashable:
    """A value of which equal ones are the same numbers: loops that the compiler unrolls have no names."""
    unrolled = {loop.variable: (loop.start, loop.extent) for loop in scope.loops if loop.unrolled}
    named: dict[int, int] = {}

    def of(part: Any) -> Hashable:
        kind, number = type(part).__name__, constant(part)
        if number is not None:
            return number
        if kind == "Var":
            variable = identity(part)
            extent = unrolled.get(variable)
            return variable if extent is None else (extent, named.setdefault(variable, len(named)))
        if kind == "BufferLoad":
            data = identity(part.buffer.data)
            return "load", data, context.memory.stores_to(data), *map(of, part.indices)
        if kind == "Cast":
            return kind, str(part.dtype), of(part.value)
        if kind == "Ramp":
            return kind, of(part.base), of(part.stride), of(part.lanes)
        if hasattr(part, "a") and hasattr(part, "b"):
            return kind, of(part.a), of(part.b)
        if kind == "Call" and not may_change_memory(part):
            return kind, str(part.op), str(part.dtype), *map(of, part.args)
        return identity(part)  # the same object alone

    # the iterations of other loops follow one another, and what they store changes in between
    around = tuple(loop.variable for loop in scope.loops if not loop.unrolled)
    return of(node), around, scope.apart
