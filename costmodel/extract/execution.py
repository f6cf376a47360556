"""Executes a kernel on example inputs in sampled blocks, where its data decide how far it goes.

Pixels that are covered end a loop, and most threads skip most of a list: how often depends on what a kernel
computes from its tensors, floating-point numbers included. All threads of the sampled blocks execute each
statement together. Only what such loops and branches derive from is computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .control_flow import ControlFlow
from .device_calls import called
from .expressions import CALLS, LANE, UnevaluableError, call_name, constant, evaluate, identity, is_shared
from .launch_geometry import AXES, LaunchGeometry, sequence
from .loops import BREAKS, RETURN, stored_buffers, visit
from .tables import Contents

MOST_THREADS = 4096  # that are executed together, but for blocks of more than 256 threads
FEWEST_BLOCKS = 16
MOST_WORK = 2_000_000_000  # about as many nanoseconds: operations by threads, and OVERHEAD for each operation
OVERHEAD = 1000
MOST_ELEMENTS = 1 << 25  # of all copies of local and shared buffers
# what NumPy raises for examples that are no numbers of the kernel's types
_UNUSABLE = (
    ArithmeticError,
    IndexError,
    MemoryError,
    NotImplementedError,
    RuntimeError,
    TypeError,
    ValueError,
)
Mask = NDArray[np.bool_]  # of the threads that execute a statement, by (block, thread)


@dataclass(frozen=True)
class Entered:
    """How often a branch is entered: the share of the warps that come to it, and of the lanes in those."""

    warps: float
    lanes: float


@dataclass(frozen=True)
class Executed:
    """How far the loops and branches go that data decide.

    Attributes:
        blocks: number of blocks that were executed.
        turns: by identity of a loop: iterations of a warp each time that it enters it.
        shares: by identity of a `for` loop: the same as a share of the iterations that its extent says.
        branches: by identity of the first branch of an `if`: how often its branches are entered.
    """

    blocks: int
    turns: Mapping[int, float]
    shares: Mapping[int, float]
    branches: Mapping[int, tuple[Entered, Entered]]


NOT_EXECUTED = Executed(0, {}, {}, {})


def execute(function: Any, launch: LaunchGeometry, inputs: Mapping[str, Any]) -> Executed:
    """Execute a device function.

    Args:
        function: the device function, without dynamic sizes.
        launch: its launch geometry.
        inputs: examples of its tensors (NumPy, torch), by name of the parameter.

    Returns:
        What the execution shows: nothing if no data decides a loop or a branch, if what decides is not known
        (products, copies by hardware, tensors without an example), or if the execution takes too long.
    """
    given = {identity(p): inputs[str(p.name)] for p in function.params if str(p.name) in inputs}
    flow = ControlFlow(function, frozenset(given)) if given else None
    if flow is None or not flow.decided:
        return NOT_EXECUTED
    try:
        with np.errstate(all="ignore"):
            run = _Run(function, launch, flow, given)
            run.statement(function.body, run.everyone)
    except (UnevaluableError, *_UNUSABLE):
        return NOT_EXECUTED
    return run.result()


def _array(value: Any) -> NDArray[Any]:
    """An example input as a flat array; numbers with a fraction in single precision."""
    if hasattr(value, "detach"):  # NumPy has not all types of torch
        host = value.detach().cpu()
        value = host.float() if host.is_floating_point() else host
    found = np.asarray(value).reshape(-1)
    if found.dtype.kind not in "biuf":
        raise UnevaluableError(f"an example of the type {found.dtype}")
    return found


def _number_type(dtype: str) -> np.dtype[Any]:
    """The type in which numbers of a type of TVM are computed."""
    if dtype.startswith("bool"):
        return np.dtype(np.bool_)
    if dtype.startswith(("int", "uint")):
        return np.dtype(dtype) if dtype.lstrip("uint") in ("8", "16", "32", "64") else np.dtype(np.int32)
    return np.dtype(dtype if dtype in ("float16", "float64") else np.float32)


class _Memory(Contents):
    """The contents of a buffer: a row for all threads, for each block, or for each thread.

    Args:
        values: the contents, (rows, elements).
        rows: the row of each thread, an array that is broadcast to (blocks, threads).
    """

    def __init__(self, values: NDArray[Any], rows: NDArray[np.int64]) -> None:
        self.values, self.rows = values, rows

    def at(self, index: Any) -> Any:
        return self.values[self.rows, self._within(index)]

    def store(self, index: Any, value: Any, mask: Mask) -> None:
        rows, places = (np.broadcast_to(a, mask.shape)[mask] for a in (self.rows, self._within(index)))
        self.values[rows, places] = np.broadcast_to(_converted(value, self.values.dtype), mask.shape)[mask]

    def _within(self, index: Any) -> NDArray[np.int64]:
        # a kernel may compute an index beyond the end that it never uses
        return np.clip(np.asarray(index).astype(np.int64), 0, self.values.shape[1] - 1)


def _converted(value: Any, dtype: np.dtype[Any]) -> NDArray[Any]:
    """A value in another type, in which whole numbers wrap around."""
    array = np.asarray(value)
    return array.astype(np.int64).astype(dtype) if dtype.kind in "iu" else array.astype(dtype)


class _Run:
    """One execution. A statement gets the threads that execute it, and returns those that go on after it."""

    def __init__(
        self, function: Any, launch: LaunchGeometry, flow: ControlFlow, given: Mapping[int, Any]
    ) -> None:
        self._flow, self._launch, self._warp = flow, launch, launch.warp_threads
        blocks = min(math.prod(launch.grid), max(FEWEST_BLOCKS, MOST_THREADS // launch.threads))
        self.everyone: Mask = np.ones((blocks, launch.threads), dtype=bool)
        self._is_sample = blocks < math.prod(launch.grid)
        threads = launch.thread_bindings(np.arange(launch.threads))
        self._known: dict[int, Any] = {CALLS: self._called, **_blocks(launch, blocks)}
        self._known |= {variable: values[None, :] for variable, values in threads.items()}
        self._known |= _tensors(function, {tensor: given[tensor] for tensor in flow.needed & given.keys()})
        self._work = self._elements = 0
        self._nodes: dict[int, int] = {}  # by expression
        self._ended = ~self.everyone  # threads that have returned
        self._left: list[Mask] = []  # for each loop around: threads that have left it
        self._loops: dict[int, NDArray[np.float64]] = {}  # warps that enter, their iterations, their extents
        # warps that come; then of each branch: warps that enter, their lanes that came, those that enter
        self._branches: dict[int, NDArray[np.float64]] = {}
        self._running = self.everyone

    def result(self) -> Executed:
        decided = self._flow.decided
        loops = {loop: counts for loop, counts in self._loops.items() if loop in decided and counts[0]}
        return Executed(
            len(self.everyone),
            {loop: float(turns / entered) for loop, (entered, turns, _) in loops.items()},
            {loop: float(turns / extents) for loop, (_, turns, extents) in loops.items() if extents},
            {
                branch: (self._entered(came, *counts[:3]), self._entered(came, *counts[3:]))
                for branch, (came, *counts) in self._branches.items()
                if branch in decided and came
            },
        )

    def _entered(self, came: float, warps: float, came_lanes: float, lanes: float) -> Entered:
        if warps:
            return Entered(float(warps / came), float(lanes / came_lanes))
        # what no sampled warp enters, others may
        return Entered(0.5 / (came + 1) if self._is_sample else 0.0, 1.0)

    def statement(self, node: Any, mask: Mask) -> Mask:
        if not self._flow.matters(node) or not mask.any():
            return mask
        kind = type(node).__name__
        if kind == "SeqStmt":
            for part in node.seq:
                mask = self.statement(part, mask)
            return mask
        if kind == "AttrStmt":
            self._second_name(node)
            return self.statement(node.body, mask)
        if kind == "IfThenElse":
            return self._branch(node, mask)
        if kind in ("For", "While"):
            return self._loop(node, mask)
        if kind in ("AllocBuffer", "DeclBuffer"):
            self._declare(node.buffer)
        elif kind == "Bind" and str(node.var.dtype) != "handle":
            self._known[identity(node.var)] = self._bound(node, mask)
        elif kind == "BufferStore":
            self._store(node, mask)
        elif kind == "Evaluate":
            return self._leave(call_name(node.value), mask)
        return mask

    def _second_name(self, node: Any) -> None:
        if node.attr_key == "thread_extent":
            variable, first = identity(node.node.var), self._launch.variable(str(node.node.thread_tag))
            if first in self._known:
                self._known[variable] = self._known[first]

    def _declare(self, buffer: Any) -> None:
        """Make room for a buffer of the kernel, with zeros for what no thread has stored yet."""
        if identity(buffer.data) in self._known or not str(buffer.scope()).startswith(("local", "shared")):
            return
        blocks, threads = self.everyone.shape
        rows = np.arange(blocks)[:, None]
        if not is_shared(buffer):
            rows = np.arange(blocks * threads).reshape(blocks, threads)
        elements = math.prod(constant(extent) or 0 for extent in buffer.shape)
        self._elements += elements * rows.size
        if not elements or self._elements > MOST_ELEMENTS:
            raise UnevaluableError(f"buffer {buffer.name}")
        kind = _number_type(str(buffer.dtype))
        self._known[identity(buffer.data)] = _Memory(np.zeros((rows.size, elements), dtype=kind), rows)

    def _value(self, expression: Any, mask: Mask) -> Any:
        """An expression for all threads, of which those of `mask` compute it together."""
        self._running = mask
        self._work += self._size(expression) * (OVERHEAD + mask.size)
        if self._work > MOST_WORK:
            raise UnevaluableError("too much work")
        return evaluate(expression, self._known)

    def _size(self, expression: Any) -> int:
        """Nodes of an expression."""
        key = identity(expression)
        if key not in self._nodes:
            count = 0

            def look(_part: Any, _kind: str) -> None:
                nonlocal count
                count += 1

            visit(expression, look)
            self._nodes[key] = count
        return self._nodes[key]

    def _called(self, expression: Any, bindings: Mapping[int, Any]) -> Any:
        return called(expression, lambda part: evaluate(part, bindings), self._running, self._warp)

    def _bound(self, node: Any, mask: Mask) -> Any:
        if "x" in str(node.var.dtype):
            raise UnevaluableError("a variable of several lanes")
        return _converted(self._value(node.value, mask), _number_type(str(node.var.dtype)))

    def _store(self, node: Any, mask: Mask) -> None:
        memory, (index,) = self._known.get(identity(node.buffer.data)), node.indices
        if not isinstance(memory, _Memory) or getattr(node, "predicate", None) is not None:
            raise UnevaluableError(f"a store to {node.buffer.name}")
        for lane in range(int(index.lanes) if type(index).__name__ == "Ramp" else 1):
            self._known[LANE] = lane
            memory.store(self._value(index, mask), self._value(node.value, mask), mask)
        self._known[LANE] = 0

    def _leave(self, name: str, mask: Mask) -> Mask:
        """A call that ends something; others are not executed, and nothing that matters derives from them."""
        if name in BREAKS:
            self._left[-1] |= mask
        elif name == RETURN:
            self._ended |= mask
        elif name != "tirx.continue_loop":
            return mask
        return np.zeros_like(mask)

    def _branch(self, node: Any, mask: Mask) -> Mask:
        held = np.broadcast_to(np.asarray(self._value(node.condition, mask), dtype=bool), mask.shape)
        first, second = mask & held, mask & ~held
        counts = self._branches.setdefault(identity(node.then_case), np.zeros(7))
        counts += (self._warps(mask), *self._enter(mask, first), *self._enter(mask, second))
        after = self.statement(node.then_case, first)
        return after | (second if node.else_case is None else self.statement(node.else_case, second))

    def _enter(self, mask: Mask, inside: Mask) -> tuple[float, float, float]:
        """Warps that enter a branch, and of these the lanes that came to it, and those that enter it."""
        entering = self._of_warps(inside).any(axis=-1)
        came = (self._of_warps(mask).sum(axis=-1) * entering).sum()
        return float(entering.sum()), float(came), float(inside.sum())

    def _loop(self, node: Any, mask: Mask) -> Mask:
        for active in self._turns(node, mask):
            self.statement(node.body, active)
        return mask & ~self._ended

    def _turns(self, node: Any, mask: Mask) -> Iterator[Mask]:
        """The threads that execute each iteration of a loop."""
        counts = self._loops.setdefault(identity(node), np.zeros(3))
        counts[0] += self._warps(mask)
        is_for = type(node).__name__ == "For"
        if is_for:
            start = self._value(node.min, mask)
            extent = np.broadcast_to(np.asarray(self._value(node.extent, mask)), mask.shape)
            most = np.where(mask, np.maximum(extent, 0), 0)
            counts[2] += self._of_warps(most).max(axis=-1).sum()
        with self._inside_loop() as left:
            turn = 0
            while True:
                active = mask & ~left & ~self._ended
                if is_for:
                    active = active & (turn < extent)
                    self._known[identity(node.loop_var)] = start + turn
                elif active.any():
                    active = active & np.asarray(self._value(node.condition, active), dtype=bool)
                    mask = active
                if not active.any():
                    return
                counts[1] += self._warps(active)
                yield active
                turn += 1

    @contextmanager
    def _inside_loop(self) -> Iterator[Mask]:
        self._left.append(np.zeros_like(self.everyone))
        yield self._left[-1]
        self._left.pop()

    def _warps(self, mask: Mask) -> float:
        """Warps with a thread in `mask`."""
        return float(self._of_warps(mask).any(axis=-1).sum())

    def _of_warps(self, values: NDArray[Any]) -> NDArray[Any]:
        """`values` by (block, warp, lane); lanes that do not exist have zero."""
        blocks, threads = values.shape
        if threads % self._warp:
            values = np.pad(values, ((0, 0), (0, -threads % self._warp)))
        return values.reshape(blocks, -1, self._warp)


def _blocks(launch: LaunchGeometry, count: int) -> dict[int, Any]:
    """Indices of `count` different blocks, spread unevenly over the grid, by identity of the variable."""
    total = math.prod(launch.grid)
    begins = np.arange(count + 1) * total // count
    within = sequence(count, 0, 1 << 20) * np.diff(begins) >> 20
    linear, indices = begins[:-1] + within, {}
    for axis, extent in zip(AXES, launch.grid, strict=True):
        if axis in launch.block:
            indices[launch.block[axis][0]] = (linear % extent)[:, None]
        linear = linear // extent
    return indices


def _tensors(function: Any, given: Mapping[int, Any]) -> dict[int, _Memory]:
    """The contents of the tensors that an execution needs, in types in which their numbers are computed."""
    of_all, stored = np.zeros((1, 1), dtype=np.int64), stored_buffers(function.body)
    kinds: dict[int, str] = {}

    def look(part: Any, kind: str) -> None:
        if kind in ("BufferLoad", "BufferStore"):
            kinds[identity(part.buffer.data)] = str(part.buffer.dtype)

    visit(function.body, look)
    found = {}
    for tensor, value in given.items():
        values = _array(value).astype(_number_type(kinds.get(tensor, "float32")), copy=tensor in stored)
        if values.size:
            found[tensor] = _Memory(values[None, :], of_all)
    return found
