"""Finds the values of a kernel that nothing uses: the compiler removes what computes them, loads included."""

from __future__ import annotations

from typing import Any

from .expressions import identity, variables
from .loops import visit


def dead_values(function: Any) -> frozenset[int]:
    """Identities of the variables and local buffers from which no stored result, condition or call derives.

    A sum that is computed and then multiplied into nothing is one, although its own additions read it.
    """
    sources: dict[int, set[int]] = {}  # what each local value derives from
    used: set[int] = set()

    def look(part: Any, kind: str) -> None:
        if kind == "Bind":
            if str(part.var.dtype).startswith("handle"):  # the place of a buffer
                used.update(variables(part.value))
            else:
                sources.setdefault(identity(part.var), set()).update(variables(part.value))
        elif kind == "BufferStore":
            read = set().union(variables(part.value), *map(variables, part.indices))
            if str(part.buffer.scope()) in ("local", "local.var"):
                sources.setdefault(identity(part.buffer.data), set()).update(read)
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


__all__ = ["dead_values"]
