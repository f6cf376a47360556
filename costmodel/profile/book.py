"""What a reader of statements offers to those that read values and calls for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from .dtypes import element_type
from .ledger import Ledger
from .mathematics import MATH, MATH_NAMES
from .memory import Memory
from .scope import Scope


class Book(Protocol):
    @property
    def ledger(self) -> Ledger:
        """Where the present phase is booked."""
        ...

    @property
    def memory(self) -> Memory: ...

    def value(self, node: Any, scope: Scope) -> None:
        """Book the loads and the arithmetic of an expression whose value is used."""
        ...

    def address(self, index: Any, scope: Scope) -> None:
        """Book the loads in an address. Its arithmetic is not: the compiler hoists and reduces it."""
        ...

    def touch(self, variable: Any) -> None:
        """A local buffer is used here: its registers are live."""
        ...

    def limit_registers(self, count: Any) -> None: ...

    def unknown(self, name: str, scope: Scope) -> None:
        """Report what is not understood, and charge it dearly."""
        ...

    def note(self, text: str) -> None:
        """Something had to be assumed."""
        ...

    def shared_words(self, scope: Scope, *, write: bool) -> None:
        """One 4-byte word of shared memory per thread, without conflicts."""
        ...


Handler = Callable[[Book, Any, Scope], None]


def text(argument: Any) -> str:
    """A call's argument as the IR writes it: the contents of a string, the digits of a number."""
    return str(getattr(argument, "value", argument))


def book_math(book: Book, name: str, call: Any, scope: Scope) -> bool:
    """Book a math function by its name; False where it is none."""
    function = MATH_NAMES.get(name)
    if function is None:
        return False
    dtype = element_type(str(call.dtype))
    if dtype.kind == "int":
        book.ledger.counts["integer_ops"] += scope.executions * dtype.lanes
    else:
        lanes = dtype.lanes / 2 if function == "packed" else dtype.lanes
        book_function(book, function, scope.executions * max(1.0, lanes))
    return True


def book_function(book: Book, function: str, lane_operations: float) -> None:
    cost = MATH[function]
    book.ledger.counts["special_ops"] += lane_operations * cost.special
    book.ledger.counts["vector_ops"] += lane_operations * cost.vector
