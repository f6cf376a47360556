"""What the body of a loop or a branch holds, looked at before it is walked."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .expressions import constant, identity, is_scalar

ASYNCHRONOUS = ("tma_load", "tma_store", "cp_async", "mbarrier_wait", "ptx_wait_group", "ptx_wait_barrier", "storage_sync", "cluster_sync")
MATRIX = ("wgmma", "ptx_mma", "mfma")
GLOBAL = ("ldg", "stg", "atomic")
SPECIALISING = ("set_max_nreg", "mbarrier_wait", "ptx_arrive_barrier")
SPECIALISED = "warp_specialize"  # the attribute with which T.ws marks its branches
COPIES = ("tma_load", "cp_async")
SHORT = 16  # nvcc unrolls constant loops up to about this many iterations whole, where nothing in them synchronises
UNROLLED_BY = 4  # and longer ones of plain loads by this factor
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


def is_short(node: Any) -> bool:
    """Whether the device compiler unrolls a loop whole by itself, so that its loads are issued together."""
    extent = constant(node.extent)
    if extent is None or extent > SHORT or calls(node.body, (*ASYNCHRONOUS, *MATRIX)):
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


def overlaps_itself(node: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether the loads of several iterations may be in flight together: plain loads of what the loop does not store."""
    loaded, stored = set(), set()

    def look(part: Any, kind: str) -> None:
        if kind == "BufferLoad" and is_global(part.buffer):
            loaded.add(identity(part.buffer.data))
        elif kind == "BufferStore" and is_global(part.buffer):
            stored.add(identity(part.buffer.data))

    visit(node.body, look)
    return bool(loaded) and not loaded & stored and not calls(node.body, (*ASYNCHRONOUS, *MATRIX, "atomic"))


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
