"""Branches around loads that the compiler keeps, and what their loads wait for.

The compiler makes predicates of a short branch, and keeps a longer one. No load moves into a branch that is
kept, or out of it: each of its parts that loads waits for a round trip of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .element_types import element_type
from .expressions import constant, identity, is_choice, is_power_of_two, is_shared, loads
from .index_arithmetic import QUOTIENTS, reciprocal_divisor
from .loops import contains, is_unrolled, loads_globally, plain_variables, touches_global, visit

# Instructions of a 64-bit quotient by a number that is known at run time alone. The machine code calls a
# routine for numbers of more than 32 bits, and a division of 32 bits takes the other side of its branch (nvcc
# 13.0, hyper-connections by others).
RUN_TIME_DIVISION_INSTRUCTIONS = 40.0
UNROLLED_ON_REQUEST = 1000  # iterations up to which `#pragma unroll` unrolls a copy completely
LEAST_WRAPPED = 3  # remainders in the address of a store that a swizzle over several bits makes
JOINED_BRANCHES = 5.0  # loads in flight of branches with divisions, if they have one condition
# Different divisions in the condition of a selection up to which the compiler computes all of it at once and
# makes predicates of it; with more, it has a branch for each part. Read off the machine code of four products
# of windows of images by others, with 1 and 3 divisions (nvcc 13.0); ragged tiles of matmuls have up to 2.
FEW_DIVISIONS = 2
# Loads in flight whose predicates are needed again, of the seven predicates of a thread. Read off the machine
# code of a product by others whose loads under a condition are converted (nvcc 13.0).
HELD_PREDICATES = 6.0


def waits_for_each(node: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether the loads of an unrolled loop are in flight one after another.

    This happens to loads under a condition within a branch, and to loads that go directly to shared memory
    under two conditions on the same thread: the row and the column of a tile whose rows the threads do not
    divide. Two conditions on the same iteration count as well if the loop is too long to be unrolled. The
    compiler makes a branch of each iteration, and it moves no load across a store.
    """
    return kept_branch(node, is_global).trips >= 1.0 or copies_one_by_one(node, is_global)


