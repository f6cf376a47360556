"""Counts the round trips that the loads of a statement wait for, one after another.

A load whose address derives from another load waits for it. No load leaves a branch that the compiler keeps:
those in it, and those of the code after it, wait for a round trip of their own. Loads at addresses that are
equal for all threads of a warp count as none: they are few, and most find a sector that was loaded before.
Read off the machine code and times of sums of rows by atomics, of selected rows and of logits of pages by
others (nvcc 13.0, an H200).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from .expressions import constant, identity, is_choice, loads, variables
from .loops import calls, contains, loads_globally, visit


@dataclass
class LoadChain:
    """The loads of statements in the order of the program.

    Attributes:
        is_global: whether a buffer lies in device memory.
        varying: identities of the variables whose values differ between the threads of a warp.
        warp_threads: of a warp.
    """

    is_global: Callable[[Any], bool]
    varying: set[int]
    warp_threads: int
    _before: float = 0.0  # round trips of the code up to the last branch that the compiler keeps
    _here: int = 0  # of the code since then
    _depths: dict[int, int] = field(default_factory=dict)  # of these, until a variable has its value
    _loaded: set[int] = field(default_factory=set)  # variables whose values derive from loads
    _movable: set[int] = field(default_factory=set)  # variables that are loads under no condition

    def trips(self, joined: int = 1) -> float:
        """Round trips of all statements so far, for one of `joined` iterations that load together.

        No iteration loads before the branches of the one before it.
        """
        return self._before + self._here / joined

    def read(self, node: Any) -> None:
        """Add the loads of a statement. Kept branches in a loop count in each of its iterations."""
        kind = type(node).__name__
        if kind == "SeqStmt":
            for part in node.seq:
                self.read(part)
        elif kind == "For":
            before = self._before
            self.read(node.body)
            again = constant(node.extent) or 1 if self._changes_loads(node) else 1
            self._before += (self._before - before) * (again - 1)
        elif kind == "IfThenElse":
            self._wait_of(node.condition)
            is_kept = self._is_kept(node)
            for part in (node.then_case, node.else_case):
                if part is not None:
                    self._let_arrive(is_kept)
                    self.read(part)
            self._let_arrive(is_kept)
        elif kind in ("Bind", "BufferStore"):
            is_kept = self._selects_in_branches(node.value)
            self._let_arrive(is_kept)
            self._assign(node, identity(node.var if kind == "Bind" else node.buffer.data))
            self._let_arrive(is_kept)
        elif kind == "Evaluate":
            self._wait_of(node)
        elif hasattr(node, "body"):
            self.read(node.body)

    def _let_arrive(self, is_kept: bool) -> None:
        """Wait for all loads so far, where a branch begins or ends, if the compiler keeps it."""
        if is_kept:
            self._before += self._here
            self._here = 0
            self._depths.clear()

    def _assign(self, node: Any, target: int) -> None:
        depth = self._wait_of(node)
        self._depths[target] = max(depth, self._depths.get(target, 0))
        if self._differs(node.value):
            self.varying.add(target)
        if variables(node.value) & self._loaded or loads_globally(node.value, self.is_global):
            self._loaded.add(target)
        if type(node).__name__ == "Bind" and type(node.value).__name__ == "BufferLoad":
            self._movable.add(target)

    def _wait_of(self, node: Any) -> int:
        """Round trips until the values of a statement or expression are there, since the last kept branch."""
        depth = max((self._depths.get(variable, 0) for variable in variables(node)), default=0)
        for load in loads(node):
            if self.is_global(load.buffer) and self._differs(load.indices[0]):
                depth = max(depth, 1 + self._wait_of(load.indices[0]))
        self._here = max(self._here, depth)
        return depth

    def _changes_loads(self, loop: Any) -> bool:
        """Whether the iterations of a loop load different numbers from device memory."""
        loaded = [load for load in loads(loop.body) if self.is_global(load.buffer)]
        return any(identity(loop.loop_var) in variables(load.indices[0]) for load in loaded)

    def _differs(self, value: Any) -> bool:
        """Whether a value may differ between the lanes of a warp."""
        kind = type(value).__name__
        if kind in ("FloorDiv", "Div") and (constant(value.b) or 1) % self.warp_threads == 0:
            return False
        if kind == "Var":
            return identity(value) in self.varying
        if kind == "BufferLoad":
            return identity(value.buffer.data) in self.varying or self._differs(value.indices[0])
        return any(map(self._differs, _operands(value)))

    def _is_kept(self, branch: Any) -> bool:
        """Whether the compiler keeps a branch, as far as this counts them.

        It does so if the branch loads what decides another one in it that loads, too. A branch on data around
        an atomic stays one as well: what was loaded for it alone, under no condition, is loaded in it.
        """
        inside = variables(branch.then_case)
        if calls(branch.then_case, ("atomic",)):
            waiting = {variable for variable in self._movable if self._depths.get(variable)}
            return bool(variables(branch.condition) & self._loaded and inside & waiting)
        loaded: set[int] = set()

        def look(part: Any, kind: str) -> None:
            if kind == "Bind" and loads_globally(part.value, self.is_global):
                loaded.add(identity(part.var))

        def decides(part: Any, kind: str) -> bool:
            if kind != "IfThenElse" or not loads_globally(part.then_case, self.is_global):
                return False
            return bool(variables(part.condition) & loaded) or loads_globally(part.condition, self.is_global)

        visit(branch.then_case, look)
        return contains(branch.then_case, decides)

    def _selects_in_branches(self, value: Any) -> bool:
        """Whether a value selects a load by one condition on data within another one.

        The inner one may decide what the outer one tests.
        """

        def chooses_load(part: Any, _kind: str) -> bool:
            return is_choice(part) and loads_globally(part, self.is_global)

        def selects(part: Any, _kind: str) -> bool:
            if not is_choice(part):
                return False
            condition, *cases = part.args
            if contains(condition, chooses_load):
                return any(loads_globally(case, self.is_global) for case in cases)
            decided = bool(variables(condition) & self._loaded)
            return decided and any(chooses_load(case, "") for case in cases)

        return contains(value, selects)


def _operands(value: Any) -> Sequence[Any]:
    """The expressions that an expression consists of, but for loads."""
    if type(value).__name__ in ("IntImm", "FloatImm", "StringImm"):
        return ()
    if type(value).__name__ == "Call":
        return list(value.args)
    names = ("a", "b", "value", "condition", "true_value", "false_value", "base", "stride")
    return [part for part in (getattr(value, name, None) for name in names) if part is not None]
