"""Local value numbering: parts of one value that are equal have one number, and are computed once.

Read off the machine code of a cross entropy's backward pass, whose exponentials stand in both arguments of a
difference, and of a quantisation to fp4, which compares one quotient with eight thresholds (nvcc 13.0).
"""

from __future__ import annotations

from collections.abc import Hashable
from functools import partial
from typing import Any

from ...lowering.call_effects import may_change_memory
from .expressions import call_name, identity
from .memory import Memory

_EXCHANGES = ("tirx.tvm_warp_shuffle", "tirx.tvm_warp_activemask")  # starts of their names
_ALL = 0.999  # of the lanes of an earlier part: their number is rounded


class ValueNumbers:
    """The parts of the value that is being counted, and the lanes for which each was counted."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._numbers: dict[Hashable, int] = {}
        self._of_part: dict[int, tuple[Any, int]] = {}  # by the address of the part, which is kept alive
        self._lanes: dict[int, float] = {}

    def copied(self) -> ValueNumbers:
        """The same numbers, to which others can be added apart."""
        found = ValueNumbers(self._memory)
        found._numbers, found._of_part = dict(self._numbers), dict(self._of_part)
        found._lanes = dict(self._lanes)
        return found

    def is_repeated(self, part: Any, lanes: float, *, converged: bool = True) -> bool:
        """Whether an equal part was counted for as many lanes; otherwise this one counts as counted.

        With `converged`, all lanes of a warp compute it: equal exchanges between its lanes are one then.
        """
        number = self._number(part, converged)
        if self._lanes.get(number, 0.0) >= _ALL * lanes:
            return True
        self._lanes[number] = lanes
        return False

    def _number(self, part: Any, converged: bool) -> int:
        known = self._of_part.get(hash(part))
        if known is None:
            number = self._numbers.setdefault(self._key(part, converged), len(self._numbers))
            known = self._of_part[hash(part)] = part, number
        return known[1]

    def _key(self, part: Any, converged: bool) -> Hashable:
        kind, number = type(part).__name__, partial(self._number, converged=converged)
        if kind in ("IntImm", "FloatImm"):
            return kind, str(part.dtype), part.value
        if kind == "Var":
            return kind, identity(part)
        if kind == "BufferLoad":
            data = identity(part.buffer.data)
            return kind, data, self._memory.stores_to(data), *map(number, part.indices)
        if kind == "Call" and (not may_change_memory(part) or (converged and _is_exchange(part))):
            arguments = [number(x) if hasattr(x, "dtype") else str(x) for x in part.args]
            return kind, str(part.op), str(part.dtype), *arguments
        parts = [getattr(part, name) for name in _OPERANDS.get(kind, ()) or _both(part)]
        if parts:
            return kind, str(part.dtype), *map(number, parts)
        return kind, len(self._numbers)  # equal to no other


_OPERANDS = {
    "Cast": ("value",),
    "Broadcast": ("value",),
    "Not": ("a",),
    "Select": ("condition", "true_value", "false_value"),
    "Ramp": ("base", "stride"),
}


def _both(part: Any) -> tuple[str, ...]:
    return ("a", "b") if hasattr(part, "a") and hasattr(part, "b") else ()


def _is_exchange(call: Any) -> bool:
    """Whether a call moves values between the lanes of a warp that are active, or tells which are."""
    return call_name(call).startswith(_EXCHANGES)
