"""Walking the statements of one device function: booked phase by phase, role by role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...profile import Access, Rasterization, Role, Space, Trips
from .accesses import lane_access
from .descriptors import Descriptor
from .dtypes import element_type
from .expressions import UnevaluableError, constant, evaluate, identity, variables
from .ledger import Ledger
from .memory import Memory
from .registers import LiveRanges
from .scope import AXES, Launch, Scope
from .values import book_value

UNROLLED_AT_MOST = 64  # constant extents up to this are unrolled by the device compiler
UNKNOWN_TRIPS = 8.0  # of a loop whose extent depends on data
# what a call that is not understood is charged, per executing thread
UNKNOWN_VECTOR_OPS, UNKNOWN_SPECIAL_OPS = 64.0, 8.0

_ASYNCHRONOUS = ("tma_load", "tma_store", "cp_async", "mbarrier_wait", "ptx_wait_group", "ptx_wait_barrier", "storage_sync", "cluster_sync")
_WORK = (*_ASYNCHRONOUS, "wgmma", "ptx_mma", "mfma", "ldg", "stg", "atomic")
_SPECIALISING = ("set_max_nreg", "mbarrier_wait", "ptx_arrive_barrier")
_UNROLLED_KINDS = (2, 3)  # TVM's ForKind: vectorized, unrolled


@dataclass
class _RoleBook:
    name: str
    threads: int
    ledgers: list[Ledger] = field(default_factory=list)
    registers_limit: int | None = None
    live: LiveRanges = field(default_factory=LiveRanges)

    @property
    def is_empty(self) -> bool:
        return all(ledger.is_empty for ledger in self.ledgers)


@dataclass
class Reader:
    """Reads one device function. After `read`, `roles`, `memory.tensors`, `rasterization`, `notes` and `unknown_names`
    hold what was found."""

    launch: Launch
    descriptors: Mapping[str, Descriptor]
    rasterization: Rasterization = field(default_factory=Rasterization)
    notes: list[str] = field(default_factory=list)
    unknown_names: set[str] = field(default_factory=set)
    ledger: Ledger = field(default_factory=Ledger)
    memory: Memory = field(init=False)
    _books: list[_RoleBook] = field(default_factory=list)
    _book: _RoleBook = field(init=False)

    def read(self, function: Any) -> None:
        self.memory = Memory(self.descriptors)
        self.memory.parameters(function)
        self._book = _RoleBook("all", self.launch.threads)
        self._books.append(self._book)
        self._begin(Ledger())
        self.statement(function.body, Scope.of_threads(self.launch, 0, self.launch.threads))
        self._book.live.finish()

    @property
    def roles(self) -> tuple[Role, ...]:
        return tuple(
            Role(
                name=book.name,
                threads=book.threads,
                phases=tuple(ledger.phase() for ledger in book.ledgers if not ledger.is_empty),
                registers_limit=book.registers_limit,
                local_registers=book.live.peak_registers(self.memory.local_bytes),
            )
            for book in self._books
            if not book.is_empty
        )

    # --- what value expressions and calls book through ----------------------------------------------------------------

    def value(self, node: Any, scope: Scope) -> None:
        book_value(self, node, scope)

    def touch(self, variable: Any) -> None:
        """A local buffer is used here: its registers are live."""
        self._book.live.touch(identity(variable))

    def limit_registers(self, count: Any) -> None:
        self._book.registers_limit = constant(count)

    def unknown(self, name: str, scope: Scope) -> None:
        """Report what is not understood, and charge it as a long function of every thread that calls it."""
        self.unknown_names.add(name)
        self.ledger.unknown[name] += scope.executions
        self.ledger.counts["vector_ops"] += scope.executions * UNKNOWN_VECTOR_OPS
        self.ledger.counts["special_ops"] += scope.executions * UNKNOWN_SPECIAL_OPS

    def note(self, text: str) -> None:
        self.notes.append(text)

    def shared_words(self, scope: Scope, *, write: bool) -> None:
        """One 4-byte word of shared memory per thread, without conflicts (reductions through a workspace)."""
        mechanism = "st" if write else "ld"
        words = Access(Space.SHARED, "workspace", write, mechanism, scope.executions * 4, scope.warp_executions, scope.warp_executions)
        self.ledger.accesses.append(words)

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
        outer = self._book
        self._book = _RoleBook("consumer", threads)
        self._books.append(self._book)
        self._begin(Ledger())
        yield Scope.of_threads(self.launch, first_thread, threads)
        self._book.live.finish()
        if not any(work.matrix or work.counts.get("vector_ops") for work in self._book.ledgers):
            self._book.name = "producer"
        self._book = outer
        self._begin(Ledger())

    # --- statements ---------------------------------------------------------------------------------------------------

    def statement(self, node: Any, scope: Scope) -> Scope:
        """Book `node`; returns the scope in which the statements after it stand (bindings made)."""
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
            self.memory.declare(node.buffer)
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
        if getattr(getattr(node.value, "op", None), "name", "") == "tirx.handle_add_byte_offset":
            self.memory.carve(node.var, node.value.args[0])
            return scope
        self.value(node.value, scope)
        return scope.with_binding(identity(node.var), node.value)

    def _store(self, node: Any, scope: Scope) -> None:
        self.value(node.value, scope)
        self.touch(node.buffer.data)
        place = self.memory.place(node.buffer, node.indices[0], element_type(str(node.value.dtype)).lanes)
        if place is not None:
            self.ledger.accesses.append(lane_access(scope, place, write=True, mechanism="st"))
            self.ledger.counts["integer_ops"] += scope.executions

    def _loop(self, node: Any, scope: Scope) -> None:
        extent = constant(node.extent)
        inline = int(node.kind) in _UNROLLED_KINDS or (extent is not None and extent <= 1)
        nested = scope.phase_loop is not None
        if not inline and self._contains(node.body, _ASYNCHRONOUS if nested else _WORK, globals_too=not nested):
            extents = self._trips(node.extent, scope)
            outer = self.ledger.trips.mean if nested else 1.0
            with self._phase(Trips(tuple(t * outer for t in extents.per_block), extents.axes)), self._book.live.loop():
                self.statement(node.body, _inside(node, scope, max(extents.mean, 1.0), unrolled=False, as_phase=True))
            return
        count = float(extent) if extent is not None else self._trips(node.extent, scope).mean
        if count > 0:
            unrolled = inline or (extent is not None and extent <= UNROLLED_AT_MOST)
            with self._book.live.loop():
                self.statement(node.body, _inside(node, scope, count, unrolled=unrolled, as_phase=False))

    def _trips(self, extent: Any, scope: Scope) -> Trips:
        """Iterations for each block of the axes that the extent depends on, x fastest."""
        number = constant(extent)
        if number is not None:
            return Trips((float(max(0, number)),))
        axes = scope.block_axes(extent)
        ordered = [axis for axis in AXES if axis in axes]
        try:
            if not ordered:
                return Trips((max(0.0, float(np.mean(scope.over_chance(extent)))),))
            counts = scope.over_blocks(extent, ordered)
            return Trips(tuple(float(max(0.0, c)) for c in counts), frozenset(ordered))
        except UnevaluableError as reason:
            self.notes.append(f"a loop's extent depends on {reason}: taken for {UNKNOWN_TRIPS:g} iterations")
            return Trips((UNKNOWN_TRIPS,))

    def _branch(self, node: Any, scope: Scope) -> None:
        from tvm import tirx

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
        for body, condition in ((node.then_case, node.condition), (node.else_case, tirx.Not(node.condition))):
            inside = scope.with_condition(condition) if body is not None else None
            if inside is not None:
                self.statement(body, inside)

    def _specialised(self, node: Any, scope: Scope) -> list[tuple[Any, int, int]] | None:
        """The branches of a warp-specialising `if` with their thread ranges; None where it is an ordinary one."""
        used = variables(node.condition)
        if scope.phase_loop is not None or not used or not used <= {v for v, _ in self.launch.thread.values()}:
            return None
        if not self._contains(node, _SPECIALISING, globals_too=False):
            return None
        every = np.arange(scope.first_thread, scope.first_thread + scope.threads)
        try:
            condition = evaluate(node.condition, self.launch.thread_bindings(every))
        except UnevaluableError:
            return None
        holds = np.broadcast_to(np.asarray(condition, dtype=bool), every.shape)
        branches = [(node.then_case, every[holds])] + ([(node.else_case, every[~holds])] if node.else_case is not None else [])
        ranges = []
        for body, threads in branches:
            # whole warps, side by side
            if len(threads) % self.launch.warp_threads or not len(threads) or threads[-1] - threads[0] + 1 != len(threads):
                return None
            ranges.append((body, int(threads[0]), len(threads)))
        return ranges

    def _contains(self, node: Any, names: tuple[str, ...], *, globals_too: bool) -> bool:
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
                found = found or self.memory.is_global(part.buffer)

        post_order_visit(node, visit)
        return found


def _inside(node: Any, scope: Scope, extent: float, *, unrolled: bool, as_phase: bool) -> Scope:
    """The scope of a loop's body. A start that is no constant (one that depends on the block, say) is kept as such."""
    start = constant(node.min)
    if start is not None:
        return scope.with_loop(identity(node.loop_var), start, extent, unrolled, as_phase=as_phase)
    from tvm import tirx

    steps = tirx.Var("step", node.loop_var.dtype)
    inner = scope.with_loop(identity(steps), 0, extent, unrolled, as_phase=as_phase)
    # `bound` keeps the new variable alive: variables are known by their address
    return inner.with_binding(identity(node.loop_var), node.min + steps)


def _elected_group(condition: Any) -> int | None:
    """The group size of a `tl_shuffle_elect(n)` condition; None where the condition is none."""
    if getattr(getattr(condition, "op", None), "name", "") == "tl.tl_shuffle_elect":
        return constant(condition.args[0]) or 0
    return None
