"""Counts the round trips of an iteration whose loads stand between exact divisions and square roots.

In CUDA without fast math these branch to a routine for rare values. ptxas moves no load from device memory
across that, and issues each load just before its value is used: so the loads whose values are used before the
first routine are one round trip, those used between it and the next one are another. What an iteration loads
behind its last routine is loaded with what the next copy of it needs. Read off the machine code of three
kernels by others (nvcc 13.0): a neuron model whose iterations load nine numbers around four divisions, in
four places; the same forwards, where two copies of an iteration have a division each; and a sum over heads,
in four copies. The same holds without a loop: a gate of a recurrent network by others has eight loads around
three exact functions, in four places.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

from .element_types import element_type
from .expressions import identity, loads, variables
from .loops import calls_routine, contains, is_short, is_unrolled, loads_beside_calls, visit

ROUTINE_BITS = 32  # of floats: those of 16 bits divide without a routine


def trips_between_routines(loop: Any, is_global: Callable[[Any], bool], copies: int) -> float:
    """Round trips of the loads of an iteration; 0 if it calls no routine.

    Those of inner loops are left out, and routines in branches on indices: such a branch may be the end of a
    tile.

    Args:
        loop: a loop.
        is_global: whether a buffer lies in device memory.
        copies: iterations that follow each other in the machine code.
    """
    body = _Body({identity(loop.loop_var)}, is_global)
    body.read(loop.body)
    if not body.routines:
        return 0.0
    shared = {0, body.routines} <= body.used
    return len(body.used) - shared * (1 - 1 / copies)


def trips_without_loops(statement: Any, is_global: Callable[[Any], bool], indices: Set[int]) -> float:
    """Round trips of the loads of a statement without loops; 0 if it calls no routine.

    Args:
        statement: what each thread executes once.
        is_global: whether a buffer lies in device memory.
        indices: the variables that number threads and blocks.
    """
    body = _Body(set(indices), is_global)
    body.read(statement)
    return len(body.used) if body.routines else 0.0


class _Body:
    """The statements of an iteration so far.

    Attributes:
        routines: calls of routines that no earlier iteration has made.
        used: numbers of routines before which values are used that the iteration has loaded.
    """

    def __init__(self, changed: set[int], is_global: Callable[[Any], bool]) -> None:
        self.routines = 0
        self.used: set[int] = set()
        # variables and buffers that differ from iteration to iteration, or from thread to thread
        self._changed = changed
        self._waiting: set[int] = set()  # those that have loaded values which nothing has used yet
        self._is_global = is_global

    def read(self, node: Any) -> None:
        kind = type(node).__name__
        if kind == "SeqStmt":
            for part in node.seq:
                self.read(part)
        elif kind in ("Bind", "BufferStore"):
            self._assign(node, identity(node.var if kind == "Bind" else node.buffer.data))
        elif kind == "IfThenElse":
            self._use(node.condition)
            self._read_branches(node)
        elif kind == "Evaluate":
            self._use(node.value)
        elif kind == "For" and self._waits_for_itself(node):
            self.routines += 1
        elif kind == "For":
            self._changed.add(identity(node.loop_var))
            self.read(node.body)
        elif hasattr(node, "body"):
            self.read(node.body)

    def _read_branches(self, node: Any) -> None:
        """Read what stands under a condition, without its routines if the condition is on indices."""
        before = self.routines
        for part in (node.then_case, node.else_case):
            if part is not None:
                self.read(part)
        if not contains(node.condition, lambda part, _: "float" in str(getattr(part, "dtype", ""))):
            self.used = {min(number, before) for number in self.used}
            self.routines = before

    def _waits_for_itself(self, loop: Any) -> bool:
        """Whether an inner loop stays one, which waits in each of its own iterations."""
        unrolled = is_unrolled(loop) or is_short(loop, self._is_global)
        return not unrolled and loads_beside_calls(loop, self._is_global)

    def _assign(self, node: Any, target: int) -> None:
        value = node.value
        if variables(value) & self._changed or self._loads(value):
            self._changed.add(target)
        is_stored = type(node).__name__ == "BufferStore" and self._is_global(node.buffer)
        if type(value).__name__ == "BufferLoad" and self._loads(value) and not is_stored:
            self._waiting.add(target)
        else:
            self._use(value)

    def _loads(self, value: Any) -> bool:
        """Whether a value loads from device memory what differs from iteration to iteration."""
        return any(
            self._is_global(load.buffer) and variables(load.indices[0]) & self._changed
            for load in loads(value)
        )

    def _use(self, value: Any) -> None:
        """Read an expression in the order of its operations."""

        def look(part: Any, kind: str) -> None:
            if kind == "BufferLoad" and self._loads(part):
                self.used.add(self.routines)
            elif kind in ("Var", "BufferLoad") and (read := variables(part) & self._waiting):
                self.used.add(self.routines)
                self._waiting -= read
            if calls_routine(part, kind) and element_type(str(part.dtype)).bits == ROUTINE_BITS:
                self.routines += bool(variables(part) & self._changed)

        visit(value, look)
