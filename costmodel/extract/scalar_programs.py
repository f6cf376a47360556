"""Executes the integer arithmetic of loops and branches, where the data that it depends on is known.

Kernels find their work in tables: the group of a tile by a loop over offsets, a sequence by a binary search.
The statements that store to local scalars are executed over all samples at once, like any index expression.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .expressions import (
    LANE,
    Bindings,
    Computed,
    UnevaluableError,
    call_name,
    evaluate,
    identity,
    is_scalar,
    variables,
    wrapped,
)
from .loops import BREAKS, breaks, stored_buffers, visit

MOST_ITERATIONS = 4096  # of all loops of a program


def sources_of(node: Any, *, scalars_only: bool = False) -> set[int]:
    """Identities of the variables and buffers that a statement's stores and conditions derive from.

    Args:
        node: the statement.
        scalars_only: leave out what is stored to other buffers than local scalars.
    """
    used, own = set[int](), set[int]()

    def look(part: Any, kind: str) -> None:
        if kind == "BufferStore" and (is_scalar(part.buffer) or not scalars_only):
            used.update(variables(part.value), *map(variables, part.indices))
        elif kind in ("IfThenElse", "While"):
            used.update(variables(part.condition))
        elif kind == "For":
            own.add(identity(part.loop_var))
            used.update(variables(part.min), variables(part.extent))
        elif kind == "Bind":
            own.add(identity(part.var))
            used.update(variables(part.value))

    visit(node, look)
    return used - own


@dataclass(frozen=True, eq=False)
class ScalarProgram(Computed):
    """A statement as an expression: its value is the mapping of the local scalars that it stores to."""

    node: Any

    def variables(self) -> set[int]:
        return sources_of(self.node, scalars_only=True)

    def value(self, bindings: Bindings) -> Mapping[int, Any]:
        run = ProgramRun(dict(bindings))
        run.statement(self.node, True)
        return {scalar: run.known[scalar] for scalar in _stored(self.node) if scalar in run.known}


@dataclass(frozen=True, eq=False)
class LoopState(ScalarProgram):
    """The start of a loop's iteration as an expression: the mapping of the local scalars that it stores to.

    After the last iteration the state stays as it is. `step` is the variable that numbers the iterations.
    """

    step: int

    def variables(self) -> set[int]:
        return super().variables() | {self.step}

    def value(self, bindings: Bindings) -> Mapping[int, Any]:
        run = ProgramRun(dict(bindings), self.node, bindings[self.step])
        run.statement(self.node, True)
        return run.state


@dataclass(frozen=True, eq=False)
class ScalarResult(Computed):
    """The value of one local scalar in the result of a program, which is bound to its own identity."""

    program: ScalarProgram
    scalar: int

    def variables(self) -> set[int]:
        return self.program.variables()

    def value(self, bindings: Bindings) -> Any:
        found = bindings.get(identity(self.program), {})
        if self.scalar not in found:
            raise UnevaluableError("data")
        return found[self.scalar]


class ProgramRun:
    """One execution: the values known so far, and the samples in which the present statement runs.

    Args:
        known: values before it.
        watched: a loop whose state is wanted.
        steps: the numbers of the iterations at whose start it is wanted.
    """

    def __init__(self, known: dict[int, Any], watched: Any = None, steps: Any = 0) -> None:
        self.known = known
        self.watched, self.steps = watched, steps
        self.state: dict[int, Any] = {}  # of the scalars that the watched loop stores to
        self.turn = 0  # of the watched loop
        self.arrays: dict[int, Any] = {}  # buffers whose contents the statements change
        self.iterations = 0
        self.left: list[Any] = []  # for each loop around: the samples that have left it
        # by loop, added up over its executions: (share of the samples that enter it, iterations of all)
        self.turns: dict[int, tuple[float, float]] = {}
        self._idle: dict[int, bool] = {}  # by loop: whether it changes nothing that the program knows

    def statement(self, node: Any, mask: Any) -> None:
        kind = type(node).__name__
        if kind == "SeqStmt":
            for part in node.seq:
                self.statement(part, mask)
        elif kind == "AttrStmt":
            self.statement(node.body, mask)
        elif kind == "Bind":
            self.assign(identity(node.var), node.value, True)
        elif kind == "BufferStore" and is_scalar(node.buffer):
            self.assign(identity(node.buffer.data), node.value, self._running(mask))
        elif kind == "BufferStore" and identity(node.buffer.data) in self.arrays:
            self._store(node, self._running(mask))
        elif kind == "IfThenElse":
            self._branch(node, mask)
        elif kind == "For":
            self._for(node, mask)
        elif kind == "While":
            self._while(node, mask)
        elif kind == "Evaluate" and self.left and call_name(node.value) in BREAKS:
            self.left[-1] = self.left[-1] | np.asarray(self._running(mask))

    def _bindings(self) -> dict[int, Any]:
        return {**self.known, **self.arrays} if self.arrays else self.known

    def _running(self, mask: Any) -> Any:
        return mask if not self.left else np.logical_and(mask, np.logical_not(self.left[-1]))

    def assign(self, key: int, value: Any, mask: Any) -> None:
        try:
            new = wrapped(evaluate(value, self._bindings()), str(getattr(value, "dtype", "")))
        except UnevaluableError:
            if np.any(mask):
                self.known.pop(key, None)
            return
        # a scalar without a value in some samples is not read there
        before = self.known.get(key, 0)
        self.known[key] = new if np.all(mask) else np.where(mask, new, before)

    def _store(self, node: Any, mask: Any) -> None:
        """Store to a buffer, lane by lane. Raises `UnevaluableError`."""
        (index,) = node.indices
        lanes = int(index.lanes) if type(index).__name__ == "Ramp" else 1
        elements = self.arrays[identity(node.buffer.data)]
        for lane in range(lanes):
            bindings = {**self._bindings(), LANE: lane}
            elements.store(evaluate(index, bindings), evaluate(node.value, bindings), mask)

    def _branch(self, node: Any, mask: Any) -> None:
        try:
            held = np.asarray(evaluate(node.condition, self._bindings()), dtype=bool)
        except UnevaluableError:
            if breaks(node):
                raise
            self._forget(node)
            return
        for body, inside in ((node.then_case, held), (node.else_case, ~held)):
            taken = np.logical_and(mask, inside)
            if body is not None and np.any(taken):
                self.statement(body, taken)

    def _for(self, node: Any, mask: Any) -> None:
        if self._is_idle(node):
            return
        try:
            start, extent = (np.asarray(evaluate(part, self._bindings())) for part in (node.min, node.extent))
        except UnevaluableError:
            self._forget(node)
            return
        self._enter(node, mask)
        for turn in range(max(0, int(extent.max()))):
            inside = np.logical_and(mask, turn < extent)
            if not np.any(self._running(inside)):
                break
            self._count(node, inside)
            self.known[identity(node.loop_var)] = start + turn
            self.statement(node.body, inside)
        self.left.pop()

    def _is_idle(self, node: Any) -> bool:
        """Whether a loop stores to no local scalar or array and ends no loop: many loops over k are such."""
        key = identity(node)
        if key not in self._idle:
            stores = bool(_stored(node)) or bool(self.arrays.keys() & stored_buffers(node))
            self._idle[key] = node is not self.watched and not stores and not breaks(node.body)
        return self._idle[key]

    def _while(self, node: Any, mask: Any) -> None:
        self._enter(node, mask)
        while True:
            try:
                held = np.asarray(evaluate(node.condition, self._bindings()), dtype=bool)
            except UnevaluableError:
                self._forget(node)
                break
            mask = np.logical_and(mask, held)
            if not np.any(self._running(mask)):
                break
            self._count(node, mask)
            self.statement(node.body, mask)
        self.left.pop()

    def _enter(self, node: Any, mask: Any) -> None:
        entered, turns = self.turns.get(identity(node), (0.0, 0.0))
        self.turns[identity(node)] = entered + float(np.mean(self._running(mask))), turns
        self.left.append(np.zeros((), dtype=bool))

    def _count(self, node: Any, mask: Any) -> None:
        if node is self.watched:
            self._watch(mask)
        entered, turns = self.turns[identity(node)]
        self.turns[identity(node)] = entered, turns + float(np.mean(self._running(mask)))
        self.iterations += 1
        if self.iterations > MOST_ITERATIONS:
            raise UnevaluableError(f"more than {MOST_ITERATIONS} iterations")

    def _watch(self, mask: Any) -> None:
        """Keep the state of the samples whose wanted iteration begins now or later."""
        here = np.logical_and(self._running(mask), self.steps >= self.turn)
        for scalar in _stored(self.watched):
            if scalar in self.known:
                self.state[scalar] = np.where(
                    here, self.known[scalar], self.state.get(scalar, self.known[scalar])
                )
        if not np.any(here):
            self.left[-1] = np.ones((), dtype=bool)
        self.turn += 1

    def _forget(self, node: Any) -> None:
        """The scalars that `node` stores to are unknown."""
        for scalar in _stored(node):
            self.known.pop(scalar, None)


def turns_of(node: Any, known: Bindings) -> Mapping[int, float]:
    """Mean iterations of a loop, and of the loops in it, each time that it is entered, by identity.

    Args:
        node: the loop.
        known: values before it.

    Raises:
        UnevaluableError: its iterations depend on data that is not known.
    """
    run = ProgramRun(dict(known))
    run.statement(node, True)
    return {loop: turns / entered for loop, (entered, turns) in run.turns.items() if entered}


def _stored(node: Any) -> list[int]:
    """The local scalars that a statement stores to, in order."""
    found: dict[int, None] = {}

    def look(part: Any, kind: str) -> None:
        if kind == "BufferStore" and is_scalar(part.buffer):
            found[identity(part.buffer.data)] = None

    visit(node, look)
    return list(found)
