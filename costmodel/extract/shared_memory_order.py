"""The order that stores to shared memory force upon the loads after them, as far as the compiler can tell."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from .expressions import identity, is_shared, loads, variables
from .loops import contains, is_unrolled, visit

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
        return bool(variables(index) & indices) or any(
            _is_in_one_memory(load.buffer) for load in loads(index)
        )

    def look(part: Any, kind: str) -> None:
        nonlocal found
        if kind == "Bind" and from_shared(part.value):
            indices.add(identity(part.var))
        elif kind == "BufferStore" and _is_in_one_memory(part.buffer):
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
            loaded = loaded or is_shared(part.buffer)
        elif kind == "BufferStore":
            stored = stored or is_shared(part.buffer)

    visit(body, look)
    return loaded and stored


def stores_to_shared(node: Any) -> bool:
    """Whether a statement stores to shared memory by plain accesses."""

    def stores(part: Any, kind: str) -> bool:
        return kind == "BufferStore" and is_shared(part.buffer)

    return contains(node, stores)


def waits_of_condition(condition: Any, values: Mapping[int, Any]) -> int:
    """How often a warp waits for numbers from shared memory in a condition of a loop that stores there, too.

    The compiler moves no load across the stores of the iteration before, and makes a branch of each operand
    of the condition, whose loads wait alone. Read off the machine code of serial maxima over the values of
    all threads (nvcc 13.0).

    Args:
        condition: of a branch.
        values: of the variables that derive from data, by identity.
    """
    loaded: set[str] = set()
    waits = 0

    def shared_loads(part: Any) -> set[str]:
        found = {str(load) for load in loads(part) if is_shared(load.buffer)}
        for variable in variables(part) & values.keys():
            found |= shared_loads(values[variable])
        return found

    def look(part: Any) -> None:
        nonlocal waits
        kind = type(part).__name__
        if kind == "Var" and identity(part) in values:
            look(values[identity(part)])
        elif kind in ("And", "Or"):
            look(part.a)
            look(part.b)
        else:
            mine = shared_loads(part) - loaded
            loaded.update(mine)
            waits += bool(mine)

    look(condition)
    return waits


def _is_in_one_memory(buffer: Any) -> bool:
    return str(buffer.scope()) == ONE_MEMORY


def rewritten_in_turn(body: Any, is_global: Callable[[Any], bool]) -> int:
    """Tensors of which each iteration of a loop loads and stores elements, the stores under conditions.

    The compiler moves no load of the next iteration before such a branch, which may store to it. Read off the
    machine code of a rotation in place (nvcc 13.0), whose pairs of loads and stores follow each other.
    """
    loaded: set[int] = set()
    stored: set[int] = set()

    def look(part: Any, kind: str) -> None:
        if kind == "BufferLoad" and is_global(part.buffer):
            loaded.add(identity(part.buffer.data))
        elif kind == "IfThenElse":
            visit(part, inside)

    def inside(part: Any, kind: str) -> None:
        if kind == "BufferStore" and is_global(part.buffer):
            stored.add(identity(part.buffer.data))

    visit(body, look)
    both = loaded & stored
    if both and contains(
        body, lambda part, kind: kind == "For" and bool(rewritten_in_turn(part.body, is_global))
    ):
        return 0  # the iterations of an inner loop count
    return len(both)
