"""Analyses loops and branches before they are walked: calls, loads, counters, and unrolling."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .element_types import element_type
from .expressions import constant, identity, is_power_of_two, is_scalar, loads, variables

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
BREAKS = ("tl.loop_break", "tirx.break_loop")
# nvcc unrolls constant loops of up to about SHORT iterations completely if nothing in them synchronises. If
# such a loop loads from device memory, it must also be small, counted in elements that a thread stores to
# local or shared buffers. Other loops with loads are unrolled in part, until LOADS_IN_FLIGHT loads are in
# flight, unless an iteration is large or guards its loads. Read off the machine code of 130 gemv and 70
# rms_norm kernels (nvcc 13.0). For 97 % of the gemv kernels, the number of round trips to memory that follows
# from these rules is within a factor of two.
SHORT = 16
SMALL_WHOLE = 192  # elements that all iterations store
SMALL_GUARDED = 128  # the same if conditions guard the loads
SMALL_BODY = 56  # elements that one iteration stores
LOADS_IN_FLIGHT = 16
UNROLLED_ON_REQUEST = 1000  # iterations up to which `#pragma unroll` unrolls a copy completely
LEAST_WRAPPED = 3  # remainders in the address of a store that a swizzle over several bits makes
FEW_GUARDED = 3  # guarded loads of one iteration up to which the compiler joins two iterations
MOST_UNROLLED = 8  # iterations
# Registers for which a loop over the elements of a local array has loads in flight. The compiler unrolls such
# a loop completely, since registers have no addresses. Read off the machine code of recurrent decode kernels.
REGISTERS_IN_FLIGHT = 64
# Loads in flight if the loop also stores to device memory, unless the loads are of constant tensors and an
# iteration stores FEW_ELEMENTS at most to local and shared buffers (a running sum: 16, a scaled row: 2).
LOADS_BESIDE_STORES = 2
FEW_ELEMENTS = 4
# A loop without barriers whose iterations store FEW_ELEMENTS at most to registers, a sum for example, is
# unrolled by a power of two until this many loads are in flight. Read off the machine code of 312 sums of
# products of 1 to 8 loads (nvcc 13.0).
LOADS_OF_SMALL_BODIES = 32
# Conditions that are the same in all iterations make a body longer, so fewer iterations fit: by these
# divisors if the loads alone stand under one, or what is computed from them as well. Read off the machine
# code of 144 sums.
SELECTED_LOADS, SELECTED_VALUES = 2, 4
JOINED_BRANCHES = 5.0  # loads in flight of branches with divisions, if they have one condition
# Different divisions in the condition of a selection up to which the compiler computes all of it at once and
# makes predicates of it; with more, it has a branch for each part. Read off the machine code of four products
# of windows of images by others, with 1 and 3 divisions (nvcc 13.0); ragged tiles of matmuls have up to 2.
FEW_DIVISIONS = 2
DIVIDED = 0.5  # time of an address with divisions, as a share of a round trip
_QUOTIENTS = ("FloorDiv", "FloorMod", "Div", "Mod")
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
        name = getattr(part.op, "name", "") if kind == "Call" else ""
        return any(n in name for n in names) or (
            name == "tirx.call_extern" and "AllReduce" in str(part.args[0])
        )

    return contains(node, is_one)


def breaks(node: Any) -> bool:
    """Whether `node` contains a call that leaves a loop before its last iteration."""
    return contains(node, lambda part, kind: kind == "Call" and getattr(part.op, "name", "") in BREAKS)


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


def waits_for_each(node: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether the loads of an unrolled loop are in flight one after another.

    This happens to loads under a condition within a branch, and to loads that go directly to shared memory
    under two conditions on the same thread: the row and the column of a tile whose rows the threads do not
    divide. Two conditions on the same iteration count as well if the loop is too long to be unrolled. The
    compiler makes a branch of each iteration, and it moves no load across a store.
    """
    return round_trips_of_branches(node, is_global) >= 1.0 or copies_one_by_one(node, is_global)


