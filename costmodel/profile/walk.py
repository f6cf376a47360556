"""Walking one device function: statements and values are booked phase by phase, role by role."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...profile import Rasterization, Role, Space, Tensor, Trips
from . import calls
from .accesses import Place, lane_access
from .arithmetic import MATH, MATH_NAMES
from .descriptors import Descriptor
from .dtypes import element_type
from .expressions import Unevaluable, constant, evaluate, identity, variables
from .ledger import ONCE, Ledger
from .registers import LiveRanges
from .scope import AXES, Launch, Scope

UNROLLED_AT_MOST = 64  # constant extents up to this are unrolled by the device compiler
UNKNOWN_TRIPS = 8.0  # of a loop whose extent depends on data
# what a call that is not understood is charged, per executing thread
UNKNOWN_VECTOR_OPS, UNKNOWN_SPECIAL_OPS = 64.0, 8.0

_ASYNCHRONOUS = ("tma_load", "tma_store", "cp_async", "mbarrier_wait", "ptx_wait_group", "ptx_wait_barrier", "storage_sync", "cluster_sync")
_WORK = (*_ASYNCHRONOUS, "wgmma", "ptx_mma", "mfma", "ldg", "stg", "atomic")


@dataclass
class _RoleBook:
    name: str
    threads: int
    first_thread: int
    ledgers: list[Ledger] = field(default_factory=list)
    registers_limit: int | None = None
    live: LiveRanges = field(default_factory=LiveRanges)


@dataclass
class Reader:
    """Reads one device function. After `read`, `roles`, `tensors`, `rasterization`, `notes` and `unknown_names` hold it."""

    launch: Launch
    descriptors: Mapping[str, Descriptor]
    tensors: dict[str, Tensor] = field(default_factory=dict)
    rasterization: Rasterization = field(default_factory=Rasterization)
    notes: list[str] = field(default_factory=list)
    unknown_names: set[str] = field(default_factory=set)
    ledger: Ledger = field(default_factory=Ledger)
    _books: list[_RoleBook] = field(default_factory=list)
    _book: _RoleBook = field(init=False)
    _buffers: dict[int, tuple[str, str]] = field(default_factory=dict)  # data variable -> (memory scope, label)
    _local_bytes: dict[int, float] = field(default_factory=dict)  # data variable of a local buffer -> bytes per thread
    _labels: dict[int, str] = field(default_factory=dict)

    def read(self, function: Any) -> None:
        for position, parameter in enumerate(function.params):
            self._labels[identity(parameter)] = f"t{position}"
            descriptor = self.descriptors.get(parameter.name)
            if descriptor is not None:
                self.tensors[f"t{position}"] = Tensor(f"t{position}", descriptor.tensor_bytes, descriptor.element_bytes)
            elif "global" in _pointer_scope(parameter):
                self._buffers[identity(parameter)] = ("global", f"t{position}")
        self._book = _RoleBook("all", self.launch.threads, 0)
        self._books.append(self._book)
        self._begin(Ledger())
        self.statement(function.body, Scope.of_threads(self.launch, 0, self.launch.threads))
        self._live_end()

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(
            Role(
                name=book.name,
                threads=book.threads,
                phases=tuple(ledger.phase() for ledger in book.ledgers if not ledger.is_empty),
                registers_limit=book.registers_limit,
                local_registers=book.live.peak_registers(self._local_bytes),
            )
            for book in self._books
            if any(not ledger.is_empty for ledger in book.ledgers)
        )

    # --- phases and roles ---------------------------------------------------------------------------------------------

    def _begin(self, ledger: Ledger) -> None:
        self.ledger = ledger
        self._book.ledgers.append(ledger)

    @contextmanager
    def _phase(self, trips: Trips) -> Iterator[None]:
        outer = self.ledger
        self._begin(Ledger(trips, is_loop=True))
        yield
        # what follows the loop is a stretch of its own, as often executed as what came before
        self._begin(Ledger(outer.trips, is_loop=outer.is_loop))

    @contextmanager
    def _role(self, first_thread: int, threads: int) -> Iterator[Scope]:
        outer, ledger = self._book, self.ledger
        self._book = _RoleBook("consumer", threads, first_thread)
        self._books.append(self._book)
        self._begin(Ledger())
        yield Scope.of_threads(self.launch, first_thread, threads)
        self._live_end()
        if not any(work.matrix or work.counts.get("vector_ops") for work in self._book.ledgers):
            self._book.name = "producer"
        self._book, self.ledger = outer, ledger
        self._begin(Ledger())

    def _live_end(self) -> None:
        self._book.live.finish()

    # --- statements ---------------------------------------------------------------------------------------------------

    def statement(self, node: Any, scope: Scope) -> Scope:
        """Book `node`; returns the scope in which the statements after it stand (bindings made, lanes left)."""
        kind = type(node).__name__
        if kind == "SeqStmt":
            for part in node.seq:
                scope = self.statement(part, scope)
            return scope
        if kind == "AttrStmt":
            self._attribute(node)
            return self.statement(node.body, scope)
        if kind == "Bind":
            return self._bind(node, scope)
        if kind in ("AllocBuffer", "DeclBuffer"):
            self._buffer(node.buffer, allocated=kind == "AllocBuffer")
        elif kind == "For":
            self._loop(node, scope)
        elif kind == "IfThenElse":
            self._branch(node, scope)
        elif kind == "BufferStore":
            self._store(node, scope)
        elif kind == "Evaluate":
            self.value(node.value, scope)
        elif kind == "While":
            self.notes.append(f"a while loop was taken for {UNKNOWN_TRIPS:g} iterations")
            self.value(node.condition, scope)
            self.statement(node.body, scope.with_loop(-1, 0, UNKNOWN_TRIPS, unrolled=False))
        elif kind != "AssertStmt":
            self.unknown(f"statement {kind}", scope)
        return scope

    def _attribute(self, node: Any) -> None:
        if node.attr_key == "threadblock_swizzle_pattern":
            parts = [str(getattr(a, "value", a)) for a in node.value.args]
            order = "column" if "Col" in parts[0] else "row"
            self.rasterization = Rasterization(order, int(parts[1]) if len(parts) > 1 else 1)

    def _bind(self, node: Any, scope: Scope) -> Scope:
        value = node.value
        if getattr(getattr(value, "op", None), "name", "") == "tirx.handle_add_byte_offset":
            source = self._buffers.get(identity(value.args[0]))
            if source is not None:
                # each carved-out buffer has an identity of its own
                self._buffers[identity(node.var)] = (source[0], self._label(node.var, "s"))
            return scope
        self.value(value, scope)
        return scope.with_binding(identity(node.var), value)

    def _buffer(self, buffer: Any, *, allocated: bool) -> None:
        key = identity(buffer.data)
        memory = str(buffer.scope())
        if allocated and memory.startswith("local"):
            self._local_bytes[key] = _static_elements(buffer) * element_type(str(buffer.dtype)).bytes
        if key in self._buffers:
            scope, label = self._buffers[key]
            if scope == "global":
                size = round(_static_elements(buffer) * element_type(str(buffer.dtype)).bytes)
                known = self.tensors.get(label)
                if known is None or size > known.bytes:
                    self.tensors[label] = Tensor(label, size, max(1, round(element_type(str(buffer.dtype)).bytes)))
            return
        self._buffers[key] = (memory or "global", self._label(buffer.data, "b"))

    def _label(self, variable: Any, prefix: str) -> str:
        return self._labels.setdefault(identity(variable), f"{prefix}{len(self._labels)}")

    def _loop(self, node: Any, scope: Scope) -> None:
        variable, extent, kind = identity(node.loop_var), constant(node.extent), int(node.kind)
        start = constant(node.min) or 0
        inline = kind in (2, 3) or (extent is not None and extent <= 1)
        nested = scope.phase_loop is not None
        if not inline and _contains(node.body, _ASYNCHRONOUS if nested else _WORK, globals_too=not nested, buffers=self._buffers):
            extents = self._trips(node.extent, scope)
            outer = self.ledger.trips.mean if nested else 1.0
            trips = Trips(tuple(t * outer for t in extents.per_block), extents.axes)
            self._book.live.enter_loop()
            with self._phase(trips):
                self.statement(node.body, scope.with_loop(variable, start, max(extents.mean, 1.0), unrolled=False, as_phase=True))
            self._book.live.leave_loop()
            return
        count = float(extent) if extent is not None else self._mean_extent(node.extent, scope)
        if count <= 0:
            return
        self._book.live.enter_loop()
        self.statement(node.body, scope.with_loop(variable, start, count, unrolled=inline or (extent or UNROLLED_AT_MOST + 1) <= UNROLLED_AT_MOST))
        self._book.live.leave_loop()

    def _trips(self, extent: Any, scope: Scope) -> Trips:
        """Iterations for each block of the axes that the extent depends on, x fastest."""
        number = constant(extent)
        if number is not None:
            return Trips((float(max(0, number)),))
        axes = scope.block_axes(extent)
        ordered = [axis for axis in AXES if axis in axes]
        try:
            bindings = {v: (value.flat[0] if isinstance(value, np.ndarray) else value) for v, value in scope.pattern.items()}
            if ordered:
                extents = [self.launch.block[a][1] for a in ordered]
                linear, stride = np.arange(math.prod(extents)), 1
                for axis, size in zip(ordered, extents, strict=True):
                    bindings[self.launch.block[axis][0]] = linear // stride % size
                    stride *= size
                for name, value in scope.bound:
                    bindings[name] = evaluate(value, bindings)
                counts = np.broadcast_to(np.asarray(evaluate(extent, bindings), dtype=float), linear.shape)
                return Trips(tuple(float(max(0.0, c)) for c in counts), frozenset(ordered))
            return Trips((max(0.0, float(np.mean(evaluate(extent, scope.chance)))),))
        except Unevaluable as reason:
            self.notes.append(f"a loop's extent depends on {reason}: taken for {UNKNOWN_TRIPS:g} iterations")
            return Trips((UNKNOWN_TRIPS,))

    def _mean_extent(self, extent: Any, scope: Scope) -> float:
        try:
            return max(0.0, float(np.mean(evaluate(extent, scope.chance))))
        except Unevaluable as reason:
            self.notes.append(f"a loop's extent depends on {reason}: taken for {UNKNOWN_TRIPS:g} iterations")
            return UNKNOWN_TRIPS

    def _branch(self, node: Any, scope: Scope) -> None:
        elected = _elected_group(node.condition)
        if elected is not None:
            self.statement(node.then_case, scope.with_elected(elected))
            return
        split = self._specialised(node, scope)
        if split is not None:
            for body, first, count in split:
                with self._role(first, count) as inner:
                    self.statement(body, inner)
            return
        self.value(node.condition, scope)
        inside = scope.with_condition(node.condition)
        if inside is not None:
            self.statement(node.then_case, inside)
        if node.else_case is not None:
            outside = scope.with_condition(_negated(node.condition))
            if outside is not None:
                self.statement(node.else_case, outside)

    def _specialised(self, node: Any, scope: Scope) -> list[tuple[Any, int, int]] | None:
        """The branches of a warp-specialising `if` with their thread ranges; None where it is an ordinary one."""
        thread_variables = {v for v, _ in self.launch.thread.values()}
        if scope.phase_loop is not None or not variables(node.condition) or not variables(node.condition) <= thread_variables:
            return None
        if not _contains(node, ("set_max_nreg", "mbarrier_wait", "ptx_arrive_barrier"), globals_too=False, buffers=self._buffers):
            return None
        every = np.arange(scope.first_thread, scope.first_thread + scope.threads)
        holds = np.broadcast_to(np.asarray(evaluate(node.condition, self.launch.thread_bindings(every)), dtype=bool), every.shape)
        branches = [(node.then_case, every[holds])] + ([(node.else_case, every[~holds])] if node.else_case is not None else [])
        ranges = []
        for body, threads in branches:
            if len(threads) % self.launch.warp_threads or not len(threads) or threads[-1] - threads[0] + 1 != len(threads):
                return None
            ranges.append((body, int(threads[0]), len(threads)))
        return ranges

    def _store(self, node: Any, scope: Scope) -> None:
        self.value(node.value, scope)
        memory, label = self._memory(node.buffer)
        self._book.live.touch(identity(node.buffer.data))
        space = _space(memory)
        if space is None:
            return
        place = Place(space, label, node.indices[0], element_type(str(node.buffer.dtype)).bytes, element_type(str(node.value.dtype)).lanes)
        self.ledger.accesses.append(lane_access(scope, place, write=True, mechanism="st"))
        self.ledger.counts["integer_ops"] += scope.executions

    # --- values -------------------------------------------------------------------------------------------------------

    def value(self, node: Any, scope: Scope) -> None:
        """Book the loads and the arithmetic of an expression whose value is used."""
        kind = type(node).__name__
        if kind in ("IntImm", "FloatImm", "StringImm", "Var", "Ramp"):
            return
        if kind == "BufferLoad":
            self._load(node, scope)
        elif kind == "Broadcast":
            self.value(node.value, scope)
        elif kind == "Cast":
            self._cast(node, scope)
        elif kind == "Call":
            self._call(node, scope)
        elif kind == "Select":
            for part in (node.condition, node.true_value, node.false_value):
                self.value(part, scope)
            self._arithmetic(node, scope)
        elif _is_index(node):
            # arithmetic on indices is hoisted and strength-reduced by the compiler; what stays is each comparison
            self.ledger.counts["integer_ops"] += scope.executions * _comparisons(node)
        elif hasattr(node, "a") and hasattr(node, "b"):
            self.value(node.a, scope)
            self.value(node.b, scope)
            # a product that feeds a sum is one multiply-add
            fused = kind in ("Add", "Sub") and "Mul" in (type(node.a).__name__, type(node.b).__name__)
            if not (fused and element_type(str(node.dtype)).kind == "float"):
                self._arithmetic(node, scope, "divide" if kind == "Div" else None)
        elif kind == "Not":
            self.value(node.a, scope)
        elif kind == "Let":
            self.value(node.value, scope)
            self.value(node.body, scope.with_binding(identity(node.var), node.value))
        elif kind == "Shuffle":
            for part in node.vectors:
                self.value(part, scope)
        else:
            self.unknown(f"expression {kind}", scope)

    def _arithmetic(self, node: Any, scope: Scope, function: str | None = None) -> None:
        dtype = element_type(str(node.dtype))
        operands = element_type(str(node.a.dtype)) if hasattr(node, "a") else dtype
        lanes = scope.executions * max(dtype.lanes, operands.lanes)
        if operands.kind == "float":
            if function is not None:
                self.math_ops(function, lanes)
            else:
                # two 16-bit elements share an instruction where they come as a vector
                self.ledger.counts["vector_ops"] += lanes * (0.5 if operands.bits == 16 and operands.lanes > 1 else 1)
        elif operands.kind in ("int", "bool"):
            self.ledger.counts["integer_ops"] += lanes * (8 if function == "divide" else 1)

    def math_ops(self, function: str, lane_operations: float) -> None:
        cost = MATH[function]
        self.ledger.counts["special_ops"] += lane_operations * cost.special
        self.ledger.counts["vector_ops"] += lane_operations * cost.vector

    def math(self, name: str, call: Any, scope: Scope) -> bool:
        """Book a math function by its name; False where it is none."""
        function = MATH_NAMES.get(name)
        if function is None:
            return False
        dtype = element_type(str(call.dtype))
        pairs = dtype.lanes / 2 if function == "packed" else dtype.lanes
        if dtype.kind == "int":
            self.ledger.counts["integer_ops"] += scope.executions * dtype.lanes
        else:
            self.math_ops(function, scope.executions * max(1.0, pairs))
        return True

    def _cast(self, node: Any, scope: Scope) -> None:
        self.value(node.value, scope)
        into, source = element_type(str(node.dtype)), element_type(str(node.value.dtype))
        lanes = scope.executions * into.lanes
        if into.kind == "float" and source.kind == "float":
            if into.bits == 16:  # two results are packed by one instruction
                self.ledger.counts["convert_ops"] += lanes / 2
            elif str(node.value.dtype).startswith("bfloat16"):  # a shift or a byte permutation
                self.ledger.counts["integer_ops"] += lanes
            else:
                self.ledger.counts["convert_ops"] += lanes
        elif into.kind != source.kind and "float" in (into.kind, source.kind):
            self.ledger.counts["convert_ops"] += lanes
        elif into.bits != source.bits:
            self.ledger.counts["integer_ops"] += lanes

    def _load(self, node: Any, scope: Scope) -> None:
        memory, label = self._memory(node.buffer)
        self._book.live.touch(identity(node.buffer.data))
        space = _space(memory)
        if space is None:
            return
        place = Place(space, label, node.indices[0], element_type(str(node.buffer.dtype)).bytes, element_type(str(node.dtype)).lanes)
        self.ledger.accesses.append(lane_access(scope, place, write=False, mechanism="ld"))
        self.ledger.counts["integer_ops"] += scope.executions

    def _call(self, node: Any, scope: Scope) -> None:
        name = getattr(node.op, "name", str(node.op))
        for argument in node.args:
            if type(argument).__name__ == "Var":
                self._book.live.touch(identity(argument))
        if name == "tirx.if_then_else":
            condition, yes, no = node.args
            self.value(condition, scope)
            self.ledger.counts["vector_ops"] += scope.executions * element_type(str(node.dtype)).lanes
            for part, where in ((yes, scope.with_condition(condition)), (no, scope.with_condition(_negated(condition)))):
                if where is not None:
                    self.value(part, where)
            return
        if name == "tl.set_max_nreg":
            self._book.registers_limit = constant(node.args[0])
            return
        if calls.handle(self, node, scope):
            return
        if self.math(name.rsplit(".", 1)[-1], node, scope):
            for argument in node.args:
                self.value(argument, scope)
            return
        self.unknown(name, scope)
        for argument in node.args:
            if type(argument).__name__ not in ("StringImm", "Var"):
                self.value(argument, scope)

    def unknown(self, name: str, scope: Scope) -> None:
        """Report what is not understood, and charge it as a long function of every thread that calls it."""
        self.unknown_names.add(name)
        self.ledger.unknown[name] += scope.executions
        self.ledger.counts["vector_ops"] += scope.executions * UNKNOWN_VECTOR_OPS
        self.ledger.counts["special_ops"] += scope.executions * UNKNOWN_SPECIAL_OPS

    # --- pointers -----------------------------------------------------------------------------------------------------

    def _memory(self, buffer: Any) -> tuple[str, str]:
        key = identity(buffer.data)
        if key not in self._buffers:
            self._buffer(buffer, allocated=False)
        return self._buffers[key]

    def pointer(self, node: Any) -> Place | None:
        """The place that a pointer argument names; None where the argument is no pointer to global or shared memory."""
        name = getattr(getattr(node, "op", None), "name", "")
        if name == "tirx.tvm_access_ptr":
            key = identity(node.args[1])
            if key not in self._buffers:
                return None
            memory, label = self._buffers[key]
            space = _space(memory)
            if space is None:
                self._book.live.touch(key)
                return None
            bytes_each = element_type(str(node.args[0].args[0].value) if node.args[0].args else str(node.args[0].dtype)).bytes
            return Place(space, label, node.args[2], bytes_each)
        if name == "tirx.address_of":
            return self.pointer(node.args[0])
        if name == "tirx.handle_add_byte_offset":
            return self.pointer(node.args[0])
        if type(node).__name__ == "BufferLoad":
            memory, label = self._memory(node.buffer)
            space = _space(memory)
            return None if space is None else Place(space, label, node.indices[0], element_type(str(node.buffer.dtype)).bytes)
        return None

    def pointer_extent(self, node: Any) -> int | None:
        """Elements that an access pointer covers."""
        return constant(node.args[3]) if getattr(getattr(node, "op", None), "name", "") == "tirx.tvm_access_ptr" else None

    def descriptor(self, node: Any) -> Descriptor | None:
        if type(node).__name__ != "Var" or node.name not in self.descriptors:
            return None
        found = self.descriptors[node.name]
        return Descriptor(self._labels.get(identity(node), found.tensor), found.element_bytes, found.shape, found.box)

    def shared_words(self, scope: Scope, *, write: bool) -> None:
        """One 4-byte word of shared memory per thread, without conflicts (reductions through a workspace)."""
        from ...profile import Access

        self.ledger.accesses.append(
            Access(Space.SHARED, "workspace", write, "st" if write else "ld", scope.executions * 4, scope.warp_executions, scope.warp_executions)
        )


def _is_index(node: Any) -> bool:
    """Whether an expression is integer or boolean arithmetic on launch and loop variables alone."""
    kind = type(node).__name__
    if kind in ("IntImm", "Var"):
        return True
    if kind == "Not":
        return _is_index(node.a)
    if kind in ("And", "Or") or (hasattr(node, "a") and hasattr(node, "b") and element_type(str(node.a.dtype)).kind == "int"):
        return _is_index(node.a) and _is_index(node.b)
    return False


def _comparisons(node: Any) -> int:
    kind = type(node).__name__
    if kind in ("And", "Or"):
        return _comparisons(node.a) + _comparisons(node.b)
    if kind == "Not":
        return _comparisons(node.a)
    return int(kind in ("LT", "LE", "GT", "GE", "EQ", "NE"))


def _space(memory: str) -> Space | None:
    if memory.startswith("shared"):
        return None if "barrier" in memory else Space.SHARED
    return Space.GLOBAL if memory == "global" else None


def _pointer_scope(parameter: Any) -> str:
    annotation = getattr(parameter, "type_annotation", None)
    return str(getattr(annotation, "storage_scope", "")) or ("global" if "global" in str(annotation) else "")


def _static_elements(buffer: Any) -> float:
    total = 1.0
    for extent in buffer.shape:
        total *= constant(extent) or 1
    return total


def _elected_group(condition: Any) -> int | None:
    """The group size of a `tl_shuffle_elect(n)` condition; None where the condition is none."""
    if getattr(getattr(condition, "op", None), "name", "") == "tl.tl_shuffle_elect":
        return constant(condition.args[0]) or 0
    return None


def _negated(condition: Any) -> Any:
    from tvm import tirx

    return tirx.Not(condition)


def _contains(node: Any, names: tuple[str, ...], *, globals_too: bool, buffers: Mapping[int, tuple[str, str]]) -> bool:
    """Whether a call whose name holds one of `names` (or an access to global memory) lies within `node`."""
    from tvm.tirx.stmt_functor import post_order_visit

    found = False

    def visit(part: Any) -> None:
        nonlocal found
        kind = type(part).__name__
        if kind == "Call":
            name = getattr(part.op, "name", "")
            found = found or any(n in name for n in names) or (name == "tirx.call_extern" and "AllReduce" in str(part.args[0]))
        elif globals_too and kind in ("BufferLoad", "BufferStore"):
            memory = buffers.get(identity(part.buffer.data), (str(part.buffer.scope()), ""))[0]
            found = found or memory == "global"

    post_order_visit(node, visit)
    return found


__all__ = ["ONCE", "Reader"]
