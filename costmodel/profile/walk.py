"""Walking the statements of one device function: booked phase by phase, role by role."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...profile import Access, Rasterization, Role, Space, Trips
from . import loops, trips
from .accesses import lane_access
from .descriptors import Descriptor
from .dtypes import element_type
from .expressions import UnevaluableError, constant, identity, is_scalar
from .launch import Launch
from .ledger import Ledger
from .memory import Memory
from .registers import LiveRanges
from .roles import RoleBook, roles_of
from .scope import Scope
from .values import book_loads, book_value

UNROLLED_AT_MOST = 64  # constant extents up to this are unrolled by the device compiler
UNKNOWN_TRIPS = 8.0  # of a loop whose extent depends on data
# what a call that is not understood is charged, per executing thread
UNKNOWN_VECTOR_OPS, UNKNOWN_SPECIAL_OPS = 64.0, 8.0


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
    _live: LiveRanges = field(default_factory=LiveRanges)
    _books: dict[tuple[int, int], RoleBook] = field(default_factory=dict)  # by first thread and threads
    _book: RoleBook = field(init=False)
    _scalars: set[int] = field(default_factory=set)  # local buffers that are variables in all but name

    def read(self, function: Any) -> None:
        self.memory = Memory(self.descriptors)
        self.memory.parameters(function)
        self._book = self._books[0, 0] = RoleBook(0, self.launch.threads)
        self._begin(Ledger())
        self.statement(function.body, Scope.of_threads(self.launch, 0, self.launch.threads))
        self._live.finish()

    @property
    def roles(self) -> tuple[Role, ...]:
        return roles_of(list(self._books.values()), self._live, self.memory.local_bytes)

    # --- what value expressions and calls book through ----------------------------------------------------------------

    def value(self, node: Any, scope: Scope) -> None:
        book_value(self, node, scope)

    def address(self, index: Any, scope: Scope) -> None:
        book_loads(self, index, scope)

    def touch(self, variable: Any) -> None:
        """A local buffer is used here: its registers are live."""
        self._live.touch(self._book.number, identity(variable))

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
    def _phase(self, times: Trips, *, is_loop: bool = True, unrolled_by: int = 1) -> Iterator[None]:
        """A phase within the present one, `times` for each time that this one comes by."""
        outer = self.ledger
        self._begin(Ledger(trips.product(outer.trips, times, self.launch.grid), is_loop=is_loop, unrolled_by=unrolled_by))
        yield
        # what follows the loop is a stretch of its own, as often executed as what came before
        self._begin(Ledger(outer.trips, is_loop=outer.is_loop, between=not self._book.is_whole_block))

    @contextmanager
    def _role(self, first_thread: int, threads: int) -> Iterator[None]:
        """The role of a range of threads, which may have been here before."""
        outer, now = self._book, self.ledger
        self._book = self._books.setdefault((first_thread, threads), RoleBook(len(self._books), threads))
        self._begin(Ledger(now.trips, is_loop=now.is_loop, between=True))
        yield
        self._book = outer
        self._begin(Ledger(now.trips, is_loop=now.is_loop))

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
            return self._loop(node, scope)
        elif kind == "IfThenElse":
            return self._branch(node, scope)
        elif kind == "BufferStore":
            return self._store(node, scope)
        elif kind == "Evaluate":
            self.value(node.value, scope)
        elif kind == "While":
            self.notes.append(f"a while loop was taken for {UNKNOWN_TRIPS:g} iterations")
            self.value(node.condition, scope)
            return self._repeat(node, scope)
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

    def _store(self, node: Any, scope: Scope) -> Scope:
        self.value(node.value, scope)
        self.touch(node.buffer.data)
        if is_scalar(node.buffer):
            self._scalars.add(identity(node.buffer.data))
            return scope.with_binding(identity(node.buffer.data), node.value)
        book_loads(self, node.indices[0], scope)
        place = self.memory.place(node.buffer, node.indices[0], element_type(str(node.value.dtype)).lanes)
        if place is not None:
            self.ledger.accesses.append(lane_access(scope, place, write=True, mechanism="st"))
            self.ledger.counts["integer_ops"] += scope.executions
        return scope

    # --- loops --------------------------------------------------------------------------------------------------------

    def _loop(self, node: Any, scope: Scope) -> Scope:
        is_global = self.memory.is_global
        inline = loops.is_short(node, is_global) if not loops.is_unrolled(node) else not loops.waits_for_each(node, is_global)
        if not inline and self._is_phase(node, nested=scope.phase_loop is not None):
            extents = self._trips(node.extent, scope)
            with self._phase(extents, unrolled_by=loops.unrolled_by(node, is_global)), self._live.loop():
                return self._body(node, scope, max(extents.mean, 1.0), unrolled=False, as_phase=True)
        extent = constant(node.extent)
        count = float(extent) if extent is not None else self._trips(node.extent, scope).mean
        if count <= 0:
            return scope
        with self._live.loop():
            return self._body(node, scope, count, unrolled=inline or (extent or UNROLLED_AT_MOST + 1) <= UNROLLED_AT_MOST, as_phase=False)

    def _is_phase(self, node: Any, *, nested: bool) -> bool:
        """Whether a loop's iterations pass one after another, each with waits of its own."""
        if nested:
            return loops.calls(node.body, loops.ASYNCHRONOUS)
        return self._touches_global(node.body) or loops.calls(node.body, (*loops.ASYNCHRONOUS, *loops.MATRIX, *loops.GLOBAL))

    def _touches_global(self, node: Any) -> bool:
        found = False

        def look(part: Any, kind: str) -> None:
            nonlocal found
            found = found or (kind in ("BufferLoad", "BufferStore") and self.memory.is_global(part.buffer))

        loops.visit(node, look)
        return found

    def _body(self, node: Any, scope: Scope, extent: float, *, unrolled: bool, as_phase: bool) -> Scope:
        """Book a loop's body; returns the scope after the loop. A start that is no constant (one that depends on the
        block, say) is kept as such."""
        from tvm import tirx

        start = constant(node.min)
        if start is not None:
            step = node.loop_var - start if start else node.loop_var
            inner = scope.with_loop(identity(node.loop_var), start, extent, unrolled, as_phase=as_phase)
        else:
            step = tirx.Var("step", node.loop_var.dtype)
            inner = scope.with_loop(identity(step), 0, extent, unrolled, as_phase=as_phase)
            # `bound` keeps the new variable alive: variables are known by their address
            inner = inner.with_binding(identity(node.loop_var), node.min + step)
        carried = loops.carried(node.body)
        self._scalars |= set(carried)
        for scalar, counter in carried.items():
            if counter is None:
                inner = inner.with_unknown(scalar, step)
            elif scalar in scope.pattern:
                inner = inner.with_binding(scalar, counter[0] + step * counter[1])
            else:  # whatever it starts from, it numbers the slots of a ring in turn
                inner = inner.with_binding(scalar, step * counter[1])
        result, turns = self.statement(node.body, inner), constant(node.extent)
        counted = {} if turns is None else {s: c for s, c in carried.items() if c is not None and s in scope.pattern}
        after = scope.after(result, self._scalars - set(counted))
        for scalar, (load, each) in counted.items():
            after = after.with_binding(scalar, load + (turns or 0) * each)
        return after

    def _repeat(self, node: Any, scope: Scope) -> Scope:
        """A while loop: what it stores to local scalars is not followed."""
        self.notes.append(f"a while loop was taken for {UNKNOWN_TRIPS:g} iterations")
        inner = scope.with_loop(-1, 0, UNKNOWN_TRIPS, unrolled=False)
        for scalar in loops.carried(node.body):
            self._scalars.add(scalar)
            inner = inner.with_unknown(scalar)
        self.value(node.condition, inner)
        return scope.after(self.statement(node.body, inner), self._scalars)

    def _trips(self, extent: Any, scope: Scope) -> Trips:
        try:
            return trips.of_extent(extent, scope)
        except UnevaluableError as reason:
            self.notes.append(f"a loop's extent depends on {reason}: taken for {UNKNOWN_TRIPS:g} iterations")
            return Trips((UNKNOWN_TRIPS,))

    # --- branches -----------------------------------------------------------------------------------------------------

    def _branch(self, node: Any, scope: Scope) -> Scope:
        from tvm import tirx

        elected = _elected_group(node.condition)
        if elected is not None:
            return scope.after(self.statement(node.then_case, scope.with_elected(elected)), self._scalars)
        split = self._specialised(node, scope)
        if split is not None:
            after = scope
            for body, first, count in split:
                with self._role(first, count):
                    after = after.after(self.statement(body, scope.with_threads(first, count)), self._scalars)
            return after
        self.value(node.condition, scope)
        after = scope
        for body, condition in ((node.then_case, node.condition), (node.else_case, tirx.Not(node.condition))):
            inside = self._taken(body, condition, scope) if body is not None else None
            if inside is not None:
                after = after.after(inside, self._scalars)
        return after

    def _taken(self, body: Any, condition: Any, scope: Scope) -> Scope | None:
        """Book what stands under a condition; returns the scope at its end, None where it is never executed."""
        if not loops.has_phases(body):
            inside = scope.with_condition(condition)
            if inside is not None and not inside.knows(condition) and loops.calls(body, (*loops.MATRIX, *loops.COPIES)):
                self._taken_always()
            return self.statement(body, inside) if inside is not None else None
        share = trips.of_condition(condition, scope)
        inside = scope.with_condition(condition) if share is None else scope.with_given(condition)
        if inside is None or (share is not None and not share.largest):
            return None
        if not inside.knows(condition):
            self._taken_always()
        if share is None or share.smallest == 1:
            return self.statement(body, inside)
        with self._phase(share, is_loop=self.ledger.is_loop):
            return self.statement(body, inside)

    def _taken_always(self) -> None:
        self.note("a branch around matrix work or copies depends on data: taken as always entered")

    def _specialised(self, node: Any, scope: Scope) -> list[tuple[Any, int, int]] | None:
        """The branches of a warp-specialising `if` with their thread ranges; None where it is an ordinary one."""
        used = scope.depends_on(node.condition)
        if not used or not used <= self.launch.thread_variables or scope.elected or not loops.specialises(node):
            return None
        every = scope.first_thread + np.arange(scope.threads)
        try:
            holds = scope.over_block(node.condition).astype(bool)
        except UnevaluableError:
            return None
        here = np.ones(scope.threads, dtype=bool) if scope.held is None else scope.held
        branches = [(node.then_case, every[holds & here])]
        if node.else_case is not None:
            branches.append((node.else_case, every[~holds & here]))
        ranges = []
        for body, threads in branches:
            # whole warps, side by side, and not all of them
            whole = len(threads) and not len(threads) % self.launch.warp_threads and threads[-1] - threads[0] + 1 == len(threads)
            if not whole or len(threads) == scope.threads:
                return None
            ranges.append((body, int(threads[0]), len(threads)))
        return ranges


def _elected_group(condition: Any) -> int | None:
    """The group size of a `tl_shuffle_elect(n)` condition; None where the condition is none."""
    if getattr(getattr(condition, "op", None), "name", "") == "tl.tl_shuffle_elect":
        return constant(condition.args[0]) or 0
    return None
