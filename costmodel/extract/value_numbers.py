"""Local value numbering: parts of one value that are equal have one number, and are computed once.

Read off the machine code of a cross entropy's backward pass, whose exponentials stand in both arguments of a
difference, and of a quantisation to fp4, which compares one quotient with eight thresholds (nvcc 13.0).
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

from ...lowering.call_effects import may_change_memory
from .expressions import identity
from .memory import Memory

_ALL = 0.999  # of the lanes of an earlier part: their number is rounded


class ValueNumbers:
    """The parts of the value that is being counted, and the lanes for which each was counted."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._numbers: dict[Hashable, int] = {}
        self._of_part: dict[int, tuple[Any, int]] = {}  # by the address of the part, which is kept alive
        self._lanes: dict[int, float] = {}

    def is_repeated(self, part: Any, lanes: float) -> bool:
        """Whether an equal part was counted for as many lanes; otherwise this one counts as counted."""
        number = self._number(part)
        if self._lanes.get(number, 0.0) >= _ALL * lanes:
            return True
        self._lanes[number] = lanes
        return False

    def _number(self, part: Any) -> int:
        known = self._of_part.get(hash(part))
        if known is None:
            number = self._numbers.setdefault(self._key(part), len(self._numbers))
            known = self._of_part[hash(part)] = part, number
        return known[1]

    def _key(self, part: Any) -> Hashable:
        kind = type(part).__name__
        if kind in ("IntImm", "FloatImm"):
            return kind, str(part.dtype), part.value
        if kind == "Var":
            return kind, identity(part)
        if kind == "BufferLoad":
            data = identity(part.buffer.data)
            return kind, data, self._memory.stores_to(data), *map(self._number, part.indices)
        if kind == "Call" and not may_change_memory(part):
            return kind, str(part.op), str(part.dtype), *map(self._argument, part.args)
        parts = [getattr(part, name) for name in _OPERANDS.get(kind, ()) or _both(part)]
        if parts:
            return kind, str(part.dtype), *map(self._number, parts)
        return kind, len(self._numbers)  # equal to no other

    def _argument(self, argument: Any) -> Hashable:
        return self._number(argument) if hasattr(argument, "dtype") else str(argument)


_OPERANDS = {
    "Cast": ("value",),
    "Broadcast": ("value",),
    "Not": ("a",),
    "Select": ("condition", "true_value", "false_value"),
    "Ramp": ("base", "stride"),
}


def _both(part: Any) -> tuple[str, ...]:
    return ("a", "b") if hasattr(part, "a") and hasattr(part, "b") else ()