def copies_one_by_one(node: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether an unrolled loop copies to shared memory under two conditions, as `waits_for_each` says."""
    store = node.body
    if type(store).__name__ != "BufferStore" or not is_shared(store.buffer):
        return False
    apart = False
    constants = {identity(node.loop_var)} if (constant(node.extent) or 0) <= UNROLLED_ON_REQUEST else set()

    def look(part: Any, kind: str) -> None:
        nonlocal apart
        if kind == "And":
            apart = apart or bool(plain_variables(part.a) & plain_variables(part.b) - constants)

    visit(store.value, look)
    return apart and touches_global(store.value, is_global)


@dataclass(frozen=True, slots=True)
class KeptBranch:
    """What an iteration waits for whose body is a branch; nothing if the compiler keeps none."""

    trips: float = 0.0  # round trips to memory
    divided: bool = False  # the address of its load needs divisions, whose instructions wait for each other


def kept_branch(node: Any, is_global: Callable[[Any], bool], *, alone: bool = False) -> KeptBranch:
    """What an iteration of a loop waits for whose body is a branch.

    The branch has a store of loads from device memory, or chooses between such a load and another value
    for a store. The compiler turns a short branch into predicates. It keeps one with another condition
    inside, one that computes a swizzled address anew in each iteration, and one with a division in the
    address of its load. Of a selection, it keeps the branch if the condition takes several divisions, or if
    the address of the load has selections of its own, such as coordinates that are reflected at an edge.
    Then no load is issued before those of the branch before it have arrived. If no loop changes the
    condition, a few branches with divisions are joined; each still computes its address. Of unrolled loads
    whose predicates are needed again, a few are in flight. Read off the machine code of copies whose tile the
    threads do not divide, at a tensor's edge and to swizzled rows, and of 22 convolutions (nvcc 13.0).

    Args:
        node: the loop.
        is_global: whether a buffer lies in device memory.
        alone: whether no loop that stays a loop is around this one.
    """
    branch = _inside_unrolled(node.body)
    whole = _with_its_value(branch)
    parts = _sides(whole)
    kept = KeptBranch() if parts is None else _kept(node, whole, parts, is_global, alone=alone)
    if not kept.trips and is_unrolled(node) and _holds_predicate(node, branch, is_global):
        return KeptBranch(1 / HELD_PREDICATES)
    return kept


def _kept(
    node: Any, branch: Any, parts: tuple[Any, ...], is_global: Callable[[Any], bool], *, alone: bool
) -> KeptBranch:
    """What an iteration waits for, if the compiler keeps the branch of these parts."""
    condition, *stores = parts
    steps = _steps(node)
    changes = plain_variables(condition)
    if changes <= steps:  # constants, once the loops are unrolled
        return KeptBranch()
    if branch is stores[0]:  # a selection
        kept = is_shared(branch.buffer) and touches_global(branch.value, is_global)
        loaded = [load for load in loads(branch.value) if kept and is_global(load.buffer)]
        if _in_address(loaded, _selects_by(steps)):
            return KeptBranch(1.0, _in_address(loaded, _divides_by(steps)))
        divided = kept and _divisions(condition, steps) > FEW_DIVISIONS
    else:
        divided = any(_stores_divided(part, is_global, steps) for part in stores)
        if any(_stores_guarded(part, is_global, steps) for part in stores):
            return KeptBranch(1.0, divided)
    if divided:
        return KeptBranch(1 / JOINED_BRANCHES if alone and not changes & steps else 1.0, divided)
    return KeptBranch()


def _steps(node: Any) -> set[int]:
    """The variables of a loop and of those that it consists of."""
    steps = set()
    while type(node).__name__ == "For":
        steps.add(identity(node.loop_var))
        node = node.body
    return steps


def _holds_predicate(node: Any, store: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether each iteration of an unrolled loop computes with what it loads under a condition of its own.

    The predicate of a load is needed again when its number is there: the computation has the same condition.
    """
    if type(store).__name__ != "BufferStore":
        return False
    steps = _steps(node)

    def computes(part: Any, _kind: str) -> bool:
        if not is_choice(part):
            return False
        condition, *values = part.args
        changes = plain_variables(condition)
        computed = any(
            type(value).__name__ != "BufferLoad" and loads_globally(value, is_global) for value in values
        )
        return computed and bool(changes & steps) and not changes <= steps

    return contains(store.value, computes)


def _sides(branch: Any) -> tuple[Any, ...] | None:
    """The condition and both parts of a branch; None if a statement is none.

    The generated source has a branch for a store of a value that is loaded under a condition.
    """
    kind = type(branch).__name__
    if kind == "IfThenElse":
        return branch.condition, branch.then_case, branch.else_case
    if kind == "BufferStore":
        choice = branch.value
        while type(choice).__name__ == "Cast":
            choice = choice.value
        if is_choice(choice):
            return choice.args[0], branch
    return None


def _with_its_value(branch: Any) -> Any:
    """A statement, or the store of a variable's value in place of the variable and its store."""
    from tvm import tirx

    parts = list(branch.seq) if type(branch).__name__ == "SeqStmt" else []
    if [type(part).__name__ for part in parts] != ["Bind", "BufferStore"]:
        return branch
    bound, store = parts
    value = tirx.stmt_functor.substitute(store.value, {bound.var: bound.value})
    return tirx.BufferStore(store.buffer, value, store.indices)


def _selects_by(steps: set[int]) -> Callable[[Any, str], bool]:
    """Finds selections under conditions that the loops' variables `steps` and something else change."""

    def selects(part: Any, _kind: str) -> bool:
        changes = plain_variables(part.args[0]) if is_choice(part) else set()
        return bool(changes & steps) and not changes <= steps

    return selects


def _divides_by(steps: set[int]) -> Callable[[Any, str], bool]:
    """Finds divisions of the loops' variables `steps` by anything but a power of two."""

    def divides(part: Any, kind: str) -> bool:
        return kind in QUOTIENTS and not is_power_of_two(part.b) and bool(plain_variables(part.a) & steps)

    return divides


def calls_division(value: Any) -> bool:
    """Whether the address of a load calls the routine of 64-bit divisions by sizes that are not constant.

    A quotient of two constants has such a size, whose value was put in its place: TileLang computes others.
    """

    def divides(part: Any, kind: str) -> bool:
        if kind not in QUOTIENTS or element_type(str(part.dtype)).bits != 64:
            return False
        return constant(part.b) is None or constant(part.a) is not None

    return _in_address(loads(value), divides)


def long_quotients(value: Any, is_global: Callable[[Any], bool]) -> int:
    """Different 64-bit quotients in addresses of loads that the compiler leaves in their branch.

    The address has a loaded index, whose own address has such a quotient, so that the compiler does not find
    it to be the index that the condition tests. Quotients by powers of two are none. Read off the machine
    code of a position embedding by others (nvcc 13.0).
    """
    found: set[str] = set()

    def look(part: Any, kind: str) -> None:
        divisor = reciprocal_divisor(part, kind)
        if divisor and element_type(str(part.dtype)).bits == 64 and constant(part.a) is None:
            found.add(f"{part.a} / {divisor}")

    addresses = [index for load in loads(value) for index in load.indices]
    for inner in (inner for index in addresses for inner in loads(index) if is_global(inner.buffer)):
        visit(inner.indices[0], look)
    if found:
        for index in addresses:
            visit(index, look)
    return len(found)


def _divisions(expression: Any, steps: set[int]) -> int:
    """Different divisions in an expression that the loops' variables `steps` change, by anything but a power
    of two. A quotient and its remainder are one.
    """
    from tvm.ir import structural_hash

    found: set[tuple[int, int]] = set()

    def look(part: Any, kind: str) -> None:
        if kind in QUOTIENTS and not is_power_of_two(part.b) and plain_variables(part.a) & steps:
            found.add((structural_hash(part.a), structural_hash(part.b)))

    visit(expression, look)
    return len(found)


def _stores_divided(part: Any, is_global: Callable[[Any], bool], steps: set[int]) -> bool:
    """Whether a part of a branch is one store of loads from device memory to shared memory, to whose
    addresses the compiler comes by divisions: those of the loops' variables `steps` by anything but a power
    of two.
    """
    store = _inside_unrolled(part)
    if type(store).__name__ != "BufferStore" or not is_shared(store.buffer):
        return False
    return _in_address([load for load in loads(store.value) if is_global(load.buffer)], _divides_by(steps))


def _in_address(loaded: Sequence[Any], found: Callable[[Any, str], bool]) -> bool:
    """Whether the address of a load has a part of that kind."""
    return any(contains(index, found) for load in loaded for index in load.indices)


def _stores_guarded(part: Any, is_global: Callable[[Any], bool], steps: set[int]) -> bool:
    """Whether a part of a branch is one store of loads from device memory, under a condition or to an address
    that is no linear function of the loops' variables `steps`.
    """
    store = _inside_unrolled(part)
    if type(store).__name__ != "BufferStore" or not touches_global(store.value, is_global):
        return False
    wrapped = 0

    def is_guarded(part: Any, _kind: str) -> bool:
        return is_choice(part) and touches_global(part, is_global)

    def address(part: Any, kind: str) -> None:
        nonlocal wrapped
        wrapped += kind in ("FloorMod", "Mod") and bool(plain_variables(part) & steps)

    for index in store.indices:
        visit(index, address)
    return contains(store.value, is_guarded) or wrapped >= LEAST_WRAPPED


def _inside_unrolled(node: Any) -> Any:
    """The statement inside the unrolled loops that `node` begins with."""
    while type(node).__name__ == "For" and is_unrolled(node):
        node = node.body
    return node
