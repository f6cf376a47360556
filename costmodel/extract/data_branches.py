"""Branches on data that an iteration loads, and what the loads behind them wait for."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from .expressions import call_name, constant, identity, is_choice, is_scalar, is_shared, loads, variables
from .kept_branches import HELD_PREDICATES
from .loops import BARRIER, calls, contains, is_unrolled, loads_globally

PREDICATED_COPIES = 8  # iterations of a loop that the compiler joins if it makes predicates of a branch in it


def trips_behind_branches(loop: Any, is_global: Callable[[Any], bool]) -> float:
    """Round trips of the loads of an iteration, if it branches on data that it loads, and loads behind that.

    The branch stays one if another stands in it. Read off the machine code of a sparse decoding kernel by
    others (nvcc 13.0), whose iterations load an index, then a part of a row if the index is valid, and then
    another part for some of the threads. A branch on numbers in shared memory stays one as well. A branch
    without another one becomes predicates: the compiler joins a few iterations, and has as many loads in
    flight as there are predicates. Their wait includes the one for the data that decides, which several
    iterations load at once. Read off the machine code of a product by others with the rows that are not zero
    (nvcc 13.0).

    Args:
        loop: a loop that the source does not request to unroll.
        is_global: whether a buffer lies in device memory.

    Returns:
        The round trips, with those of the data that decides; 0 without such a branch.
    """
    trips = 0.0
    loaded, shared = set[int](), set[int]()
    read: list[Any] = []
    copies = min(PREDICATED_COPIES, constant(loop.extent) or PREDICATED_COPIES)
    joined = math.ceil(copies / HELD_PREDICATES) / copies if not calls(loop.body, (BARRIER,)) else 0.0
    for part in _statements(loop.body):
        kind = type(part).__name__
        if kind in ("Bind", "BufferStore"):
            target = part.var if kind == "Bind" else part.buffer.data
            if loads_globally(part.value, is_global):
                loaded.add(identity(target))
            elif _loads_shared(part.value):
                shared.add(identity(target))
        elif kind == "IfThenElse":
            decided = bool(variables(part.condition) & loaded) or loads_globally(part.condition, is_global)
            by_shared = bool(variables(part.condition) & shared) or _loads_shared(part.condition)
            inside = _groups_of_loads(part.then_case, is_global)
            kept = inside > 1 or (inside and _selects_load(part, is_global))
            if kept and (decided or by_shared):
                trips += inside + decided
            elif decided and not contains(part.then_case, _is_long):
                known = [*read, *loads(part.condition)]
                trips += joined * _loads_others(part.then_case, known, is_global)
        read += loads(part)
    return trips


def _statements(node: Any) -> list[Any]:
    kind = type(node).__name__
    if kind == "SeqStmt":
        return [inner for part in node.seq for inner in _statements(part)]
    return _statements(node.body) if kind == "AttrStmt" else [node]


def _groups_of_loads(node: Any, is_global: Callable[[Any], bool]) -> int:
    """Groups of loads in a branch: those before the first branch in it, and each branch that loads."""
    plain, branches = False, 0
    for part in _statements(node):
        if type(part).__name__ == "IfThenElse":
            branches += loads_globally(part, is_global)
        else:
            plain = plain or loads_globally(part, is_global)
    return plain + branches


def _is_long(part: Any, kind: str) -> bool:
    """Whether a loop stays one, so that the compiler makes no predicates of a branch around it."""
    return kind == "For" and not is_unrolled(part) and (constant(part.extent) or math.inf) > PREDICATED_COPIES


def _loads_shared(node: Any) -> bool:
    return any(is_shared(load.buffer) for load in loads(node))


def _loads_others(node: Any, known: Sequence[Any], is_global: Callable[[Any], bool]) -> bool:
    """Whether a statement loads from device memory what is not among the loads `known`."""
    from tvm.ir import structural_hash

    seen = {structural_hash(load) for load in known}
    return any(is_global(load.buffer) and structural_hash(load) not in seen for load in loads(node))


def _selects_load(branch: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether a branch selects a load by a condition that its own one does not imply."""
    known, _ = _limits(branch.condition)

    def selects(part: Any, _kind: str) -> bool:
        if not (is_choice(part) and loads_globally(part, is_global)):
            return False
        limits, complete = _limits(part.args[0])
        return not complete or any(limit > known.get(side, -math.inf) for side, limit in limits.items())

    return contains(branch.then_case, selects)


def _limits(condition: Any) -> tuple[dict[tuple[str, int], float], bool]:
    """The limits that comparisons with constants set to values, and whether the condition is made of these.

    A limit from below has the sign 1. One from above has the sign -1 and is negated: the larger is stricter.
    """
    kind = type(condition).__name__
    if kind == "And" or call_name(condition) == "tirx.bitwise_and":
        parts = condition.args if kind == "Call" else (condition.a, condition.b)
        found = [_limits(part) for part in parts if constant(part) is None]
        sides = frozenset().union(*(limits for limits, _ in found))
        strictest = {side: max(limits.get(side, -math.inf) for limits, _ in found) for side in sides}
        return strictest, all(complete for _, complete in found)
    if kind not in ("LT", "LE", "GT", "GE"):
        return {}, False
    small, large = (condition.a, condition.b) if kind in ("LT", "LE") else (condition.b, condition.a)
    beyond = kind in ("LT", "GT")
    for value, limit, sign in ((large, constant(small), 1), (small, constant(large), -1)):
        if limit is not None:
            return {(_name(value), sign): sign * limit + beyond}, True
    return {}, False


def _name(value: Any) -> str:
    """A text that is equal for equal values, also where one loads a scalar by an index of another type."""
    if type(value).__name__ == "BufferLoad" and is_scalar(value.buffer):
        return f"scalar {identity(value.buffer.data)}"
    return str(value)
