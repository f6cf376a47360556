"""The widest load from shared memory into which the compiler joins loads of neighbouring elements.

Read off the machine code of loops of 64 iterations that load two elements each and pass them to one function
(nvcc 13.0): 11 functions and 4 element types.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any

from .expressions import call_name
from .loops import calls_routine, visit
from .patterns import WIDEST_ACCESS_BYTES

HALF_JOINED_BYTES = 8


class Functions(IntEnum):
    """What the body of a loop calls for each element, as far as the compiler then keeps loads apart."""

    SHORT = 0  # nothing, or functions of a few instructions
    WITH_CALLS = 1  # exact divisions and square roots (`calls_routine`)
    LONG = 2  # logarithms, powers, trigonometric and error functions


_LONG = ("log", "log2", "log10", "log1p", "pow", "sin", "cos", "tan", "erf")


def functions_of(node: Any, *, fast_math: bool) -> Functions:
    """The longest functions that a statement calls; with `fast_math` all are short."""
    found = Functions.SHORT

    def look(part: Any, kind: str) -> None:
        nonlocal found
        if kind == "Call" and call_name(part).rpartition(".")[2] in _LONG:
            found = Functions.LONG
        elif calls_routine(part, kind):
            found = max(found, Functions.WITH_CALLS)

    if not fast_math:
        visit(node, look)
    return found


def widest_joined(dtype: str, functions: Functions) -> int:
    """Bytes of the widest joined load of elements of a type, in a loop that calls `functions`; 0: none is."""
    if dtype.startswith("float8"):
        return 0
    if dtype == "float16":
        return HALF_JOINED_BYTES if functions is Functions.SHORT else 0
    if dtype == "bfloat16":
        return WIDEST_ACCESS_BYTES if functions is not Functions.LONG else 0
    return WIDEST_ACCESS_BYTES


__all__ = ["Functions", "functions_of", "widest_joined"]
