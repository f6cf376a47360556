"""How many iterations of a loop have their plain loads in flight together."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from .element_types import element_type
from .expressions import constant, identity
from .kept_branches import waits_for_each
from .loops import (
    ASYNCHRONOUS,
    BARRIER,
    MATRIX,
    SMALL_BODY,
    body_of,
    calls,
    is_unrolled,
    plain_variables,
    visit,
)

# Loops with loads that are not unrolled completely are unrolled in part, until LOADS_IN_FLIGHT loads are in
# flight, unless an iteration is large or guards its loads. Read off the machine code of 130 gemv and 70
# rms_norm kernels (nvcc 13.0). For 97 % of the gemv kernels, the number of round trips to memory that follows
# from these rules is within a factor of two.
LOADS_IN_FLIGHT = 16
FEW_GUARDED = 3  # guarded loads of one iteration up to which the compiler joins two iterations
MOST_UNROLLED = 8  # iterations
# Registers for which a loop over the elements of a local array has loads in flight. The compiler unrolls such
# a loop completely, since registers have no addresses. Read off the machine code of recurrent decode kernels.
REGISTERS_IN_FLIGHT = 64
# Loads in flight if the loop also stores to device memory, unless the loads are of constant tensors and an
# iteration stores FEW_ELEMENTS at most to local and shared buffers (a running sum: 16, a scaled row: 2).
LOADS_BESIDE_STORES = 2
FEW_ELEMENTS = 4
# A loop without barriers whose iterations store FEW_ELEMENTS at most to registers, a sum for example, is
# unrolled by a power of two until this many loads are in flight. Read off the machine code of 312 sums of
# products of 1 to 8 loads (nvcc 13.0).
LOADS_OF_SMALL_BODIES = 32
# Conditions that are the same in all iterations make a body longer, so fewer iterations fit: by these
# divisors if the loads alone stand under one, or what is computed from them as well. Read off the machine
# code of 144 sums.
SELECTED_LOADS, SELECTED_VALUES = 2, 4


def unrolled_by(node: Any, is_global: Callable[[Any], bool], is_constant: Callable[[Any], bool]) -> int:
    """Number of iterations whose plain loads are in flight together; 1 if the compiler does not unroll.

    Only loops that do not store to the tensors they load from are unrolled. Across barriers of the block the
    compiler moves only loads of constant tensors (read off the machine code of gemv kernels that stage their
    operands in shared memory, nvcc 13.0).

    Args:
        node: the loop.
        is_global: whether a buffer lies in device memory.
        is_constant: whether the kernel only reads a buffer in device memory.
    """
    loaded, stored = set(), set()
    constant_loads, registers, over_local = True, 0.0, False

    def look(part: Any, kind: str) -> None:
        nonlocal constant_loads, registers, over_local
        if kind == "BufferLoad" and is_global(part.buffer):
            loaded.add(identity(part.buffer.data))
            constant_loads = constant_loads and is_constant(part.buffer)
            loaded_type = element_type(str(part.dtype))
            registers += max(1.0, loaded_type.lanes * loaded_type.bytes / 4)
        elif kind == "BufferStore" and is_global(part.buffer):
            stored.add(identity(part.buffer.data))
        elif kind == "BufferStore" and str(part.buffer.scope()).startswith("local"):
            over_local = over_local or identity(node.loop_var) in plain_variables(part.indices[0])

    visit(node.body, look)
    waits = tuple(name for name in ASYNCHRONOUS if not constant_loads or name != BARRIER)
    if not loaded or loaded & stored or calls(node.body, (*waits, *MATRIX, "atomic")):
        return 1
    body = body_of(node.body, is_global, identity(node.loop_var))
    if body.elements > SMALL_BODY or (is_unrolled(node) and waits_for_each(node, is_global)):
        return 1
    if body.guarded:
        return 2 if body.loads <= FEW_GUARDED and not stored else 1
    moves = constant_loads and body.elements <= FEW_ELEMENTS
    most = LOADS_BESIDE_STORES if stored and not moves else LOADS_IN_FLIGHT
    extent = constant(node.extent)
    in_part = min(most // max(1.0, body.loads), extent or most, MOST_UNROLLED)
    if body.elements <= FEW_ELEMENTS and not stored and not calls(node.body, (BARRIER,)):
        small = 2 ** int(math.log2(max(1.0, LOADS_OF_SMALL_BODIES / max(1.0, body.loads))))
        in_part = max(in_part, min(small, extent or 1))
    if body.selections:
        in_part //= SELECTED_LOADS if body.selections <= body.loads else SELECTED_VALUES
    if over_local and extent and not stored and body.loads <= 1:
        in_part = max(in_part, min(REGISTERS_IN_FLIGHT // registers, extent))
    return max(1, int(in_part))
