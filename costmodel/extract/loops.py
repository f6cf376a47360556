"""Analyses loops and branches before they are walked: calls, loads, counters, and unrolling."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .element_types import element_type
from .expressions import (
    UnevaluableError,
    call_name,
    constant,
    evaluate,
    identity,
    is_choice,
    is_scalar,
    variables,
)

BARRIER = "storage_sync"
ASYNCHRONOUS = (
    "tma_load",
    "tma_store",
    "cp_async",
    "mbarrier_wait",
    "ptx_wait_group",
    "ptx_wait_barrier",
    BARRIER,
    "cluster_sync",
)
MATRIX = ("wgmma", "ptx_mma", "mfma")
GLOBAL = ("ldg", "stg", "atomic")
SPECIALISING = ("set_max_nreg", "mbarrier_wait", "ptx_arrive_barrier")
SPECIALISED = "warp_specialize"  # the attribute by which T.ws marks its branches
COPIES = ("tma_load", "cp_async")
RETURN = "tirx.thread_return"
BREAKS = ("tl.loop_break", "tirx.break_loop")
# nvcc unrolls constant loops of up to about SHORT iterations completely if nothing in them synchronises. If
# such a loop loads from device memory, it must also be small, counted in elements that a thread stores to
# local or shared buffers. Read off the machine code of 130 gemv and 70 rms_norm kernels (nvcc 13.0).
SHORT = 16
SMALL_WHOLE = 192  # elements that all iterations store
SMALL_GUARDED = 128  # the same if conditions guard the loads
SMALL_BODY = 56  # elements that one iteration stores
_UNROLLED_KINDS = (2, 3)  # TVM's ForKind: vectorized, unrolled


def visit(node: Any, function: Callable[[Any, str], None]) -> None:
    """Call `function(part, name of its class)` for every statement and expression within `node`."""
    from tvm.tirx.stmt_functor import post_order_visit

    post_order_visit(node, lambda part: function(part, type(part).__name__))


def contains(node: Any, matches: Callable[[Any, str], bool]) -> bool:
    """Whether `matches(part, name of its class)` holds for a statement or expression within `node`."""
    found = False

    def look(part: Any, kind: str) -> None:
        nonlocal found
        found = found or matches(part, kind)

    visit(node, look)
    return found


def calls(node: Any, names: tuple[str, ...]) -> bool:
    """Whether `node` contains a call whose name includes one of `names`, or a reduction over threads."""

    def is_one(part: Any, kind: str) -> bool:
        return _is_call(part, kind, names) or (
            kind == "Call" and call_name(part) == "tirx.call_extern" and "AllReduce" in str(part.args[0])
        )

    return contains(node, is_one)


def is_loop(_part: Any, kind: str) -> bool:
    """Whether a statement is a loop, as `contains` asks."""
    return kind in ("For", "While")


def breaks(node: Any) -> bool:
    """Whether `node` contains a call that leaves a loop before its last iteration."""
    return contains(node, lambda part, kind: kind == "Call" and call_name(part) in BREAKS)


def ends_early(node: Any) -> bool:
    """Whether the body of a loop contains a call that leaves the loop or ends the thread."""
    return contains(node, lambda part, kind: kind == "Call" and call_name(part) in (*BREAKS, RETURN))


def _is_call(part: Any, kind: str, names: tuple[str, ...]) -> bool:
    """Whether an expression is a call whose name includes one of `names`."""
    return kind == "Call" and any(name in call_name(part) for name in names)


def is_unrolled(node: Any) -> bool:
    """Whether the source requests that a loop is unrolled, or the loop has at most one iteration."""
    extent = constant(node.extent)
    return int(node.kind) in _UNROLLED_KINDS or (extent is not None and extent <= 1)


def is_short(node: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether the device compiler unrolls a loop completely without a request."""
    extent = constant(node.extent)
    if extent is None or extent > SHORT or calls(node.body, (*ASYNCHRONOUS, *MATRIX)):
        return False
    body = body_of(node.body, is_global, identity(node.loop_var))
    if body.loads and (
        body.elements > SMALL_BODY
        or extent * body.elements > (SMALL_GUARDED if body.guarded else SMALL_WHOLE)
    ):
        return False
    longer = False

    def look(part: Any, kind: str) -> None:
        nonlocal longer
        if kind == "While":
            longer = True
        elif kind == "For" and not is_unrolled(part):
            inner = constant(part.extent)
            longer = longer or inner is None or inner > SHORT

    visit(node.body, look)
    return not longer


