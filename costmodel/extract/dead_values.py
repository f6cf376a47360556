"""Finds the values of a kernel that nothing uses: the compiler removes what computes them, loads included."""

from __future__ import annotations

from typing import Any

from ...lowering.call_effects import may_change_memory
from .expressions import identity, variables
from .loops import visit


def dead_values(function: Any) -> frozenset[int]:
    """Identities of the variables and local buffers from which no stored result, condition or call derives.

    A sum that is computed and then multiplied into nothing is one, although its own additions read it. The
    result of a call that changes something counts as used.
    """
    sources: dict[int, set[int]] = {}  # what each local value derives from
    used: set[int] = set()

    def look(part: Any, kind: str) -> None:
        if kind == "Bind":
            if str(part.var.dtype).startswith("handle"):  # the place of a buffer
                used.update(variables(part.value))
            else:
                sources.setdefault(identity(part.var), set()).update(variables(part.value))
                if _changes_something(part.value):
                    used.update({identity(part.var)}, variables(part.value))
        elif kind == "BufferStore":
            read = set().union(variables(part.value), *map(variables, part.indices))
            if str(part.buffer.scope()) in ("local", "local.var"):
                sources.setdefault(identity(part.buffer.data), set()).update(read)
                if _changes_something(part.value):
                    used.update({identity(part.buffer.data)}, read)
            else:
                used.update(read)
        elif kind in ("IfThenElse", "While", "AssertStmt"):
            used.update(variables(part.condition))
        elif kind == "For":
            used.update(variables(part.min) | variables(part.extent))
        elif kind in ("Evaluate", "AttrStmt"):
            used.update(variables(part.value))

    visit(function.body, look)
    pending = list(used)
    while pending:
        for source in sources.get(pending.pop(), set()) - used:
            used.add(source)
            pending.append(source)
    return frozenset(sources) - used


def _changes_something(value: Any) -> bool:
    """Whether a value contains a call that writes to memory, or may do so."""
    found = False

    def look(part: Any, kind: str) -> None:
        nonlocal found
        found = found or (kind == "Call" and may_change_memory(part))

    visit(value, look)
    return found
