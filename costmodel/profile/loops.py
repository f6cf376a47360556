"""What the body of a loop or a branch holds, looked at before it is walked."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from .dtypes import element_type
from .expressions import constant, identity, is_scalar

ASYNCHRONOUS = ("tma_load", "tma_store", "cp_async", "mbarrier_wait", "ptx_wait_group", "ptx_wait_barrier", "storage_sync", "cluster_sync")
MATRIX = ("wgmma", "ptx_mma", "mfma")
GLOBAL = ("ldg", "stg", "atomic")
SPECIALISING = ("set_max_nreg", "mbarrier_wait", "ptx_arrive_barrier")
SPECIALISED = "warp_specialize"  # the attribute with which T.ws marks its branches
COPIES = ("tma_load", "cp_async")
# nvcc unrolls constant loops up to about this many iterations whole, where nothing in them synchronises. Of those that
# load from device memory only small ones, counted in elements that a thread stores to buffers of its own or shared ones;
# others in part, until so many loads are in flight, and none that is large or guards its loads. Read off the machine code
# of 130 gemv and 70 rms_norm kernels (nvcc 13.0); of the former, round trips come out within a factor of two for 97 %.
SHORT = 16
SMALL_WHOLE = 192  # elements of all iterations
SMALL_GUARDED = 128  # the same where conditions guard the loads
SMALL_BODY = 56  # elements of one
LOADS_IN_FLIGHT = 16
FEW_GUARDED = 3  # guarded loads of one iteration, of which the compiler joins two: larger bodies keep their loads apart
MOST_UNROLLED = 8  # iterations
LOADS_BESIDE_STORES = 2  # the same where the loop also stores to device memory
_UNROLLED_KINDS = (2, 3)  # TVM's ForKind: vectorized, unrolled


def visit(node: Any, function: Callable[[Any, str], None]) -> None:
    """`function(part, its kind)` for every statement and expression within `node`."""
    from tvm.tirx.stmt_functor import post_order_visit

    post_order_visit(node, lambda part: function(part, type(part).__name__))


def calls(node: Any, names: tuple[str, ...]) -> bool:
    """Whether a call whose name holds one of `names`, or a reduction over threads, lies within `node`."""
    found = False

    def look(part: Any, kind: str) -> None:
        nonlocal found
        if kind == "Call" and not found:
            name = getattr(part.op, "name", "")
            found = any(n in name for n in names) or (name == "tirx.call_extern" and "AllReduce" in str(part.args[0]))

    visit(node, look)
    return found


def is_unrolled(node: Any) -> bool:
    """Whether the source asks for a loop to be unrolled, or it is none."""
    extent = constant(node.extent)
    return int(node.kind) in _UNROLLED_KINDS or (extent is not None and extent <= 1)


def is_short(node: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether the device compiler unrolls a loop whole by itself, so that its loads are issued together."""
    extent = constant(node.extent)
    if extent is None or extent > SHORT or calls(node.body, (*ASYNCHRONOUS, *MATRIX)):
        return False
    body = body_of(node.body, is_global)
    if body.loads and (body.elements > SMALL_BODY or extent * body.elements > (SMALL_GUARDED if body.guarded else SMALL_WHOLE)):
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
    """What a thread does in one iteration, unrolled loops inside multiplied out."""

    loads: float = 0.0  # from device memory, guarded ones as if they were executed
    elements: float = 0.0  # stored to local and shared buffers
    guarded: bool = False  # a condition decides whether something is loaded from or stored to device memory

    def __add__(self, other: Body) -> Body:
        return Body(self.loads + other.loads, self.elements + other.elements, self.guarded or other.guarded)

    def times(self, extent: float) -> Body:
        return Body(self.loads * extent, self.elements * extent, self.guarded)


