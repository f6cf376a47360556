"""The order that stores to shared memory force upon the loads after them, as far as the compiler can tell."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .expressions import identity, loads, variables
from .loops import is_unrolled, visit

ONE_MEMORY = "shared.dyn"  # in which the buffers are parts of one array


def follows_shared_index(node: Any, is_global: Callable[[Any], bool]) -> bool:
    """Whether each iteration of an unrolled loop waits for its own load from device memory.

    Its address is read from shared memory, and its value is stored to shared memory, as in a gather of rows
    whose numbers the block has staged. All buffers lie in one array there, so for the compiler the store may
    change the next address, and that is not read before the store. Read off the machine code of attention
    over pages (nvcc 13.0): 36 times LDS, LDG, STS.
    """
    if not is_unrolled(node):
        return False
    indices: set[int] = set()  # local values that derive from shared memory
    found = False

    def from_shared(index: Any) -> bool:
        return bool(variables(index) & indices) or any(_is_shared(load.buffer) for load in loads(index))

    def look(part: Any, kind: str) -> None:
        nonlocal found
        if kind == "Bind" and from_shared(part.value):
            indices.add(identity(part.var))
        elif kind == "BufferStore" and _is_shared(part.buffer):
            gathered = [load for load in loads(part.value) if is_global(load.buffer)]
            found = found or any(from_shared(index) for load in gathered for index in load.indices)

    visit(node.body, look)
    return found


def rewrites_shared(body: Any) -> bool:
    """Whether threads both load from shared memory and store to it by plain accesses."""
    loaded = stored = False

    def look(part: Any, kind: str) -> None:
        nonlocal loaded, stored
        if kind == "BufferLoad":
            loaded = loaded or str(part.buffer.scope()).startswith("shared")
        elif kind == "BufferStore":
            stored = stored or str(part.buffer.scope()).startswith("shared")

    visit(body, look)
    return loaded and stored


def _is_shared(buffer: Any) -> bool:
    return str(buffer.scope()) == ONE_MEMORY
