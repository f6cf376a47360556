"""Counts the index arithmetic that stays in the machine code: divisions by numbers that are no powers of two.

The compiler hoists the rest of an address out of its loop, reduces it to additions, or makes it part of the
instruction that uses it.
"""

from __future__ import annotations

import math
from typing import Any

from .counting import CountingContext
from .element_types import element_type
from .expressions import constant
from .loops import visit
from .scope import Scope

# Instructions of a quotient and its remainder for a constant divisor, by bits: a multiplication by the
# reciprocal, shifts and a subtraction. Read off the machine code of pooling and convolution kernels (nvcc
# 13.0).
DIVISION_INSTRUCTIONS = {32: 5.0, 64: 14.0}
QUOTIENTS = ("FloorDiv", "FloorMod", "Div", "Mod")  # expressions, and remainders


def reciprocal_divisor(node: Any, kind: str) -> int | None:
    """The divisor of an integer quotient or remainder that takes a multiplication by its reciprocal.

    None for other expressions, for unknown divisors, and for powers of two, which take a shift.

    Args:
        node: the expression.
        kind: the name of its class.
    """
    if kind not in QUOTIENTS or element_type(str(node.dtype)).kind != "int":
        return None
    divisor = constant(node.b)
    return None if divisor is None or divisor <= 0 or divisor & (divisor - 1) == 0 else divisor


def count_divisions(context: CountingContext, index: Any, scope: Scope) -> None:
    """Count the divisions in an integer expression.

    Equal quotients of one phase are computed once. The copies of an unrolled loop share them: their numbers
    are constants, by which the compiler changes the quotient of the first copy.
    """

    def look(node: Any, kind: str) -> None:
        divisor = reciprocal_divisor(node, kind)
        if divisor is None:
            return
        # of loops alone it becomes a counter, of the block alone it is computed once for the whole warp
        if not scope.depends_on(node) & scope.launch.thread_variables:
            return
        quotient = f"{node.a} / {divisor}"
        if quotient in context.phase.quotients:
            return
        context.phase.quotients.add(quotient)
        copies = math.prod(loop.extent for loop in (*scope.loops, *scope.phase_loops) if loop.unrolled)
        each = DIVISION_INSTRUCTIONS[64 if element_type(str(node.dtype)).bits > 32 else 32]
        context.phase.counts["integer_ops"] += scope.issued_lanes / max(1.0, copies) * each

    visit(index, look)
