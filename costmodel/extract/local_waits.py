"""Counts how often a loop waits for elements of arrays in local memory, one after another.

A loop that the compiler keeps waits for what it loads from local memory: ptxas moves no such load before a
store to another local array, since both have pointers that the loop moves. So each iteration waits, or each
WIDE iterations if they load neighbours together, without conditions. Loads of a loop that stores to no other
array, or whose accesses share one address that is no step of a pointer, are in flight together. Source:
machine code of 20 loops.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from .expressions import constant, identity, loads, variables
from .local_arrays import is_kept, is_linear
from .loops import contains, is_unrolled

WIDE = 4  # elements of 4 bytes that a thread loads at once


class LocalWaits(NamedTuple):
    """How often a thread waits for arrays in local memory.

    Attributes:
        all: the waits.
        near: of these, for elements that the iteration before touched, such as a sum to which a loop adds.
    """

    all: float = 0.0
    near: float = 0.0

    def times(self, count: float) -> LocalWaits:
        return LocalWaits(self.all * count, self.near * count)


def waits_for_local_memory(loop: Any, arrays: frozenset[int]) -> LocalWaits:
    """How often a thread waits for arrays in local memory in an iteration of a loop that is no unrolled one.

    Args:
        loop: the loop. Its inner loops count as unrolled, unless one of them is too long for that.
        arrays: identities of the arrays in local memory.
    """
    if not arrays or is_unrolled(loop) or not is_kept(loop, frozenset()) or _has_kept(loop.body):
        return LocalWaits()
    body = _Accesses(arrays)
    body.read(loop.body, 1.0, identity(loop.loop_var))
    return body.waits


def _has_kept(node: Any) -> bool:
    return contains(
        node, lambda part, kind: kind == "While" or (kind == "For" and is_kept(part, frozenset()))
    )


class _Accesses:
    """Loads of arrays in local memory in a kept loop, and how many groups of them wait one after another."""

    def __init__(self, arrays: frozenset[int]) -> None:
        self._arrays = arrays
        self._groups: list[tuple[float, list[Any], int]] = []  # executions, loads, variable of the loop
        self._stores: list[Any] = []
        self._is_open = False  # no store came since the last loads
        self._is_guarded = False

    def read(self, node: Any, times: float, variable: int) -> None:
        """Read a statement that runs `times` times in an iteration, within the loop of `variable`."""
        kind = type(node).__name__
        if kind == "SeqStmt":
            for part in node.seq:
                self.read(part, times, variable)
        elif kind == "For":
            self.read(node.body, times * (constant(node.extent) or 1), identity(node.loop_var))
        elif kind == "IfThenElse":
            self._is_guarded = True
            self._load(node.condition, times, variable)
            for part in (node.then_case, node.else_case):
                if part is not None:
                    self.read(part, times, variable)
        elif kind in ("BufferStore", "Bind", "Evaluate"):
            self._load(node.value, times, variable)
            if kind == "BufferStore" and identity(node.buffer.data) in self._arrays:
                self._stores.append(node)
                self._is_open = False
        elif hasattr(node, "body"):
            self.read(node.body, times, variable)

    def _load(self, value: Any, times: float, variable: int) -> None:
        mine = [load for load in loads(value) if identity(load.buffer.data) in self._arrays]
        if mine and self._is_open:
            self._groups[-1][1].extend(mine)
        elif mine:
            self._groups.append((times, mine, variable))
            self._is_open = True

    @property
    def waits(self) -> LocalWaits:
        """Waits of a thread in one iteration."""
        every = [load for _, group, _ in self._groups for load in group]
        stored = {identity(store.buffer.data) for store in self._stores}
        if not any(stored - {identity(load.buffer.data)} for load in every) or self._share_an_address(every):
            return LocalWaits()
        total = near = 0.0
        for times, group, variable in self._groups:
            together = not self._is_guarded and all(_is_step(load, variable) for load in group)
            waits = times / (WIDE if together else 1)
            total += waits
            near += 0.0 if any(variable in variables(load.indices[0]) for load in group) else waits
        return LocalWaits(total, near)

    def _share_an_address(self, every: Sequence[Any]) -> bool:
        """Whether all accesses have one index, by which no pointer moves."""
        from tvm.ir import structural_equal

        index = every[0].indices[0]
        return not is_linear(index) and all(
            structural_equal(one.indices[0], index) for one in (*every, *self._stores)
        )


def _is_step(access: Any, variable: int) -> bool:
    """Whether the index of an access grows by one with a loop's variable."""
    terms = [access.indices[0]]
    while any(type(term).__name__ == "Add" for term in terms):
        terms = [part for t in terms for part in ((t.a, t.b) if type(t).__name__ == "Add" else (t,))]
    mine = [term for term in terms if variable in variables(term)]
    return len(mine) == 1 and type(mine[0]).__name__ == "Var"
