"""The loops of a device function that move data from device memory, by the names of their variables."""

from __future__ import annotations

from typing import Any

from ...profile.names import NamedLoop
from .expressions import constant, identity, is_shared
from .loops import COPIES, GLOBAL, MATRIX, calls, is_unrolled, touches_global, visit
from .memory import Memory


def named_loops(function: Any, memory: Memory) -> tuple[NamedLoop, ...]:
    """Those loops of `function` that are not unrolled, inner ones first.

    Args:
        function: a device function.
        memory: its tensors and buffers.
    """
    found = _loops(function.body)
    inside = {_key(loop): {_key(other) for other in _loops(loop.body)} for loop in found}
    named: dict[int, NamedLoop] = {}
    for loop in found:
        if not touches_global(loop.body, memory.is_global) and not calls(
            loop.body, (*COPIES, *GLOBAL, *MATRIX)
        ):
            continue
        trips: float | None = 1.0
        for other in found:
            if _key(other) == _key(loop) or _key(loop) in inside[_key(other)]:
                extent = constant(other.extent)
                trips = None if trips is None or extent is None else trips * extent
        copied: tuple[str, ...] = ()
        within = (named[key].copied for key in inside[_key(loop)] if key in named)
        if calls(loop.body, MATRIX) and not any(within):
            copied = _copied(loop.body, memory)
        named[_key(loop)] = NamedLoop(str(loop.loop_var.name), trips, copied)
    return tuple(named.values())


def _copied(node: Any, memory: Memory) -> tuple[str, ...]:
    """Names of the tensors whose elements statements of `node` store to shared memory as they load them."""
    found: dict[str, None] = {}

    def look(part: Any, kind: str) -> None:
        if kind == "BufferStore" and is_shared(part.buffer):
            visit(part.value, load)

    def load(part: Any, kind: str) -> None:
        if kind == "BufferLoad" and memory.is_global(part.buffer):
            found[memory.name_of(identity(part.buffer.data))] = None

    visit(node, look)
    return tuple(found)


def _key(loop: Any) -> int:
    return identity(loop.loop_var)


def _loops(node: Any) -> list[Any]:
    found: list[Any] = []

    def look(part: Any, kind: str) -> None:
        if kind == "For" and not is_unrolled(part):
            found.append(part)

    visit(node, look)
    return found
