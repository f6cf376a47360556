"""Finds the loops and branches of a kernel that data decide, and all that they derive from."""

from __future__ import annotations

from typing import Any

from .branches import LEAVING
from .device_calls import is_computed
from .expressions import call_name, identity, variables
from .loops import contains, visit


class ControlFlow:
    """What decides the loops and branches of a kernel.

    Attributes:
        decided: identities of the loops, and of the first branches of `if`s, that known data decide.
        needed: identities of all variables and buffers that these derive from.
    """

    def __init__(self, function: Any, known: frozenset[int]) -> None:
        """Read a device function.

        Args:
            function: the device function.
            known: identities of its parameters whose contents are known.
        """
        self._sources: dict[int, set[int]] = {}  # what each variable and buffer is computed from
        self._unknown: set[int] = set()  # buffers and variables that unknown calls store to or compute
        self._controls: dict[int, set[int]] = {}  # what loops and branches are decided by
        self._matter: dict[int, bool] = {}
        self._read(function.body, frozenset())
        tensors = {identity(parameter) for parameter in function.params}
        unknown = self._unknown | (tensors - known)
        self.decided = set[int]()
        self.needed = set[int]()
        for control, sources in self._controls.items():
            roots = self._closure({control, *sources})
            if roots & known and not roots & unknown:
                self.decided.add(control)
                self.needed |= roots

    def matters(self, node: Any) -> bool:
        """Whether a statement computes something that is needed, is decided by data, or leaves a loop."""
        key = identity(node)
        if key not in self._matter:
            self._matter[key] = contains(node, self._is_needed)
        return self._matter[key]

    def _is_needed(self, part: Any, kind: str) -> bool:
        if kind == "Bind":
            return identity(part.var) in self.needed
        if kind in ("AllocBuffer", "DeclBuffer"):
            return identity(part.buffer.data) in self.needed
        if kind == "BufferStore":
            return identity(part.buffer.data) in self.needed
        if kind == "Call":
            return call_name(part) in LEAVING
        if kind == "IfThenElse":
            return identity(part.then_case) in self.decided
        return kind in ("For", "While") and identity(part) in self.decided

    def _closure(self, start: set[int]) -> set[int]:
        found, pending = set(start), list(start)
        while pending:
            for source in self._sources.get(pending.pop(), set()) - found:
                found.add(source)
                pending.append(source)
        return found

    def _read(self, node: Any, around: frozenset[int]) -> None:
        """Read a statement; `around` is what decides whether it is executed."""
        kind = type(node).__name__
        if kind == "SeqStmt":
            for part in node.seq:
                self._read(part, around)
                around = around | self._leaves_by(part)
        elif kind == "IfThenElse":
            own = variables(node.condition)
            self._note_calls(node.condition, identity(node.then_case))
            self._controls[identity(node.then_case)] = own | around
            for body in (node.then_case, node.else_case):
                if body is not None:
                    self._read(body, around | own)
        elif kind in ("For", "While"):
            own = self._bounds(node) | self._leaves_by(node.body)
            self._controls[identity(node)] = own | around
            self._read(node.body, around | own)
        elif kind == "Bind" and str(node.var.dtype) != "handle":  # else a view, a buffer of its own
            self._derive(identity(node.var), node.value, variables(node.value) | around)
        elif kind == "BufferStore":
            read = variables(node.value).union(*map(variables, node.indices))
            self._derive(identity(node.buffer.data), node.value, read | around)
            for index in node.indices:
                self._note_calls(index, identity(node.buffer.data))
        elif kind == "Evaluate":
            self._unknown |= _handed(node.value)
        elif hasattr(node, "body"):
            self._read(node.body, around)

    def _bounds(self, node: Any) -> set[int]:
        """What the number of iterations of a loop derives from, but for what leaves it."""
        if type(node).__name__ == "While":
            bounds = [node.condition]
        else:
            bounds = [node.min, node.extent]
            self._sources.setdefault(identity(node.loop_var), set()).update(*map(variables, bounds))
        for bound in bounds:
            self._note_calls(bound, identity(node))
        return set().union(*map(variables, bounds))

    def _derive(self, key: int, value: Any, sources: set[int] | frozenset[int]) -> None:
        self._sources.setdefault(key, set()).update(sources)
        self._note_calls(value, key)

    def _note_calls(self, value: Any, key: int) -> None:
        """What an unknown call computes is unknown, and what it is handed, which it may store to."""

        def look(part: Any, kind: str) -> None:
            if kind == "Call" and not is_computed(part):
                self._unknown.add(key)
                self._unknown.update(_handed(part))

        visit(value, look)

    def _leaves_by(self, node: Any) -> frozenset[int]:
        """What decides whether a statement leaves a loop or ends the thread."""
        found = set[int]()

        def look(part: Any, kind: str) -> None:
            if kind == "IfThenElse" and contains(
                part, lambda inner, of: of == "Call" and call_name(inner) in LEAVING
            ):
                found.update(variables(part.condition))

        visit(node, look)
        return frozenset(found)


def _handed(call: Any) -> set[int]:
    """Identities of the buffers that a call gets an address of, and so may store to."""
    found = set[int]()

    def look(part: Any, kind: str) -> None:
        if kind == "Call" and call_name(part) == "tirx.address_of":
            found.add(identity(part.args[0].buffer.data))
        elif kind == "Var" and str(part.dtype) == "handle":
            found.add(identity(part))

    visit(call, look)
    return found
