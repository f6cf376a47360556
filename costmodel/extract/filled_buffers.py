"""Integer buffers of a block that the kernel fills from known data: prefix sums, pages, masks of tiles.

A buffer in shared memory or registers has known contents while every statement that stores to it is integer
arithmetic on known values. The statements are executed for all threads of a block, and for every block and
iteration that an expression is evaluated over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .expressions import (
    FILLED,
    Bindings,
    FilledContents,
    UnevaluableError,
    call_name,
    constant,
    evaluate,
    identity,
    is_scalar,
)
from .loops import visit
from .scalar_programs import ProgramRun, sources_of
from .scope import Scope
from .tables import Contents, Table

MOST_ELEMENTS = 4096  # of a buffer
MOST_CASES = 1 << 20  # threads times blocks and iterations of one evaluation
_INTEGERS = ("int", "uint", "bool")
_SYNCHRONISING = ("tirx.tvm_storage_sync", "tl.fence_proxy_async")


@dataclass(frozen=True, eq=False)
class FilledBuffer(FilledContents):
    """A buffer after its last fill: the fills so far, in order."""

    elements: int
    fills: tuple[Fill, ...]
    _seen: dict[bytes, _Elements] = field(default_factory=dict)

    def roots(self) -> frozenset[int]:
        return frozenset().union(*(fill.roots for fill in self.fills))

    def load(self, buffer: int, index: Any, bindings: Bindings) -> Any:
        """The elements at `index`, for every sample of `bindings`."""
        cases = sorted(self.roots())
        if any(variable not in bindings for variable in cases):
            raise UnevaluableError("data")
        given = np.broadcast_arrays(np.asarray(index), *(np.asarray(bindings[v]) for v in cases))
        rows = np.stack(
            [g.ravel().astype(np.int64) for g in given[1:]] or [np.zeros(given[0].size, np.int64)]
        )
        different, which = np.unique(rows, axis=1, return_inverse=True)
        count = different.shape[1]
        contents = self._contents(buffer, dict(zip(cases, different, strict=False)), count, bindings)
        at = np.clip(given[0].ravel().astype(np.int64), 0, self.elements - 1)
        return contents.stored_before(which.ravel(), at).reshape(given[0].shape)[()]

    def _contents(
        self, buffer: int, cases: Mapping[int, NDArray[Any]], count: int, bindings: Bindings
    ) -> _Elements:
        """The contents for each of `count` cases, one after another."""
        key = b"".join((np.int64(count).tobytes(), *(values.tobytes() for values in cases.values())))
        if key not in self._seen:
            known: dict[int, Any] = {v: b for v, b in bindings.items() if isinstance(b, Table)}
            known[FILLED] = bindings[FILLED]
            known |= {variable: values[:, None] for variable, values in cases.items()}
            elements = _Elements(count, self.elements)
            for fill in self.fills:
                fill.execute(buffer, elements, known, count)
            self._seen[key] = elements
        return self._seen[key]


@dataclass(frozen=True, eq=False)
class Fill:
    """One statement that fills a buffer, and the scope in which it stands."""

    node: Any
    scope: Scope
    roots: frozenset[int]  # block and phase loop variables that the contents follow from

    def execute(self, buffer: int, elements: _Elements, known: Mapping[int, Any], count: int) -> None:
        """Store to `elements` what the statement stores to `buffer`. Raises `UnevaluableError`."""
        scope = self.scope
        threads = scope.first_thread + np.arange(scope.threads)
        if count * len(threads) > MOST_CASES:
            raise UnevaluableError(f"more than {MOST_CASES} cases")
        run = ProgramRun({**known, **scope.launch.thread_bindings(threads[None, :])})
        run.arrays[buffer] = elements
        for variable, value in scope.bound:
            if value is None:
                run.known.pop(variable, None)
            else:
                run.assign(variable, value, True)
        mask: Any = np.ones((count, len(threads)), dtype=bool)
        for condition in scope.conditions:
            mask = mask & np.asarray(evaluate(condition, run.known), dtype=bool)
        run.statement(self.node, mask)


class _Elements(Contents):
    """Contents that are being filled: `values` by case and element, and whether they are `known`."""

    def __init__(self, cases: int, elements: int) -> None:
        self.values = np.zeros((cases, elements), dtype=np.int64)
        self.known = np.zeros((cases, elements), dtype=bool)

    def at(self, index: Any) -> Any:
        cases = np.arange(len(self.values))[:, None]
        index = np.clip(np.atleast_2d(np.asarray(index)).astype(np.int64), 0, self.values.shape[1] - 1)
        return self.values[cases, index]

    def stored_before(self, cases: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
        """The elements at `index` of the cases, or the last ones stored before these; 0 if there are none.

        No program reads an element that it did not store. Sampled iterations do that blocks do not have, such
        as those beyond the last tile of a block that has fewer than others.
        """
        places = np.maximum.accumulate(np.where(self.known, np.arange(self.known.shape[1]), 0), axis=1)
        found: NDArray[Any] = self.values[cases, places[cases, index]]
        return found

    def store(self, index: Any, value: Any, mask: Any) -> None:
        shape = np.broadcast_shapes(np.shape(mask), np.shape(index), np.shape(value), (len(self.values), 1))
        held = np.broadcast_to(mask, shape)
        cases = np.broadcast_to(np.arange(len(self.values))[:, None], shape)[held]
        at = np.clip(np.broadcast_to(index, shape)[held].astype(np.int64), 0, self.values.shape[1] - 1)
        self.values[cases, at] = np.broadcast_to(value, shape)[held]
        self.known[cases, at] = True


def fills_of(node: Any, scope: Scope, before: Mapping[int, FilledBuffer]) -> dict[int, FilledBuffer]:
    """The buffers that a statement fills by integer arithmetic on known values alone, after it.

    Empty if the statement does anything else.

    Args:
        node: the statement.
        scope: the scope in which it stands.
        before: the buffers with known contents so far.
    """
    stored: dict[int, int] = {}
    local: list[bool] = []
    pure = True

    def look(part: Any, kind: str) -> None:
        nonlocal pure
        if kind == "BufferStore":
            size = _elements(part.buffer)
            memory = str(part.buffer.scope())
            pure = pure and memory.startswith(("local", "shared")) and size is not None
            if size is not None and not is_scalar(part.buffer):
                stored[identity(part.buffer.data)] = size
                local.append(memory.startswith("local"))
        elif kind == "Evaluate":
            name = call_name(part.value)
            pure = pure and name in _SYNCHRONISING
        elif kind == "While":
            pure = False

    visit(node, look)
    if not pure or not stored:
        return {}
    values = frozenset[int]().union(*(scope.roots_of(v) for v in sources_of(node) - stored.keys()))
    roots = values | scope.reached_by
    phase = {loop.variable for loop in scope.phase_loops}
    block = scope.launch.block_variables
    if roots - phase - block - scope.launch.thread_variables:
        return {}
    if any(local) and values & scope.launch.thread_variables:
        return {}  # each thread has other contents
    fill = Fill(node, scope, roots & (phase | block))
    return {
        buffer: FilledBuffer(size, (*(before[buffer].fills if buffer in before else ()), fill))
        for buffer, size in stored.items()
    }


def _elements(buffer: Any) -> int | None:
    """Elements of a small integer buffer of static size; None for others."""
    total = 1
    for extent in buffer.shape:
        size = constant(extent)
        if size is None:
            return None
        total *= size
    return total if str(buffer.dtype).startswith(_INTEGERS) and 0 < total <= MOST_ELEMENTS else None
