"""A pass over the lowered IR that completes reads of a stage before the stage is reported as empty.

Where TileLang splits a kernel into producer and consumers, a consumer reports a stage as empty as soon as
its reads are issued. The report does not order what threads read themselves, by `ldmatrix` or by loads (the
generic proxy), before what TMA writes next (the async proxy): that takes a proxy fence (PTX ISA, "Async
proxy"), which TileLang 0.1.15 inserts only after writes. Without one, the machine code of a product by
mma.sync reports right after the last ldmatrix is issued, and does not wait for its registers: the stage may
be filled again while it is still read. With the fence, the report waits.

wgmma reads through the async proxy, and TileLang waits for its end: such consumers need no fence.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ROLES = "kWarpSpecializationScope"  # marks the branches of producer and consumers that TileLang has split
ARRIVE, FENCE = "tirx.ptx_arrive_barrier", "tl.fence_proxy_async"
LDMATRIX = ("tl.ptx_ldmatrix", "tirx.ptx_ldmatrix")
TMA_LOADS = ("tl.tma_load", "tl.tma_load_im2col", "tl.tma_load_multicast")


def with_complete_reads(kernels: Any) -> Any:
    """`kernels` (an IRModule of device functions) with a fence before each report of an empty stage that
    follows reads by threads of memory that TMA fills.

    Roles that a kernel's author splits by hand are not changed.
    """
    from tvm import IRModule

    return IRModule(
        {name: _fenced(function) for name, function in kernels.functions.items()}, attrs=kernels.attrs
    )


def _fenced(function: Any) -> Any:
    from tvm import tirx

    filled = _filled_by_tma(function.body)
    if not filled:
        return function

    def split(node: Any) -> Any:
        if node.attr_key != ROLES:
            return None
        body = tirx.stmt_functor.ir_transform(
            node.body, None, lambda sequence: _with_fences(sequence, filled), ["tirx.SeqStmt"]
        )
        return tirx.AttrStmt(node.node, node.attr_key, node.value, body)

    return function.with_body(tirx.stmt_functor.ir_transform(function.body, split, None, ["tirx.AttrStmt"]))


def _with_fences(sequence: Any, filled: Sequence[Any]) -> Any:
    """`sequence` with a fence before an arrival, if reads since the last fence come before it."""
    from tvm import ir, tirx

    parts: list[Any] = []
    unfenced = False
    for part in sequence.seq:
        if _is_call_of(part, ARRIVE) and unfenced:
            parts.append(tirx.Evaluate(tirx.Call("handle", ir.Op.get(FENCE), [])))
            unfenced = False
        elif _is_call_of(part, FENCE):
            unfenced = False
        unfenced |= _reads(part, filled)
        parts.append(part)
    return tirx.SeqStmt(parts) if len(parts) > len(sequence.seq) else None


def _filled_by_tma(body: Any) -> list[Any]:
    """The buffers' variables that TMA loads write to."""
    from tvm import tirx

    found: list[Any] = []

    def visit(node: Any) -> None:
        if any(_is_call(node, name) for name in TMA_LOADS):
            found.extend(_written(node))

    tirx.stmt_functor.post_order_visit(body, visit)
    return found


def _written(load: Any) -> list[Any]:
    # the last argument of a pointer says whether memory is read (1) or written (2)
    return [pointer.args[1] for pointer in _pointers(load) if int(pointer.args[4]) & 2]


def _pointers(call: Any) -> list[Any]:
    return [argument for argument in call.args if _is_call(argument, "tirx.tvm_access_ptr")]


def _reads(part: Any, filled: Sequence[Any]) -> bool:
    """Whether threads read one of the buffers `filled` themselves in `part`."""
    from tvm import tirx

    found = False

    def visit(node: Any) -> None:
        nonlocal found
        if isinstance(node, tirx.BufferLoad):
            found |= any(node.buffer.data.same_as(data) for data in filled)
        elif getattr(getattr(node, "op", None), "name", "") in LDMATRIX:
            found |= any(pointer.args[1].same_as(data) for pointer in _pointers(node) for data in filled)

    tirx.stmt_functor.post_order_visit(part, visit)
    return found


def _is_call_of(part: Any, name: str) -> bool:
    return _is_call(getattr(part, "value", None), name)


def _is_call(node: Any, name: str) -> bool:
    return getattr(getattr(node, "op", None), "name", "") == name