@dataclass(frozen=True, slots=True)
class Body:
    """Loads and stores of one thread in one iteration, with the iterations of inner loops added up."""

    loads: float = 0.0  # from device memory; guarded loads count as executed
    elements: float = 0.0  # stored to local and shared buffers
    guarded: bool = False  # an access to device memory stands under a condition that iterations change
    selections: float = 0.0  # of values under conditions that are the same in all iterations

    def __add__(self, other: Body) -> Body:
        return Body(
            self.loads + other.loads,
            self.elements + other.elements,
            self.guarded or other.guarded,
            self.selections + other.selections,
        )

    def times(self, extent: float) -> Body:
        return Body(self.loads * extent, self.elements * extent, self.guarded, self.selections * extent)


def loads_beside_calls(node: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether a loop loads from device memory and calls a routine, in exact divisions and square roots.

    The compiler moves no load of an iteration before the calls of the one before. Read off the machine code
    of a normalisation over channels (nvcc 13.0).
    """
    loading = called = False

    def look(part: Any, kind: str) -> None:
        nonlocal loading, called
        loading = loading or (kind == "BufferLoad" and is_global(part.buffer))
        called = called or calls_routine(part, kind)

    visit(node.body, look)
    return loading and called


def loads_globally(node: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether a statement loads from device memory, element by element or by copies."""

    def is_load(part: Any, kind: str) -> bool:
        return _is_call(part, kind, (*COPIES, "ldg")) or (kind == "BufferLoad" and is_global(part.buffer))

    return contains(node, is_load)


def calls_routine(part: Any, kind: str) -> bool:
    """Whether an expression is an exact division or square root, which call a routine for rare values."""
    if kind == "Call":
        return call_name(part).rpartition(".")[2] == "sqrt"
    return kind == "Div" and element_type(str(part.dtype)).kind == "float"


def plain_variables(expression: Any) -> set[int]:
    """Identities of the variables in an expression, without the buffers that it loads from."""
    found: set[int] = set()
    visit(expression, lambda part, kind: found.add(identity(part)) if kind == "Var" else None)
    return found


def body_of(node: Any, is_global: Callable[[Any], bool], variable: int) -> Body:
    """Return the loads and stored elements of a statement in a loop.

    Args:
        node: the statement.
        is_global: whether a buffer lies in device memory.
        variable: identity of the loop's variable. Conditions without it are the same in all iterations: the
            compiler evaluates them before the loop, and its loads stay together.
    """
    kind = type(node).__name__
    if kind == "SeqStmt":
        return sum((body_of(part, is_global, variable) for part in node.seq), Body())
    if kind == "For":
        inside = body_of(node.body, is_global, variable).times(float(constant(node.extent) or 1))
        if not inside.loads:
            return inside
        return replace(inside, loads=max(1.0, inside.loads - _repeated_loads(node, is_global)))
    if kind == "IfThenElse":
        cases = [part for part in (node.then_case, node.else_case) if part is not None]
        inside = sum((body_of(part, is_global, variable) for part in cases), Body())
        # what the condition itself loads stands under no condition
        guards = variable in plain_variables(node.condition) and any(
            touches_global(part, is_global) for part in cases
        )
        tested = _loads_of(node.condition, is_global, variable).loads
        return replace(inside, loads=inside.loads + tested, guarded=inside.guarded or guards)
    if kind == "BufferStore":
        found = _loads_of(node.value, is_global, variable)
        lanes = 0 if is_global(node.buffer) else element_type(str(node.value.dtype)).lanes
        return replace(found, elements=float(lanes))
    if kind == "Bind":
        return _loads_of(node.value, is_global, variable)
    return body_of(node.body, is_global, variable) if hasattr(node, "body") else Body()


def _repeated_loads(loop: Any, is_global: Callable[[Any], bool]) -> float:
    """Loads that the iterations of an unrolled loop have in common, such as an operand of several products.

    0 if there is another loop in it.
    """
    extent, variable = constant(loop.extent), identity(loop.loop_var)
    if not extent or not is_unrolled(loop) or contains(loop.body, lambda _, kind: kind == "For"):
        return 0.0
    repeated = 0.0

    def look(part: Any, kind: str) -> None:
        nonlocal repeated
        if kind == "BufferLoad" and is_global(part.buffer):
            index = part.indices[0]
            with suppress(UnevaluableError):
                at = dict.fromkeys(variables(index), 0) | {variable: np.arange(extent)}
                places = evaluate(index, at)
                repeated += extent - len(np.unique(np.broadcast_to(places, extent)))

    visit(loop.body, look)
    return repeated


def _loads_of(value: Any, is_global: Callable[[Any], bool], variable: int) -> Body:
    loads, selections, guarded = 0, 0, False

    def look(part: Any, kind: str) -> None:
        nonlocal loads, selections, guarded
        if kind == "BufferLoad" and is_global(part.buffer):
            loads += 1
        elif kind == "Call" and is_choice(part):
            changes = variable in plain_variables(part.args[0])
            chosen = any(touches_global(case, is_global) for case in part.args[1:])
            guarded = guarded or (changes and chosen)
            selections += not changes

    visit(value, look)
    return Body(loads=float(loads), guarded=guarded, selections=float(selections))


def touches_global(node: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether `node` loads from or stores to device memory."""
    return contains(node, lambda part, kind: kind in ("BufferLoad", "BufferStore") and is_global(part.buffer))


def stored_buffers(node: Any) -> frozenset[int]:
    """The data variables of the buffers that a statement stores to or hands to calls."""
    kind = type(node).__name__
    if kind == "SeqStmt":
        return frozenset().union(*map(stored_buffers, node.seq))
    if kind == "IfThenElse":
        parts = [part for part in (node.then_case, node.else_case) if part is not None]
        return frozenset().union(*map(stored_buffers, parts))
    if kind == "BufferStore":
        return frozenset({identity(node.buffer.data)})
    if kind == "Evaluate":
        return frozenset(variables(node.value))
    return stored_buffers(node.body) if hasattr(node, "body") else frozenset()


def specialises(node: Any) -> bool:
    """Whether a branch on threads gives groups of warps separate programs that synchronise at barriers."""
    marked = contains(node, lambda part, kind: kind == "AttrStmt" and part.attr_key == SPECIALISED)
    return marked or calls(node, SPECIALISING)


def has_phases(node: Any) -> bool:
    """Whether `node` contains loops that wait or synchronise, each of which becomes a phase."""
    return contains(
        node, lambda part, kind: kind == "For" and not is_unrolled(part) and calls(part.body, ASYNCHRONOUS)
    )


def carried(node: Any) -> dict[int, tuple[Any, int] | None]:
    """Local scalars that the body of a loop stores to.

    A counter is a scalar that is changed by `x = x + constant` only. Statements under conditions count as
    executed, since a counter of executed iterations numbers the slots of a ring buffer.

    Returns:
        By identity of the scalar: (the load of its current value, its step per iteration) for a counter, None
        for others.
    """
    found: dict[int, tuple[Any, int] | None] = {}
    _collect(node, 1, found)
    return found


def _collect(node: Any, times: int, found: dict[int, tuple[Any, int] | None]) -> None:
    kind = type(node).__name__
    if kind == "SeqStmt":
        for part in node.seq:
            _collect(part, times, found)
    elif kind == "For":
        _collect(node.body, times * (constant(node.extent) or 1), found)
    elif kind in ("AttrStmt", "While"):
        _collect(node.body, times, found)
    elif kind == "IfThenElse":
        for part in (node.then_case, node.else_case):
            if part is not None:
                _collect(part, times, found)
    elif kind == "BufferStore" and is_scalar(node.buffer):
        key = identity(node.buffer.data)
        step = _step(node.value, key)
        known = found.get(key, (None, 0))
        if step is None or known is None:
            found[key] = None
        else:
            found[key] = (step[0], known[1] + step[1] * times)


def _step(value: Any, key: int) -> tuple[Any, int] | None:
    """(x, c) if `value` is `x + c` and x is the scalar `key`; else None."""
    if type(value).__name__ != "Add":
        return None
    for load, step in ((value.a, constant(value.b)), (value.b, constant(value.a))):
        if step is not None and type(load).__name__ == "BufferLoad" and identity(load.buffer.data) == key:
            return load, step
    return None
