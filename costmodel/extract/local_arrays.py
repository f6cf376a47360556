"""Finds local arrays in local memory: those whose elements cannot be in registers, which have no addresses.

The compiler gives registers to the elements of an array only if it unrolls every loop that indexes them. It
keeps a loop if the number of its iterations is known only at run time, if it has more than MOST_ITERATIONS,
or if the unrolled loop would have more than MOST_OPERATIONS (`code_size`). Source: the stack frames that
ptxas reports for 580 public kernels of an outside set, of which 60 have such loops (up to 128 iterations are
unrolled, 512 are not), and loops with bodies of 13 kinds (experiments/unrolled_loops). Nor does it unroll
loops that together index an array of more elements than a thread has registers, unless the source requests
that (33 nested loops over arrays of 8 to 1,024 elements, nvcc 13.0). No unrolling makes an index constant
that derives from data, or from the number of the thread or block.

It unrolls a kept loop in part, by a power of two. An index that a loop changes only by the remainder of its
variable is then a constant in each copy. Source: stack frames of 100 loops (nvcc 13.0, sm_90a; 64 to 4,096
iterations, remainders by 2 to 32): remainders by up to ANY_REMAINDER get registers in any loop, those by up
to EVEN_REMAINDER in constant loops that they divide, those by up to SMALL_REMAINDER if the body is small as
well. Remainders by numbers that are no power of two, or by larger ones, do not.

Large arrays of unrolled loops alone need no registers either if a thread adds up their elements without other
data: it adds each one when it has computed it. Source: ptxas reports and machine code of eleven products of
512 to 4,096 elements, most of which are summed later in another order (nvcc 13.0): the products and additions
are multiply-adds. Eight kernels spill nothing; the others, with many factors or sums or without a condition,
load a quarter to a half as many spilled words as there are elements, which is not counted.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from .code_size import LOOP_OPERATIONS, code_size
from .element_types import element_type
from .expressions import constant, identity, is_power_of_two, is_single, loads, variables
from .loops import ASYNCHRONOUS, MATRIX, calls, contains, is_unrolled, stored_buffers, visit
from .mathematics import MATH, math_function

MOST_ITERATIONS = 256
MOST_OPERATIONS = 2400.0
MOST_REGISTERS = 256
ANY_REMAINDER, EVEN_REMAINDER, SMALL_REMAINDER = 4, 8, 16
# Instructions of copies of an iteration in a kept loop (LLVM's default for unrolling in part), and copies
# beyond which no more neighbours are joined: 16 bytes.
JOINED_STEPS, MOST_JOINED = 150.0, 16
RUN_TIME_JOINED = 4  # of a loop whose iterations are known at run time
SMALL_STEPS = 8  # instructions of an iteration whose copies for SMALL_REMAINDER are unrolled


# variables of kept loops, with the largest remainder that each copy in the loop knows
Kept = Mapping[int, int]


@dataclass(frozen=True)
class LocalMemory:
    """The local arrays of a device function that lie in local memory, by identity.

    Attributes:
        arrays: all of them.
        spilled: those that only unrolled loops index, as the source requests: their elements have no
            addresses, but are more than the registers hold, so the compiler spills them one by one.
        summed_at_once: those of which each element is added up when it is computed, so it needs no register.
            They are not among `arrays`.
    """

    arrays: frozenset[int] = frozenset()
    spilled: frozenset[int] = frozenset()
    summed_at_once: frozenset[int] = frozenset()


def arrays_in_local_memory(function: Any) -> LocalMemory:
    """The local arrays of a device function that lie in local memory."""
    found: dict[int, bool] = {}
    _collect(function.body, _Around(), found)
    found.update(dict.fromkeys(_arrays_indexed_by_data(function), False))
    spilled = frozenset(array for array, spilled in found.items() if spilled)
    summed = frozenset(array for array in spilled if _is_summed_at_once(function.body, array))
    return LocalMemory(frozenset(found) - summed, spilled - summed, summed)


def _arrays_indexed_by_data(function: Any) -> frozenset[int]:
    """The local arrays with an index that derives from data, parameters or the place of a thread or block."""
    indexed: list[tuple[int, set[int]]] = []  # by access to a local array: its index's variables
    sources: dict[int, set[int]] = {}  # of loop variables, bound variables and local buffers

    def collect(node: Any, conditions: set[int]) -> None:
        """Read a statement under conditions with the given variables, from which what it stores derives."""
        kind = type(node).__name__
        if kind in ("BufferStore", "Bind"):
            target = node.buffer.data if kind == "BufferStore" else node.var
            if kind == "Bind" or _is_local(node.buffer):
                sources.setdefault(identity(target), set()).update(variables(node.value), conditions)
        elif kind == "For":
            sources[identity(node.loop_var)] = variables(node.min)
        elif kind in ("IfThenElse", "While"):
            conditions = conditions | variables(node.condition)
        for part in node.seq if kind == "SeqStmt" else _parts(node):
            collect(part, conditions)

    def look(part: Any, kind: str) -> None:
        if kind in ("BufferLoad", "BufferStore") and _is_local(part.buffer) and not is_single(part.buffer):
            indexed.append((identity(part.buffer.data), variables(part.indices[0])))

    visit(function.body, look)
    if not indexed:
        return frozenset()
    collect(function.body, set())
    known = _not_derived(sources)
    return frozenset(array for array, index in indexed if not index <= known)


def _not_derived(sources: Mapping[int, Set[int]]) -> set[int]:
    """The variables that derive from none but each other, through any number of steps."""
    known, before = set(sources), None
    while known != before:
        before = known
        known = {variable for variable in known if sources[variable] <= known}
    return known


def _parts(node: Any) -> list[Any]:
    """The statements within a loop, branch or attribute."""
    parts = (getattr(node, name, None) for name in ("body", "then_case", "else_case"))
    return [part for part in parts if part is not None]


def _is_local(buffer: Any) -> bool:
    return str(buffer.scope()).startswith("local")


def _is_summed_at_once(node: Any, array: int) -> bool:
    """Whether one statement computes the elements of an array and the only other one adds them up."""
    if type(node).__name__ != "SeqStmt":
        return hasattr(node, "body") and _is_summed_at_once(node.body, array)
    users = [
        part
        for part in node.seq
        if array in stored_buffers(part) or contains(part, lambda each, _: _is_element(each, array))
    ]
    if len(users) == 1:
        return _is_summed_at_once(users[0], array)
    first, last = users[0], users[-1]
    if len(users) != 2 or array in stored_buffers(last) or array in _loaded(first):
        return False
    return _same_condition(first, last) and _adds_up(last, array)


def _is_element(part: Any, array: int) -> bool:
    return type(part).__name__ in ("BufferLoad", "BufferStore") and identity(part.buffer.data) == array


def _is_sum(part: Any, array: int) -> bool:
    """Whether a statement adds an element of an array to what it stores to."""
    if type(part).__name__ != "BufferStore" or type(part.value).__name__ != "Add":
        return False
    terms = [identity(load.buffer.data) for load in loads(part.value)]
    return sorted(terms) == sorted((array, identity(part.buffer.data)))


def _loaded(node: Any) -> frozenset[int]:
    """The data variables of the buffers that a statement loads from."""
    return frozenset(identity(load.buffer.data) for load in loads(node))


def _same_condition(one: Any, other: Any) -> bool:
    """Whether two statements run in the same cases: under equal conditions, or both under none."""
    from tvm.ir import structural_equal

    guards = [part.condition for part in (one, other) if type(part).__name__ == "IfThenElse"]
    return not guards or (len(guards) == 2 and structural_equal(*guards))


def _adds_up(node: Any, array: int) -> bool:
    """Whether a statement adds up the elements of an array once, and uses registers and no other data."""
    uses = [load for load in loads(node) if _is_element(load, array)]
    if len(uses) != 1 or not contains(node, lambda part, _: _is_sum(part, array)):
        return False
    outside = contains(
        node,
        lambda part, kind: (
            kind == "Evaluate" or (kind in ("BufferLoad", "BufferStore") and not _is_local(part.buffer))
        ),
    )
    guard = node.condition if type(node).__name__ == "IfThenElse" else None
    body = node if guard is None else node.then_case
    return not outside and _loaded(body) <= stored_buffers(body) | {array}


@dataclass(frozen=True)
class _Around:
    """The loops around a statement: their variables, and those that are computed from them.

    Attributes:
        all: of all loops.
        serial: of those of which the source requests no unrolling.
        kept: of those that stay loops.
    """

    all: frozenset[int] = frozenset()
    serial: frozenset[int] = frozenset()
    kept: Kept = field(default_factory=dict)

    def within(self, loop: Any) -> _Around:
        """The loops around the body of `loop`."""
        variable = identity(loop.loop_var)
        own = frozenset({variable})
        kept = {**self.kept, variable: _told_remainder(loop)} if is_kept(loop, self.all) else self.kept
        return _Around(self.all | own, self.serial if is_unrolled(loop) else self.serial | own, kept)

    def after(self, bind: Any) -> _Around:
        """The same loops, after a variable is bound."""
        variable, sources = identity(bind.var), variables(bind.value)
        own = frozenset({variable})
        return _Around(
            self.all | own if sources <= self.all else self.all,
            self.serial | own if sources & self.serial else self.serial,
            {**self.kept, variable: 1} if _is_changed(bind.value, self.kept) else self.kept,
        )


def _collect(node: Any, around: _Around, found: dict[int, bool]) -> None:
    """Add the arrays in local memory that a statement indexes, and whether each is spilled."""
    kind = type(node).__name__
    if kind == "SeqStmt":
        for part in node.seq:
            _collect(part, around, found)
            if type(part).__name__ == "Bind":
                around = around.after(part)
    elif kind == "For":
        _collect_indexed(node.extent, around, found)
        _collect(node.body, around.within(node), found)
    elif kind == "IfThenElse":
        _collect_indexed(node.condition, around, found)
        for part in (node.then_case, node.else_case):
            if part is not None:
                _collect(part, around, found)
    elif kind == "While":
        _collect_indexed(node.condition, around, found)
        _collect(node.body, around, found)
    elif kind == "AttrStmt":
        _collect(node.body, around, found)
    elif kind in ("BufferStore", "Evaluate", "Bind"):
        _collect_indexed(node, around, found)


def _collect_indexed(node: Any, around: _Around, found: dict[int, bool]) -> None:
    """Add the arrays that a statement indexes by the variable of a kept loop, or that are large."""
    if not around.serial:
        return

    def look(part: Any, kind: str) -> None:
        if kind not in ("BufferLoad", "BufferStore") or not _is_local(part.buffer):
            return
        index, array = part.indices[0], identity(part.buffer.data)
        if _is_changed(index, around.kept):
            found[array] = False
        elif _is_large(part.buffer) and variables(index) & around.serial:
            found[array] = found.get(array, True) and bool(variables(index) & (around.all - around.serial))

    visit(node, look)


def _is_large(buffer: Any) -> bool:
    """Whether a thread has no registers for all elements of a local array."""
    elements = math.prod(constant(extent) or 0 for extent in buffer.shape)
    return elements * element_type(str(buffer.dtype)).bytes > 4 * MOST_REGISTERS


def _told_remainder(loop: Any) -> int:
    """The largest power of two by which each copy in a kept loop knows the remainder of its variable."""
    extent = constant(loop.extent)
    if extent is None or constant(loop.min) is None or extent % EVEN_REMAINDER:
        return ANY_REMAINDER
    small = _steps(loop.body) <= SMALL_STEPS and extent % SMALL_REMAINDER == 0
    return SMALL_REMAINDER if small else EVEN_REMAINDER


def _is_changed(expression: Any, kept: Kept) -> bool:
    """Whether a variable of `kept` changes an expression, but by a remainder that copies of its loop know."""
    if not kept or not variables(expression) & kept.keys():
        return False
    kind = type(expression).__name__
    if kind in ("FloorMod", "Mod") and is_linear(expression.a):
        by, known = constant(expression.b) or 0, is_power_of_two(expression.b)
        return _is_changed(expression.a, {v: most for v, most in kept.items() if not known or most < by})
    if kind in ("Add", "Sub", "Mul"):
        return _is_changed(expression.a, kept) or _is_changed(expression.b, kept)
    if kind == "Ramp":
        return _is_changed(expression.base, kept)
    return True


def is_linear(expression: Any) -> bool:
    """Whether an expression consists of sums and products of variables."""
    kind = type(expression).__name__
    if kind in ("Add", "Sub", "Mul"):
        return is_linear(expression.a) and is_linear(expression.b)
    return kind in ("Var", "IntImm")


def is_kept(loop: Any, outer: frozenset[int]) -> bool:
    """Whether the compiler keeps `loop`, which is inside the loops with the variables `outer`."""
    if is_unrolled(loop):
        return False
    extent = constant(loop.extent)
    if extent is None:  # it is constant once the loops around it are unrolled
        return not variables(loop.extent) <= outer
    return extent > MOST_ITERATIONS or extent * (LOOP_OPERATIONS + code_size(loop.body)) > MOST_OPERATIONS


def copied_iterations(loop: Any) -> int:
    """Iterations of a loop that follow each other in the machine code, if it is unrolled in part.

    Loads of neighbours are joined in them. They are a power of two that divides the iterations of a constant
    loop. Of a loop with another number of iterations there are up to four, and what is left over is done one
    by one: read off the machine code of a rasterizer by others (nvcc 13.0).
    """
    extent = constant(loop.extent)
    if constant(loop.min) is None or calls(loop.body, (*ASYNCHRONOUS, *MATRIX)):
        return 1
    most = min(MOST_JOINED if extent else RUN_TIME_JOINED, JOINED_STEPS / max(1.0, _steps(loop.body)))
    count = 1
    while count * 2 <= most and (extent or 0) % (count * 2) == 0:
        count *= 2
    return count


def _steps(node: Any) -> float:
    """Instructions of a statement whose inner loops are unrolled, without those of its addresses."""
    kind = type(node).__name__
    if kind == "SeqStmt":
        return sum(_steps(part) for part in node.seq)
    if kind == "For":
        return (constant(node.extent) or 1) * _steps(node.body)
    if kind == "IfThenElse":
        return sum(_steps(part) for part in (node.then_case, node.else_case) if part is not None)
    if kind in ("BufferStore", "Bind"):
        return 1 + _operations(node.value)
    return _steps(node.body) if hasattr(node, "body") else 1


def _operations(value: Any) -> float:
    """Instructions of floating-point arithmetic in an expression."""
    total = 0.0

    def look(part: Any, kind: str) -> None:
        nonlocal total
        if kind == "Call":
            cost = MATH.get(math_function(part) or "")
            total += (sum(cost) if cost is not None else 1) * element_type(str(part.dtype)).lanes
        elif hasattr(part, "a") and hasattr(part, "b"):
            operand = element_type(str(part.a.dtype))
            total += operand.lanes if operand.kind == "float" else 0

    visit(value, look)
    return total
