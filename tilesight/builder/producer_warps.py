"""A pass over the lowered IR that removes waits of idle producer warps, which can hang a kernel.

When TileLang splits a kernel into producer and consumers, all warps of the producer wait until a stage is
empty, although a single thread then fills it. The other warps are not synchronized with that thread. A wait
distinguishes phases by parity only (PTX ISA, `mbarrier.try_wait`): a warp that is late by one phase mistakes
the next phase for the previous one and waits for one more. If none follows, the kernel never ends; this has
been observed (experiments/idle_warps). After this pass only the thread that issues loads waits.

Roles that a kernel's author splits by hand (`T.ws`) are not changed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..lowering.call_effects import may_change_memory

ROLES = "kWarpSpecializationScope"  # marks the branches of producer and consumers that TileLang has split
WAIT, ELECT = "tl.mbarrier_wait_parity", "tl.tl_shuffle_elect"


@dataclass(frozen=True)
class _Idle:
    """The end of a role in which all threads wait, and one thread does something."""

    election: Any  # the condition that holds for that thread
    stored: frozenset[Any]  # local variables that all threads store to


def without_idle_warps(kernels: Any) -> Any:
    """`kernels` (an IRModule of device functions) with the end of a role left to its elected thread, if all
    other threads only wait and count there.

    No other thread relies on these waits: they report an empty stage to the thread that fills it. The
    counters must not be
    used elsewhere.
    """
    from tvm import IRModule

    def changed(function: Any) -> Any:
        return function.with_body(_in_roles(function.body, lambda role: _elected_end(role, function.body)))

    return IRModule(
        {name: changed(function) for name, function in kernels.functions.items()}, attrs=kernels.attrs
    )


def _in_roles(body: Any, change: Callable[[Any], Any]) -> Any:
    """`body` with `change` applied to the program of each role."""
    from tvm import tirx

    def split(node: Any) -> Any:
        if node.attr_key != ROLES:
            return None
        parts = _parts(node.body)
        for position, part in enumerate(parts):
            if isinstance(part, tirx.IfThenElse):
                cases = [case if case is None else change(case) for case in (part.then_case, part.else_case)]
                parts[position] = tirx.IfThenElse(part.condition, *cases)
        return tirx.AttrStmt(node.node, node.attr_key, node.value, _joined(parts))

    return tirx.stmt_functor.ir_transform(body, split, None, ["tirx.AttrStmt"])


def _elected_end(role: Any, kernel: Any) -> Any:
    from tvm import tirx

    parts = _parts(role)
    for first, idle in _idle_ends(parts):
        if not _is_used(idle.stored, kernel, parts[first:]):
            alone = tirx.IfThenElse(
                idle.election, _joined([_without_elections(part) for part in parts[first:]]), None
            )
            return _joined([*parts[:first], alone])
    return role


def _idle_ends(parts: Sequence[Any]) -> Iterator[tuple[int, _Idle]]:
    """Positions in a role after which all threads but one are idle, in order."""
    for first in range(len(parts)):
        if (idle := _idle(parts[first:])) is not None:
            yield first, idle


def _idle(parts: Sequence[Any]) -> _Idle | None:
    """`parts` as an idle end: all threads wait and count, and one elected thread does the rest.

    None if it is not one.
    """
    from tvm import tirx

    elections: list[Any] = []
    stored: set[Any] = set()
    waits, busy = 0, False

    def visit(node: Any) -> bool:
        nonlocal waits, busy
        if isinstance(node, tirx.IfThenElse) and _is_call(node.condition, ELECT):
            elections.append(node.condition)
            busy |= node.else_case is not None
            return False
        if _is_call(node, WAIT):
            waits += 1
        elif isinstance(node, tirx.Call):
            # an election elsewhere needs all threads of a warp
            busy |= _is_call(node, ELECT) or may_change_memory(node)
        elif isinstance(node, tirx.BufferStore):
            stored.add(node.buffer.data)
            busy |= not str(node.buffer.scope()).startswith("local")
        return True

    for part in parts:
        tirx.stmt_functor.pre_order_visit(part, visit)
    groups = {int(election.args[0]) for election in elections}
    # group 0 elects one thread of the block, which may be outside the role
    if busy or not waits or len(groups) != 1 or 0 in groups:
        return None
    return _Idle(elections[0], frozenset(stored))


def _is_used(variables: frozenset[Any], kernel: Any, apart_from: Sequence[Any]) -> bool:
    from tvm import tirx

    used = False

    def visit(node: Any) -> bool:
        nonlocal used
        if any(node.same_as(part) for part in apart_from):
            return False
        if isinstance(node, tirx.BufferLoad):
            used |= node.buffer.data in variables
        elif isinstance(node, tirx.Call):
            used |= any(isinstance(argument, tirx.Var) and argument in variables for argument in node.args)
        return True

    if variables:
        tirx.stmt_functor.pre_order_visit(kernel, visit)
    return used


def _without_elections(part: Any) -> Any:
    from tvm import tirx

    def chosen(node: Any) -> Any:
        return node.then_case if _is_call(node.condition, ELECT) else None

    return tirx.stmt_functor.ir_transform(part, chosen, None, ["tirx.IfThenElse"])


def _parts(body: Any) -> list[Any]:
    from tvm import tirx

    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _joined(parts: Sequence[Any]) -> Any:
    from tvm import tirx

    return tirx.SeqStmt(parts) if len(parts) > 1 else parts[0]


def _is_call(node: Any, name: str) -> bool:
    return getattr(getattr(node, "op", None), "name", "") == name
