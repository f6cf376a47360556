"""Of a producer that loads through TMA only a thread that issues loads waits.

Where TileLang splits a kernel into producer and consumers, all warps of the producer wait for a stage to be empty, though a
single thread then fills it. Nothing keeps the other warps in step, and a wait tells phases apart by their parity alone (PTX ISA,
`mbarrier.try_wait`): a warp that looks only when the phase after the awaited one has completed too takes it for the one before,
and waits for one more. Where none comes the kernel never ends. That happens (experiments/idle_warps). A warp that does not wait
cannot come late.

Roles that a kernel's author splits by hand (`T.ws`) are left as they are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

ROLES = "kWarpSpecializationScope"  # marks the branches of producer and consumers that TileLang has split
WAIT, ELECT = "tl.mbarrier_wait_parity", "tl.tl_shuffle_elect"
_READS = 2  # TVM's CallEffectKind: up to here a call changes nothing


@dataclass(frozen=True)
class _Idle:
    """The end of a role in which all threads wait, and one does something."""

    election: Any  # the condition that holds for that one
    stored: frozenset[Any]  # variables of their own that all of them store to


def without_idle_warps(kernels: Any) -> Any:
    """`kernels` (an IRModule of device functions), where only the elected thread of a role goes through the end of the role, if
    every other does nothing there but wait and count.

    Nobody relies on such a wait: a producer's say that a stage is empty, which matters to who fills it. What is counted must be
    of no use elsewhere.
    """
    from tvm import IRModule

    def led(function: Any) -> Any:
        return function.with_body(_in_roles(function.body, lambda role: _led(role, function.body)))

    return IRModule({name: led(function) for name, function in kernels.functions.items()}, attrs=kernels.attrs)


def _in_roles(body: Any, change: Callable[[Any], Any]) -> Any:
    """`body` with the program of each role replaced by what `change` makes of it."""
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


def _led(role: Any, kernel: Any) -> Any:
    from tvm import tirx

    parts = _parts(role)
    for first, idle in _idle_ends(parts):
        if not _is_used(idle.stored, kernel, parts[first:]):
            alone = tirx.IfThenElse(idle.election, _joined([_without_elections(part) for part in parts[first:]]), None)
            return _joined([*parts[:first], alone])
    return role


def _idle_ends(parts: Sequence[Any]) -> Iterator[tuple[int, _Idle]]:
    """The places in a role from which on all threads but one are idle, the first of them first."""
    for first in range(len(parts)):
        if (idle := _idle(parts[first:])) is not None:
            yield first, idle


def _idle(parts: Sequence[Any]) -> _Idle | None:
    """What `parts` are if all threads only wait and count there, but for what is left to the same one throughout."""
    from tvm import tirx

    elections: list[Any] = []
    stored: set[Any] = set()
    waits, busy = 0, False

    def look(node: Any) -> bool:
        nonlocal waits, busy
        if isinstance(node, tirx.IfThenElse) and _is_call(node.condition, ELECT):
            elections.append(node.condition)
            busy |= node.else_case is not None
            return False
        if _is_call(node, WAIT):
            waits += 1
        elif isinstance(node, tirx.Call):
            # an election takes part of all threads of a warp, wherever it stands; a function of the module's own may do anything
            known = hasattr(node.op, "get_attr") and not _is_call(node, ELECT)
            busy |= not known or int(node.op.get_attr("TCallEffectKind") or 0) > _READS
        elif isinstance(node, tirx.BufferStore):
            stored.add(node.buffer.data)
            busy |= not str(node.buffer.scope()).startswith("local")
        return True

    for part in parts:
        tirx.stmt_functor.pre_order_visit(part, look)
    groups = {int(election.args[0]) for election in elections}
    # 0 elects one thread of the block, which need not be one of the role's
    if busy or not waits or len(groups) != 1 or 0 in groups:
        return None
    return _Idle(elections[0], frozenset(stored))


def _is_used(variables: frozenset[Any], kernel: Any, apart_from: Sequence[Any]) -> bool:
    from tvm import tirx

    used = False

    def look(node: Any) -> bool:
        nonlocal used
        if any(node.same_as(part) for part in apart_from):
            return False
        if isinstance(node, tirx.BufferLoad):
            used |= node.buffer.data in variables
        elif isinstance(node, tirx.Call):
            used |= any(isinstance(argument, tirx.Var) and argument in variables for argument in node.args)
        return True

    if variables:
        tirx.stmt_functor.pre_order_visit(kernel, look)
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
