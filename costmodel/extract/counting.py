"""The interface through which values and calls add counts to the current phase; counts of math functions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from .element_types import element_type
from .mathematics import DOUBLE_BITS, DOUBLE_MATH, FAST_MATH, MATH, MATH_NAMES
from .memory import Memory
from .phase_counts import PhaseCounts
from .scope import Scope


class CountingContext(Protocol):
    """The state of the statement walker that functions for values and calls read and add counts to."""

    @property
    def phase(self) -> PhaseCounts:
        """The counts of the current phase."""
        ...

    @property
    def memory(self) -> Memory:
        """The buffers and tensors of the kernel."""
        ...

    def count_value(self, node: Any, scope: Scope) -> None:
        """Count the loads and the arithmetic of an expression."""
        ...

    def count_address(self, index: Any, scope: Scope) -> None:
        """Count the loads in an address.

        Its arithmetic is not counted: the compiler hoists and reduces it.
        """
        ...

    def is_repeated(self, part: Any, scope: Scope) -> bool:
        """Whether the value that is being counted has an equal part that was counted for as many lanes."""
        ...

    def mark_live(self, variable: Any) -> None:
        """Record that the registers of a local buffer are live here."""
        ...

    def mark_loaded(self, buffer: Any, index: Any) -> None:
        """The same for the elements of a buffer that are loaded at `index`."""
        ...

    def mark_accumulator(self, variable: Any, *, kept: bool) -> None:
        """Record that matrix instructions accumulate in a local buffer.

        `kept` says that a loop around the instructions keeps the values of its last iteration, as in
        `LiveRanges.accumulate`.
        """
        ...

    def limit_registers(self, count: Any) -> None:
        """Set the register limit of the current role."""
        ...

    @property
    def least_float_bits(self) -> int:
        """Bits of the narrowest float format that the target converts with an instruction."""
        ...

    @property
    def fast_math(self) -> bool:
        """Whether the device compiler approximates the functions of float32."""
        ...

    @property
    def imported(self) -> Sequence[str]:
        """CUDA C++ texts that the kernel imports, as far as it was read."""
        ...

    def stated_work(self, name: str) -> float | None:
        """Operations per thread of a call of a device function, as the caller states them."""
        ...

    def count_unknown(self, name: str, scope: Scope) -> None:
        """Report an unknown call and charge it as a long function."""
        ...

    def add_note(self, text: str) -> None:
        """Record an assumption in the notes of the profile."""
        ...

    def count_shared_words(self, scope: Scope, *, write: bool) -> None:
        """Count one 4-byte word of shared memory per thread, without bank conflicts."""
        ...


Handler = Callable[[CountingContext, Any, Scope], None]  # counts one call


def text(argument: Any) -> str:
    """The text of a call's argument: the contents of a string, the digits of a number."""
    return str(getattr(argument, "value", argument))


def count_math(context: CountingContext, name: str, call: Any, scope: Scope, share: float = 1.0) -> bool:
    """Count a call of the math function `name`, for a share of the lanes.

    Returns False if `name` is no math function.
    """
    function = MATH_NAMES.get(name)
    if function is None:
        return False
    dtype = element_type(str(call.dtype))
    if dtype.kind == "int":
        context.phase.counts["integer_ops"] += scope.issued_lanes * dtype.lanes
    else:
        lanes = dtype.lanes / 2 if function == "packed" else dtype.lanes
        count_function(context, function, scope.issued_lanes * max(1.0, lanes) * share, dtype.bits)
    return True


def count_function(context: CountingContext, function: str, lane_operations: float, bits: int) -> None:
    """Count `lane_operations` executions of one of the functions in `MATH`, of floats with so many bits."""
    cost = DOUBLE_MATH.get(function) if bits == DOUBLE_BITS else None
    cost = cost or (context.fast_math and FAST_MATH.get(function)) or MATH[function]
    context.phase.counts["special_ops"] += lane_operations * cost.special
    context.phase.counts["vector_ops"] += lane_operations * cost.vector
    context.phase.counts["selections"] += lane_operations * cost.double