def waits_for_each(node: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether the loads of an unrolled loop are in flight one by one: those that go straight to shared memory under two
    conditions on the same thread (a row and a column of a tile whose rows do not divide by the threads). The compiler
    makes a branch of each, and moves no load across a store."""
    store = node.body
    if type(store).__name__ != "BufferStore" or not str(store.buffer.scope()).startswith("shared"):
        return False
    apart = False

    def look(part: Any, kind: str) -> None:
        nonlocal apart
        if kind == "And":
            apart = apart or bool(_variables(part.a) & _variables(part.b) - {identity(node.loop_var)})

    visit(store.value, look)
    return apart and bool(_loads_of(store.value, is_global).loads)


def _variables(expression: Any) -> set[int]:
    found: set[int] = set()
    visit(expression, lambda part, kind: found.add(identity(part)) if kind == "Var" else None)
    return found


def body_of(node: Any, is_global: Callable[[Any], bool]) -> Body:
    """Loads and stored elements of a statement."""
    kind = type(node).__name__
    if kind == "SeqStmt":
        return sum((body_of(part, is_global) for part in node.seq), Body())
    if kind == "For":
        return body_of(node.body, is_global).times(float(constant(node.extent) or 1))
    if kind == "IfThenElse":
        inside = sum((body_of(p, is_global) for p in (node.then_case, node.else_case) if p is not None), Body())
        return replace(inside, guarded=inside.guarded or _touches(node, is_global))
    if kind == "BufferStore":
        found = _loads_of(node.value, is_global)
        lanes = 0 if is_global(node.buffer) else element_type(str(node.value.dtype)).lanes
        return replace(found, elements=float(lanes))
    return body_of(node.body, is_global) if hasattr(node, "body") else Body()


def _loads_of(value: Any, is_global: Callable[[Any], bool]) -> Body:
    loads, guarded = 0, False

    def look(part: Any, kind: str) -> None:
        nonlocal loads, guarded
        if kind == "BufferLoad" and is_global(part.buffer):
            loads += 1
        elif kind == "Call" and getattr(part.op, "name", "").endswith("if_then_else"):
            guarded = guarded or _touches(part, is_global)

    visit(value, look)
    return Body(loads=float(loads), guarded=guarded)


def _touches(node: Any, is_global: Callable[[Any], bool]) -> bool:
    found = False

    def look(part: Any, kind: str) -> None:
        nonlocal found
        found = found or (kind in ("BufferLoad", "BufferStore") and is_global(part.buffer))

    visit(node, look)
    return found


def unrolled_by(node: Any, is_global: Callable[[Any], bool]) -> int:
    """Iterations of a loop whose loads from device memory are in flight together: those of plain loads of what the loop
    does not store. 1 where the compiler leaves the loop as it is."""
    loaded, stored = set(), set()

    def look(part: Any, kind: str) -> None:
        if kind == "BufferLoad" and is_global(part.buffer):
            loaded.add(identity(part.buffer.data))
        elif kind == "BufferStore" and is_global(part.buffer):
            stored.add(identity(part.buffer.data))

    visit(node.body, look)
    if not loaded or loaded & stored or calls(node.body, (*ASYNCHRONOUS, *MATRIX, "atomic")):
        return 1
    body = body_of(node.body, is_global)
    if body.elements > SMALL_BODY:
        return 1
    if body.guarded:
        return 2 if body.loads <= FEW_GUARDED and not stored else 1
    most = LOADS_BESIDE_STORES if stored else LOADS_IN_FLIGHT
    return max(1, int(min(most // max(1.0, body.loads), constant(node.extent) or most, MOST_UNROLLED)))


def specialises(node: Any) -> bool:
    """Whether a branch on threads gives them programs of their own, which meet at barriers."""
    found = False

    def look(part: Any, kind: str) -> None:
        nonlocal found
        found = found or (kind == "AttrStmt" and part.attr_key == SPECIALISED)

    visit(node, look)
    return found or calls(node, SPECIALISING)


def has_phases(node: Any) -> bool:
    """Whether loops of their own that wait or synchronise lie within `node`."""
    found = False

    def look(part: Any, kind: str) -> None:
        nonlocal found
        found = found or (kind == "For" and not is_unrolled(part) and calls(part.body, ASYNCHRONOUS))

    visit(node, look)
    return found


def carried(node: Any) -> dict[int, tuple[Any, int] | None]:
    """Local scalars that a loop's body stores to: a counter's present value and its step per iteration, None for others.

    Counters are those that only `x = x + constant` changes. What stands under conditions counts as executed: a counter
    of executed iterations numbers the slots of a ring.
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
    """(x, c) of `x + c` where x is the scalar `key` itself."""
    if type(value).__name__ != "Add":
        return None
    for load, step in ((value.a, constant(value.b)), (value.b, constant(value.a))):
        if step is not None and type(load).__name__ == "BufferLoad" and identity(load.buffer.data) == key:
            return load, step
    return None