def copies_one_by_one(node: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether an unrolled loop copies to shared memory under two conditions, as `waits_for_each` says."""
    store = node.body
    if type(store).__name__ != "BufferStore" or not str(store.buffer.scope()).startswith("shared"):
        return False
    apart = False
    constants = {identity(node.loop_var)} if (constant(node.extent) or 0) <= UNROLLED_ON_REQUEST else set()

    def look(part: Any, kind: str) -> None:
        nonlocal apart
        if kind == "And":
            apart = apart or bool(_variables(part.a) & _variables(part.b) - constants)

    visit(store.value, look)
    return apart and touches_global(store.value, is_global)


def round_trips_of_branches(node: Any, is_global: Callable[[Any], bool], *, alone: bool = False) -> float:
    """Round trips to memory that an iteration of a loop waits for, whose body is a branch that the compiler
    keeps; 0 if it keeps none.

    The branch has a store of loads from device memory, or chooses between such a load and another value
    for a store. The compiler turns a short branch into predicates. It keeps one with another condition
    inside, one that computes a swizzled address anew in each iteration, and one with a division in the
    address of its load. Of a selection, it keeps the branch if the condition takes several divisions.
    Then no load is issued before those of the branch before it have arrived. If no loop changes the
    condition, a few branches with divisions are joined; each still computes its address by some 40
    instructions that wait for each other. Read off the machine code of copies whose tile the threads do
    not divide, at a tensor's edge and to swizzled rows, and of 22 convolutions (nvcc 13.0).

    Args:
        node: the loop.
        is_global: whether a buffer lies in device memory.
        alone: whether no loop that stays a loop is around this one.
    """
    branch = _inside_unrolled(node.body)
    parts = _sides(branch)
    if parts is None:
        return 0.0
    steps, outer = set(), node
    while type(outer).__name__ == "For":
        steps.add(identity(outer.loop_var))
        outer = outer.body
    condition, *stores = parts
    changes = _variables(condition)
    if changes <= steps:  # constants, once the loops are unrolled
        return 0.0
    if branch is stores[0]:  # a selection
        kept = str(branch.buffer.scope()).startswith("shared") and touches_global(branch.value, is_global)
        divided = kept and _divisions(condition, steps) > FEW_DIVISIONS
    else:
        divided = any(_stores_divided(part, is_global, steps) for part in stores)
        if any(_stores_guarded(part, is_global, steps) for part in stores):
            return 1.0 + DIVIDED * divided
    if divided:
        return DIVIDED + (1 / JOINED_BRANCHES if alone and not changes & steps else 1.0)
    return 0.0


def _sides(branch: Any) -> tuple[Any, ...] | None:
    """The condition and both parts of a branch; None if a statement is none.

    The generated source has a branch for a store of a value that is loaded under a condition.
    """
    kind = type(branch).__name__
    if kind == "IfThenElse":
        return branch.condition, branch.then_case, branch.else_case
    if kind == "BufferStore":
        choice = branch.value
        if getattr(getattr(choice, "op", None), "name", "").endswith("if_then_else"):
            return choice.args[0], branch
    return None


def loads_beside_calls(node: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether a loop loads from device memory and calls a routine, in exact divisions and square roots.

    The compiler moves no load of an iteration before the calls of the one before. Read off the machine code
    of a normalisation over channels (nvcc 13.0).
    """
    loads = called = False

    def look(part: Any, kind: str) -> None:
        nonlocal loads, called
        loads = loads or (kind == "BufferLoad" and is_global(part.buffer))
        called = called or calls_routine(part, kind)

    visit(node.body, look)
    return loads and called


def calls_routine(part: Any, kind: str) -> bool:
    """Whether an expression is an exact division or square root, which call a routine for rare values."""
    if kind == "Call":
        return str(getattr(part.op, "name", "")).rpartition(".")[2] == "sqrt"
    return kind == "Div" and element_type(str(part.dtype)).kind == "float"


def _divisions(expression: Any, steps: set[int]) -> int:
    """Different divisions in an expression that the loops' variables `steps` change, by anything but a power
    of two. A quotient and its remainder are one.
    """
    from tvm.ir import structural_hash

    found: set[tuple[int, int]] = set()

    def look(part: Any, kind: str) -> None:
        if kind in _QUOTIENTS and not is_power_of_two(part.b) and _variables(part.a) & steps:
            found.add((structural_hash(part.a), structural_hash(part.b)))

    visit(expression, look)
    return len(found)


def _stores_divided(part: Any, is_global: Callable[[Any], bool], steps: set[int]) -> bool:
    """Whether a part of a branch is one store of loads from device memory to shared memory, to whose
    addresses the compiler comes by divisions: those of the loops' variables `steps` by anything but a power
    of two.
    """
    store = _inside_unrolled(part)
    if type(store).__name__ != "BufferStore" or not str(store.buffer.scope()).startswith("shared"):
        return False

    def divides(part: Any, kind: str) -> bool:
        return kind in _QUOTIENTS and not is_power_of_two(part.b) and bool(_variables(part.a) & steps)

    return any(
        contains(index, divides)
        for load in loads(store.value)
        if is_global(load.buffer)
        for index in load.indices
    )


def _stores_guarded(part: Any, is_global: Callable[[Any], bool], steps: set[int]) -> bool:
    """Whether a part of a branch is one store of loads from device memory, under a condition or to an address
    that is no linear function of the loops' variables `steps`.
    """
    store = _inside_unrolled(part)
    if type(store).__name__ != "BufferStore" or not touches_global(store.value, is_global):
        return False
    wrapped = 0

    def is_guarded(part: Any, kind: str) -> bool:
        is_choice = kind == "Call" and getattr(part.op, "name", "").endswith("if_then_else")
        return is_choice and touches_global(part, is_global)

    def address(part: Any, kind: str) -> None:
        nonlocal wrapped
        wrapped += kind in ("FloorMod", "Mod") and bool(_variables(part) & steps)

    for index in store.indices:
        visit(index, address)
    return contains(store.value, is_guarded) or wrapped >= LEAST_WRAPPED


def _inside_unrolled(node: Any) -> Any:
    """The statement inside the unrolled loops that `node` begins with."""
    while type(node).__name__ == "For" and is_unrolled(node):
        node = node.body
    return node


def _variables(expression: Any) -> set[int]:
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
        return body_of(node.body, is_global, variable).times(float(constant(node.extent) or 1))
    if kind == "IfThenElse":
        inside = sum(
            (body_of(p, is_global, variable) for p in (node.then_case, node.else_case) if p is not None),
            Body(),
        )
        guards = variable in _variables(node.condition) and touches_global(node, is_global)
        return replace(inside, guarded=inside.guarded or guards)
    if kind == "BufferStore":
        found = _loads_of(node.value, is_global, variable)
        lanes = 0 if is_global(node.buffer) else element_type(str(node.value.dtype)).lanes
        return replace(found, elements=float(lanes))
    return body_of(node.body, is_global, variable) if hasattr(node, "body") else Body()


def _loads_of(value: Any, is_global: Callable[[Any], bool], variable: int) -> Body:
    loads, selections, guarded = 0, 0, False

    def look(part: Any, kind: str) -> None:
        nonlocal loads, selections, guarded
        if kind == "BufferLoad" and is_global(part.buffer):
            loads += 1
        elif kind == "Call" and getattr(part.op, "name", "").endswith("if_then_else"):
            changes = variable in _variables(part.args[0])
            guarded = guarded or (changes and touches_global(part, is_global))
            selections += not changes

    visit(value, look)
    return Body(loads=float(loads), guarded=guarded, selections=float(selections))


def touches_global(node: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether `node` loads from or stores to device memory."""
    return contains(node, lambda part, kind: kind in ("BufferLoad", "BufferStore") and is_global(part.buffer))


def unrolled_by(node: Any, is_global: Callable[[Any], bool], is_constant: Callable[[Any], bool]) -> int:
    """Number of iterations whose plain loads are in flight together; 1 if the compiler does not unroll.

    Only loops that do not store to the tensors they load from are unrolled. Across barriers of the block the
    compiler moves only loads of constant tensors (read off the machine code of gemv kernels that stage their
    operands in shared memory, nvcc 13.0).

    Args:
        node: the loop.
        is_global: whether a buffer lies in device memory.
        is_constant: whether the kernel only reads a buffer in device memory.
    """
    loaded, stored = set(), set()
    constant_loads, registers, over_local = True, 0.0, False

    def look(part: Any, kind: str) -> None:
        nonlocal constant_loads, registers, over_local
        if kind == "BufferLoad" and is_global(part.buffer):
            loaded.add(identity(part.buffer.data))
            constant_loads = constant_loads and is_constant(part.buffer)
            loaded_type = element_type(str(part.dtype))
            registers += max(1.0, loaded_type.lanes * loaded_type.bytes / 4)
        elif kind == "BufferStore" and is_global(part.buffer):
            stored.add(identity(part.buffer.data))
        elif kind == "BufferStore" and str(part.buffer.scope()).startswith("local"):
            over_local = over_local or identity(node.loop_var) in _variables(part.indices[0])

    visit(node.body, look)
    waits = tuple(name for name in ASYNCHRONOUS if not constant_loads or name != BARRIER)
    if not loaded or loaded & stored or calls(node.body, (*waits, *MATRIX, "atomic")):
        return 1
    body = body_of(node.body, is_global, identity(node.loop_var))
    if body.elements > SMALL_BODY or (is_unrolled(node) and waits_for_each(node, is_global)):
        return 1
    if body.guarded:
        return 2 if body.loads <= FEW_GUARDED and not stored else 1
    moves = constant_loads and body.elements <= FEW_ELEMENTS
    most = LOADS_BESIDE_STORES if stored and not moves else LOADS_IN_FLIGHT
    extent = constant(node.extent)
    in_part = min(most // max(1.0, body.loads), extent or most, MOST_UNROLLED)
    if body.elements <= FEW_ELEMENTS and not stored and not calls(node.body, (BARRIER,)):
        small = 2 ** int(math.log2(max(1.0, LOADS_OF_SMALL_BODIES / max(1.0, body.loads))))
        in_part = max(in_part, min(small, extent or 1))
    if body.selections:
        in_part //= SELECTED_LOADS if body.selections <= body.loads else SELECTED_VALUES
    if over_local and extent and not stored and body.loads <= 1:
        in_part = max(in_part, min(REGISTERS_IN_FLIGHT // registers, extent))
    return max(1, int(in_part))


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
