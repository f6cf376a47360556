"""Finds the values of a kernel that nothing uses: the compiler removes what computes them, loads included.

Each element of a local buffer is a register, and counts by itself: of a tile with rows of padding, whose
results no statement stores, the compiler keeps the registers and instructions of the other rows. Read off
the machine code of sparse attention for 16 heads in tiles of 64 rows (nvcc 13.0): with one warp, whose
registers are known rows, a quarter of the mma.sync, ldmatrix, exponentials and lane exchanges is left, and
115 registers in place of 210. With several warps the rows depend on the thread, and all of them stay.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...lowering.call_effects import may_change_memory
from .counting import text
from .exchange_calls import REDUCTION
from .expressions import UnevaluableError, call_name, conjuncts, constant, evaluate, identity, variables
from .loops import contains, visit

# Iterations of the constant loops around a statement; beyond that, elements are not told apart.
MOST_ITERATIONS = 1 << 14
WARP_LANES = 32
_LOCAL = ("local", "local.var")
_MMA = "tirx.ptx_mma"
_LOAD_MATRIX = ("tl.ptx_ldmatrix", "tirx.ptx_ldmatrix")

Places = NDArray[np.int64] | None  # elements by (iteration, lane); None: all elements in each iteration
Use = tuple[int, Places]  # a variable or local buffer, and which of its elements


@dataclass(frozen=True)
class DeadValues:
    """What no stored result, condition or call derives from.

    Attributes:
        alive: of local buffers of which some elements are used: masks over the elements.
        shares: by identity of a statement that computes such a buffer: share of its iterations that compute
            an element that is used, where it is not 1.
    """

    alive: dict[int, NDArray[np.bool_]] = field(default_factory=dict)
    shares: dict[int, float] = field(default_factory=dict)

    def share(self, statement: Any) -> float:
        """Share of the iterations of `statement` whose result is used."""
        return self.shares.get(identity(statement), 1.0)

    def among_alive(self, buffer: int, used: NDArray[np.bool_] | None) -> NDArray[np.bool_] | None:
        """Those of the elements `used` of a buffer (None: all) from which results derive; None if all do."""
        alive = self.alive.get(buffer)
        if alive is None or (used is not None and len(used) != len(alive)):
            return used
        return alive if used is None else alive & used


def dead_values(function: Any) -> DeadValues:
    """The values of a device function from which no stored result, condition or call derives.

    A sum that is computed and then multiplied into nothing is one, although its own additions read it. The
    result of a call that changes something counts as used.
    """
    return _Uses(_element_counts(function)).of(function)


@dataclass
class _Step:
    """A statement that computes elements of a local buffer, or a variable, from others."""

    statement: int
    target: Use
    sources: list[Use]
    iterations: int

    def needed(self, alive: dict[int, NDArray[np.bool_]]) -> NDArray[np.bool_]:
        """Of each iteration, whether it computes an element that is used."""
        key, places = self.target
        if places is None:
            return np.full(self.iterations, bool(alive[key].any()))
        return np.asarray(alive[key][places].any(axis=1))


@dataclass
class _Uses:
    """Collects the steps of a function and what is used for certain, and follows the steps back."""

    sizes: dict[int, int]  # elements of the local buffers whose elements can be told apart
    steps: list[_Step] = field(default_factory=list)
    alive: dict[int, NDArray[np.bool_]] = field(default_factory=dict)
    _counters: dict[int, NDArray[np.int64]] = field(default_factory=dict)  # of the constant loops around
    _conditions: list[Any] = field(default_factory=list)  # around, which only these counters decide

    def of(self, function: Any) -> DeadValues:
        self._statement(function.body)
        for step in self.steps:
            self._elements(step.target[0])
        self._follow()
        computed = {step.target[0] for step in self.steps}
        shares: dict[int, float] = {}
        for step in self.steps:
            share = float(step.needed(self.alive).mean()) if step.iterations else 1.0
            shares[step.statement] = max(share, shares.get(step.statement, 0.0))
        return DeadValues(
            {k: mask for k in computed if (mask := self.alive[k]).any() and not mask.all()},
            {statement: share for statement, share in shares.items() if share < 1},
        )

    def _follow(self) -> None:
        """Mark all elements from which used ones derive."""
        pending, changed = self.steps[::-1], True
        while changed:
            changed = False
            for step in pending:
                needed = step.needed(self.alive)
                if needed.any():
                    for source in step.sources:
                        changed |= self._mark(source, needed)

    def _mark(self, use: Use, iterations: NDArray[np.bool_] | None = None) -> bool:
        """Mark what is used in some iterations (None: in all). Returns whether any of it was not marked."""
        key, places = use
        mask = self._elements(key)
        before = int(mask.sum())
        if places is None:
            mask[:] = True
        else:
            mask[places if iterations is None else places[iterations]] = True
        return int(mask.sum()) > before

    def _elements(self, key: int) -> NDArray[np.bool_]:
        return self.alive.setdefault(key, np.zeros(self.sizes.get(key, 1), bool))

    # --- statements -----------------------------------------------------------------------------------------

    def _statement(self, node: Any) -> None:
        kind = type(node).__name__
        if kind == "SeqStmt":
            for part in node.seq:
                self._statement(part)
        elif kind == "For":
            self._use(node.min, node.extent)
            self._loop(node)
        elif kind == "IfThenElse":
            self._branch(node)
        elif kind == "While":
            self._use(node.condition)
            self._statement(node.body)
        elif kind == "AttrStmt":
            self._use(node.value)
            self._statement(node.body)
        elif kind == "AssertStmt":
            self._use(node.condition)
        elif kind == "Bind":
            self._bind(node)
        elif kind == "BufferStore":
            self._store(node)
        elif kind == "Evaluate":
            self._call(node)

    def _loop(self, node: Any) -> None:
        start, extent, variable = constant(node.min), constant(node.extent), identity(node.loop_var)
        if start is not None and extent is not None and 0 < extent <= MOST_ITERATIONS:
            self._counters[variable] = np.arange(start, start + extent)
        self._statement(node.body)
        self._counters.pop(variable, None)

    def _branch(self, node: Any) -> None:
        from tvm import tirx

        self._use(node.condition)
        for body, condition in ((node.then_case, node.condition), (node.else_case, tirx.Not(node.condition))):
            decided = [part for part in conjuncts(condition) if variables(part) <= self._counters.keys()]
            self._conditions += decided
            if body is not None:
                self._statement(body)
            del self._conditions[len(self._conditions) - len(decided) :]

    def _bind(self, node: Any) -> None:
        if str(node.var.dtype).startswith("handle"):  # the place of a buffer
            self._use(node.value)
        else:
            self._computed(node, (identity(node.var), None), [node.value])

    def _store(self, node: Any) -> None:
        if str(node.buffer.scope()) in _LOCAL:
            self._computed(node, node, [node.value])
        else:
            self._use(node.value, *node.indices)

    def _call(self, node: Any) -> None:
        """Matrix instructions of a warp and the loads of their operands are steps; other calls use all."""
        call = node.value
        name = call_name(call)
        parts = None
        if name == _MMA:
            parts = _mma_parts(call)
        elif name in _LOAD_MATRIX and len(call.args) > 3 and (place := _pointed(call.args[3])) is not None:
            self._use(*call.args[:3])
            parts = [place]
        if parts is None:
            self._use(call)
        else:
            self._computed(node, parts[0], parts)

    # --- uses -----------------------------------------------------------------------------------------------

    def _computed(self, statement: Any, target: Any, sources: list[Any]) -> None:
        """Record that `statement` computes `target`: a store, the part of a buffer, or a use."""
        needs_all = any(_changes_something(part) for part in sources if not isinstance(part, _Part))
        grid = self._grid([target, *sources])
        place = target if isinstance(target, tuple) else self._place(target, grid)
        uses = [use for part in sources for use in self._uses_of(part, grid)]
        if not isinstance(target, (tuple, _Part)):
            uses += [use for index in target.indices for use in self._uses_of(index, grid)]
        count = len(next(iter(grid.values()))) if grid else 1
        self.steps.append(_Step(identity(statement), place, uses, count))
        if needs_all:
            for use in (place, *uses):
                self._mark(use)

    def _use(self, *parts: Any) -> None:
        grid = self._grid(list(parts))
        for part in parts:
            for use in self._uses_of(part, grid):
                self._mark(use)

    def _uses_of(self, part: Any, grid: dict[int, NDArray[np.int64]]) -> Iterator[Use]:
        """What a value or a part of a buffer reads. Counters of loops are no values."""
        if isinstance(part, _Part):
            yield self._place(part, grid)
            yield from ((v, None) for v in variables(part.offset) - self._counters.keys())
            return
        found: list[Use] = []

        def look(inner: Any, kind: str) -> None:
            if kind == "Var":
                found.append((identity(inner), None))
            elif kind == "BufferLoad":
                found.append(self._place(inner, grid))

        visit(part, look)
        yield from (use for use in found if use[0] not in self._counters)

    def _place(self, access: Any, grid: dict[int, NDArray[np.int64]]) -> Use:
        """The elements that a load, a store or a part of a buffer accesses, by iteration of the grid."""
        if isinstance(access, _Part):
            key, index = access.buffer, access.offset
            whole: tuple[int | None, int | None] = (access.elements, 1)
        else:
            key, index = identity(access.buffer.data), access.indices[0]
            is_vector = type(index).__name__ == "Ramp"
            whole = (constant(index.lanes), constant(index.stride)) if is_vector else (1, 1)
        lanes, stride = whole
        size = self.sizes.get(key, 1)
        if size == 1 or lanes is None or stride is None or not variables(index) <= grid.keys():
            return key, None
        try:
            first = np.asarray(evaluate(index, grid), np.int64).reshape(-1)
        except UnevaluableError:
            return key, None
        count = len(next(iter(grid.values()))) if grid else 1
        places = np.broadcast_to(first, (count,))[:, None] + stride * np.arange(lanes)
        return key, np.clip(places, 0, size - 1)

    def _grid(self, parts: list[Any]) -> dict[int, NDArray[np.int64]]:
        """Values of the counters that decide which elements are accessed, in the iterations that are run."""
        needed: set[int] = set().union(*map(variables, self._conditions))
        for part in parts:
            needed |= _index_variables(part)
        counters = {v: values for v, values in self._counters.items() if v in needed}
        if not counters or math.prod(map(len, counters.values())) > MOST_ITERATIONS:
            return {}
        mesh = np.meshgrid(*counters.values(), indexing="ij")
        grid = {v: values.ravel() for v, values in zip(counters, mesh, strict=True)}
        for condition in self._conditions:
            try:
                held = np.asarray(evaluate(condition, grid), bool)
            except UnevaluableError:
                continue
            grid = {v: values[np.broadcast_to(held, values.shape)] for v, values in grid.items()}
        return grid


@dataclass(frozen=True)
class _Part:
    """Neighbouring elements of a local buffer, as calls take them by a pointer."""

    buffer: int
    offset: Any
    elements: int


def _mma_parts(call: Any) -> list[_Part] | None:
    """Sums, and the operands beside them, of a matrix instruction of a warp; None if they are unknown."""
    shape = next((t for t in map(text, call.args) if re.fullmatch(r"m\d+n\d+k\d+", t)), None)
    handles = [i for i, a in enumerate(call.args) if type(a).__name__ == "Var" and str(a.dtype) == "handle"]
    if shape is None or len(handles) != 3 or handles[-1] + 1 >= len(call.args):
        return None
    m, n, k = (int(v) for v in re.findall(r"\d+", shape))
    sizes = (m * k, n * k, m * n)
    parts = [
        _Part(identity(call.args[i]), call.args[i + 1], size // WARP_LANES)
        for i, size in zip(handles, sizes, strict=True)
    ]
    return parts[::-1]


def _pointed(pointer: Any) -> _Part | None:
    """The elements that an access pointer is for."""
    if call_name(pointer) != "tirx.tvm_access_ptr":
        return None
    elements = constant(pointer.args[3])
    return None if elements is None else _Part(identity(pointer.args[1]), pointer.args[2], elements)


def _element_counts(function: Any) -> dict[int, int]:
    """Elements of the local buffers whose views all have the same elements."""
    views: dict[int, set[tuple[str, int]]] = {}

    def look(part: Any, kind: str) -> None:
        if kind in ("AllocBuffer", "DeclBuffer", "BufferLoad", "BufferStore"):
            sizes = [constant(extent) for extent in part.buffer.shape]
            known = math.prod(size for size in sizes if size is not None) if None not in sizes else 1
            if len(sizes) == 1 and str(part.buffer.scope()) in _LOCAL:
                views.setdefault(identity(part.buffer.data), set()).add((str(part.buffer.dtype), known))

    visit(function.body, look)
    return {key: next(iter(found))[1] for key, found in views.items() if len(found) == 1}


def _index_variables(part: Any) -> set[int]:
    """The variables in the indices of the loads of a value, of a store, or of a part of a buffer."""
    if isinstance(part, tuple):
        return set()
    if isinstance(part, _Part):
        return variables(part.offset)
    found: set[int] = set()

    def look(inner: Any, kind: str) -> None:
        if kind in ("BufferLoad", "BufferStore") and str(inner.buffer.scope()) in _LOCAL:
            found.update(*map(variables, inner.indices))

    visit(part, look)
    return found


def _changes_something(value: Any) -> bool:
    """Whether a value contains a call that writes to memory, or may do so.

    A reduction over the lanes of a warp changes nothing.
    """
    return contains(
        value,
        lambda part, kind: kind == "Call" and may_change_memory(part) and not _reduces_lanes(part),
    )


def _reduces_lanes(call: Any) -> bool:
    reduction = REDUCTION.match(text(call.args[0])) if len(call.args) == 2 else None
    return reduction is not None and int(reduction[2]) <= WARP_LANES
