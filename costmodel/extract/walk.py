"""Walks the statements of one device function and counts their work by role and phase."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...problem.rasterization import Rasterization
from ...problem.run_time_data import NOTHING_KNOWN, RunTimeData, function_name
from ...profile.values import WORKSPACE, Access, Role, Space, Trips
from . import kept_branches, loads_in_flight, loops, shared_values, trips
from .accesses import lane_access, without_repeated_indices
from .branches import condition_of_work, elected_group, is_vote, leaves, otherwise, specialised_branches
from .data_branches import trips_behind_branches
from .dead_values import DeadValues, dead_values
from .descriptors import Descriptor
from .element_types import element_type
from .execution import Entered, Executed, execute
from .expressions import Alias, UnevaluableError, call_name, constant, identity, is_scalar, loads
from .filled_buffers import fills_of
from .joined_loads import Functions, functions_of
from .launch_geometry import LaunchGeometry
from .load_chains import LoadChain
from .local_arrays import arrays_in_local_memory, copied_iterations, is_kept
from .local_waits import LocalWaits, waits_for_local_memory
from .memory import Memory
from .phase_counts import PhaseCounts
from .registers import LiveRanges
from .roles import RoleCounts, roles_of
from .routine_trips import trips_between_routines, trips_without_loops
from .scalar_programs import LoopState, ScalarProgram, ScalarResult, turns_of
from .scope import Scope
from .shared_memory_order import (
    follows_shared_index,
    rewrites_shared,
    rewritten_in_turn,
    stores_to_shared,
    waits_of_condition,
)
from .tables import tables_of
from .trip_guesses import guessed_trips, typical_value
from .unrolled_elements import UnrolledElements, transformed_buffer
from .value_counts import count_address, count_selected_moves, count_value, is_predicated, repeats_of_value
from .value_numbers import ValueNumbers

UNROLLED_AT_MOST = 64  # the device compiler unrolls loops with constant extents up to this
# Instructions of a warp in all iterations, without those of addresses, beyond which the device compiler keeps
# a loop of whose unrolling the source says nothing. Read off the machine code of kernels by others (nvcc
# 13.0): one of 290 instructions is unrolled, those with 584 and more are kept.
UNROLLED_CODE = 256.0
WHILE = -1  # the variable that numbers the iterations of a while loop
VOTED_SHARE = 0.5  # of the cases in which a block enters a branch that its threads vote on, if unknown
# of the loads of an iteration
WAITS = ("load_branches", "divided_addresses", "local_waits", "near_local_waits")
UNKNOWN_TRIPS = 8.0  # assumed iterations of a loop whose extent depends on data
# operations per executing thread that an unknown call is charged
UNKNOWN_VECTOR_OPS, UNKNOWN_SPECIAL_OPS = 64.0, 8.0


@dataclass(frozen=True)
class _Branch:
    """One of the branches of a condition.

    Attributes:
        body: its statement.
        condition: what it stands under.
        density: share in which it is entered if its condition depends on data; None: not known.
        entered: the same by an execution on the example inputs.
    """

    body: Any
    condition: Any
    density: float | None
    entered: Entered | None


@dataclass
class KernelReader:
    """Reads one device function. Implements `CountingContext`.

    After `read`, the results are in `roles`, `memory.tensors`, `rasterization`, `min_blocks_per_core`,
    `notes` and `unknown_calls`.
    """

    launch: LaunchGeometry
    descriptors: Mapping[str, Descriptor]
    data: RunTimeData = NOTHING_KNOWN
    least_float_bits: int = 0  # of the formats that the target converts by instructions; 0: any
    fast_math: bool = False  # the device compiler approximates the functions of float32
    rasterization: Rasterization = field(default_factory=Rasterization)
    min_blocks_per_core: int = 1
    notes: list[str] = field(default_factory=list)
    unknown_calls: set[str] = field(default_factory=set)
    imported: list[str] = field(default_factory=list)
    phase: PhaseCounts = field(default_factory=PhaseCounts)
    memory: Memory = field(init=False)
    _live: LiveRanges = field(default_factory=LiveRanges)
    _elements: UnrolledElements = field(default_factory=UnrolledElements)
    _roles: dict[tuple[int, int], RoleCounts] = field(default_factory=dict)  # by (first thread, threads)
    _role: RoleCounts = field(init=False)
    _guessed: dict[str, float] = field(default_factory=dict)  # iterations, by the text of a loop's extent
    _turns: dict[int, float] = field(default_factory=dict)  # of loops that known data ends, by identity
    _function: Any = None
    _found_execution: Executed | None = None  # of the function, once a loop or a branch needs it
    _is_fill: bool = False  # within a statement that fills a buffer with known values
    _scalars: set[int] = field(default_factory=set)  # local buffers of one integer, which act as variables
    _parts: ValueNumbers | None = None  # of the current value; None between values
    _bound: tuple[Any, ValueNumbers] | None = None  # the last variable, and the parts of its value
    _dead: DeadValues = field(default_factory=DeadValues)  # what no result derives from

    def read(self, function: Any) -> None:
        """Walk the whole function."""
        self._function = function
        local = arrays_in_local_memory(function)
        self.memory = Memory(
            self.descriptors,
            tables=tables_of(function, self.data.contents),
            in_local_memory=local.arrays,
            spilled=local.spilled,
            summed_at_once=local.summed_at_once,
        )
        self.memory.declare_parameters(function)
        self._dead = dead_values(function)
        self._role = self._roles[0, 0] = RoleCounts(0, self.launch.threads)
        self._start_phase(PhaseCounts())
        scope = Scope.of_threads(
            self.launch,
            0,
            self.launch.threads,
            self.memory.contents,
            self.memory.tables,
            self.memory.filled,
        )
        self.statement(function.body, scope)
        if not self.fast_math and not loops.contains(function.body, loops.is_loop):
            indices = self.launch.thread_variables | self.launch.block_variables
            trips_of_loads = trips_without_loops(function.body, self.memory.is_global, indices)
            if trips_of_loads > 1:
                self.phase.counts["load_branches"] += scope.warp_executions * trips_of_loads
        self._live.finish(self.memory.register_bytes())

    @property
    def roles(self) -> tuple[Role, ...]:
        counts, sizes = list(self._roles.values()), self.memory.register_bytes()
        return roles_of(counts, self._live, sizes, self.launch.warp_threads)

    @property
    def held_registers(self) -> tuple[dict[str, float], ...]:
        """Of each of `roles`: registers a thread of its local buffers, by name, where most are live."""
        sizes = self.memory.register_bytes()
        found = []
        for role in self._roles.values():
            held: dict[str, float] = {}
            for buffer, count in self._live.held_at_peak(role.number, sizes).items():
                name = self.memory.name_of(buffer)
                held[name] = held.get(name, 0.0) + count
            if not role.is_empty:
                found.append(dict(sorted(held.items(), key=lambda item: -item[1])))
        return tuple(found)

    # --- the interface for value expressions and calls (`CountingContext`) ----------------------------------

    def count_value(self, node: Any, scope: Scope) -> None:
        outer, self._parts = self._parts, self._parts or ValueNumbers(self.memory)
        count_value(self, node, scope)
        self._parts = outer

    def is_repeated(self, part: Any, scope: Scope) -> bool:
        """Whether the current value has an equal part that was counted for as many lanes."""
        return self._parts is not None and self._parts.is_repeated(
            part, scope.issued_lanes, converged=not scope.is_divergent
        )

    @contextmanager
    def _with_parts(self, known: ValueNumbers | None) -> Iterator[ValueNumbers]:
        """Values within have the parts `known`, and those that are counted within."""
        outer, self._parts = self._parts, known.copied() if known else ValueNumbers(self.memory)
        yield self._parts
        self._parts = outer

    def count_address(self, index: Any, scope: Scope) -> None:
        count_address(self, index, scope)

    def mark_live(self, variable: Any) -> None:
        """Record that the registers of a local buffer are live here."""
        key = identity(variable)
        self._live.touch(self._role.number, key, self._dead.among_alive(key, None))

    def mark_loaded(self, buffer: Any, index: Any) -> None:
        """Record that elements of a buffer are live here."""
        self._live.touch(self._role.number, identity(buffer.data), self._used(buffer, index))

    def _used(self, buffer: Any, index: Any) -> NDArray[np.bool_] | None:
        if not self.memory.is_in_registers(buffer):
            return None
        return self._dead.among_alive(identity(buffer.data), self._elements.used(buffer, index))

    def mark_accumulator(self, variable: Any, *, kept: bool) -> None:
        """Record that matrix instructions accumulate in a local buffer."""
        self._live.accumulate(self._role.number, identity(variable), kept=kept)

    def limit_registers(self, count: Any) -> None:
        self._role.registers_limit = constant(count)

    def count_unknown(self, name: str, scope: Scope) -> None:
        """Report an unknown call and charge it as a long function of every thread that executes it."""
        self.unknown_calls.add(name)
        self.phase.unknown[name] += scope.executions
        self.phase.counts["vector_ops"] += scope.executions * UNKNOWN_VECTOR_OPS
        self.phase.counts["special_ops"] += scope.executions * UNKNOWN_SPECIAL_OPS

    def stated_work(self, name: str) -> float | None:
        return self.data.calls.get(function_name(name))

    def add_note(self, text: str) -> None:
        self.notes.append(text)

    def count_shared_words(self, scope: Scope, *, write: bool) -> None:
        """Count one 4-byte word of a shared-memory workspace per thread, without bank conflicts."""
        mechanism = "st" if write else "ld"
        words = Access(
            Space.SHARED,
            WORKSPACE,
            write,
            mechanism,
            scope.executions * 4,
            scope.warp_executions,
            scope.warp_executions,
        )
        self.phase.accesses.append(words)

    # --- phases and roles -----------------------------------------------------------------------------------

    def _start_phase(self, phase: PhaseCounts) -> None:
        self.phase = phase
        phase.order.phases.append(phase)
        self._role.phases.append(phase)

    @contextmanager
    def _nested_phase(self, times: Trips, *, is_loop: bool = True, unrolled_by: int = 1) -> Iterator[None]:
        """A phase inside the current one, which runs `times` times in each iteration of the current one."""
        outer = self.phase
        outer.order.has_loops = True
        self._start_phase(
            PhaseCounts(
                trips.product(outer.trips, times, self.launch.grid), is_loop=is_loop, unrolled_by=unrolled_by
            )
        )
        yield
        # the code after the inner phase is another phase, with the trips of the code before it
        self._start_phase(
            PhaseCounts(
                outer.trips,
                is_loop=outer.is_loop,
                between=not self._role.is_whole_block,
                order=outer.order,
            )
        )

    @contextmanager
    def _enter_role(self, first_thread: int, threads: int) -> Iterator[None]:
        """The role of a range of threads. It is continued if the program entered the same range before."""
        outer, now = self._role, self.phase
        self._role = self._roles.setdefault((first_thread, threads), RoleCounts(len(self._roles), threads))
        self._start_phase(PhaseCounts(now.trips, is_loop=now.is_loop, between=True, order=now.order))
        yield
        self._role = outer
        self._start_phase(PhaseCounts(now.trips, is_loop=now.is_loop, order=now.order))

    # --- statements -----------------------------------------------------------------------------------------

    def statement(self, node: Any, scope: Scope) -> Scope:
        """Count `node`. Returns the scope of the statements after it, which includes its bindings."""
        if not self.memory.tables or self._is_fill:
            return self._counted(node, scope)
        fills, mixed = fills_of(node, scope, self.memory.filled), self.memory.mixed
        self._is_fill = bool(fills)
        scope = self._counted(node, scope)
        self._is_fill = False
        self.memory.fill_known(fills, mixed)
        return scope

    def _counted(self, node: Any, scope: Scope) -> Scope:
        kind = type(node).__name__
        if kind == "SeqStmt":
            for position, part in enumerate(node.seq):
                rest = node.seq[position + 1 :]
                if rest and leaves(part):
                    return self.statement(otherwise(part, rest), scope)
                scope = self.statement(part, scope)
            return scope
        if kind == "AttrStmt":
            return self.statement(node.body, self._attribute(node, scope))
        if kind == "Bind":
            return self._bind(node, scope)
        if kind in ("AllocBuffer", "DeclBuffer"):
            self.memory.declare(node.buffer)
        elif kind == "For":
            return self._with_known_results(node, scope, self._loop(node, scope))
        elif kind == "IfThenElse":
            return self._with_known_results(node, scope, self._branch(node, scope))
        elif kind == "BufferStore":
            with self._loading_indices_once():
                return self._store(node, scope)
        elif kind == "Evaluate":
            share = self._dead.share(node)
            if share:
                with self._loading_indices_once():
                    self.count_value(node.value, scope.in_share_of_iterations(share))
            for buffer in loops.stored_buffers(node):
                self.memory.note_store(buffer)
        elif kind == "While":
            return self._with_known_results(node, scope, self._repeat(node, scope))
        elif kind != "AssertStmt":
            self.count_unknown(f"statement {kind}", scope)
        return scope

    def _with_known_results(self, node: Any, before: Scope, after: Scope) -> Scope:
        """The scope after a loop or branch, with the values that known data gives to local scalars.

        Args:
            node: the statement.
            before: the scope at its start.
            after: the scope at its end, in which scalars that it stores to may be unknown.
        """
        changed = dict.fromkeys(v for v, _ in after.bound[len(before.bound) :] if v in self._scalars)
        if not any(after.is_unknown(scalar) for scalar in changed):
            return after
        return _with_results(before, ScalarProgram(node), changed) or after

    @contextmanager
    def _loading_indices_once(self) -> Iterator[None]:
        """A statement whose loaded indices are loaded once: bounds checks and addresses share them."""
        accesses, first = self.phase.accesses, len(self.phase.accesses)
        yield
        accesses[first:] = without_repeated_indices(accesses[first:])

    def _attribute(self, node: Any, scope: Scope) -> Scope:
        """The scope within an attribute: an index of the launch may have several variables."""
        if node.attr_key == "thread_extent":
            variable, first = identity(node.node.var), self.launch.variable(str(node.node.thread_tag))
            return scope if first in (None, variable) else scope.with_binding(variable, Alias(first))
        if node.attr_key == "threadblock_swizzle_pattern":
            parts = [str(getattr(a, "value", a)) for a in node.value.args]
            order = "column" if "Col" in parts[0] else "row"
            self.rasterization = Rasterization(order, int(parts[1]) if len(parts) > 1 else 1)
        if node.attr_key == "tl.min_blocks_per_sm":
            self.min_blocks_per_core = int(node.value)
        if node.attr_key == "pragma_import_c":
            self.imported.append(str(node.value.value))
        return scope

    def _bind(self, node: Any, scope: Scope) -> Scope:
        if call_name(node.value) == "tirx.handle_add_byte_offset":
            self.memory.add_view(node.var, node.value.args[0])
            return scope
        if self._dead.share(node):
            with self._with_parts(self._parts) as parts:
                self.count_value(node.value, scope)
            self._bound = node.var, parts
        return scope.with_binding(identity(node.var), self._stated(node.var, node.value, scope))

    def _stated(self, variable: Any, value: Any, scope: Scope) -> Any:
        """The value that the caller states of `variable`, if its own depends on data."""
        from tvm import tirx

        stated = self.data.values.get(str(variable.name))
        return value if stated is None or not scope.is_data(value) else tirx.IntImm(value.dtype, stated)

    def _store(self, node: Any, scope: Scope) -> Scope:
        share = self._dead.share(node)
        if not share:
            return scope
        kept = scope.in_share_of_iterations(share)
        branches = self.phase.counts.get("shared_branches", 0.0)
        self.count_value(node.value, kept)
        if self.phase.counts.get("shared_branches", 0.0) > branches:
            self.memory.separate(node.buffer)
        used = self._used(node.buffer, node.indices[0])
        source = transformed_buffer(node.value, self._elements.counters)
        self._live.store(self._role.number, identity(node.buffer.data), source, used)
        self.phase.staged[identity(node.buffer.data)] = repeats_of_value(self, node.value, scope)
        self.memory.note_store(identity(node.buffer.data))
        if is_scalar(node.buffer):
            self._scalars.add(identity(node.buffer.data))
            value = self._stated(node.buffer, node.value, scope)
            return scope.with_binding(identity(node.buffer.data), value)
        self.memory.fill(node.buffer.data, scope.depends_on(node.value) | scope.reached_by, scope)
        count_address(self, node.indices[0], kept)
        site = self.memory.site(node.buffer, node.indices[0], element_type(str(node.value.dtype)).lanes)
        if site is not None:
            self.phase.add_access(lane_access(kept, site, write=True, mechanism="st"), kept, site)
            self.phase.counts["integer_ops"] += kept.issued_lanes
        return scope

    # --- loops ----------------------------------------------------------------------------------------------

    def _loop(self, node: Any, scope: Scope) -> Scope:
        is_global, alone = self.memory.is_global, scope.phase_loop is None
        if loops.is_unrolled(node):
            branch = kept_branches.kept_branch(node, is_global, alone=alone)
            inline = branch.trips < 1.0 and not kept_branches.copies_one_by_one(node, is_global)
        else:
            branch = kept_branches.KeptBranch(trips_behind_branches(node, is_global))
            inline = branch.trips < 1.0 and loops.is_short(node, is_global)
        local_waits = waits_for_local_memory(node, self.memory.in_local_memory)
        turns = self._known_turns(node, scope) if loops.breaks(node.body) else None
        share = self._executed_share(node) if loops.ends_early(node.body) and turns is None else 1.0
        if not inline and self._is_phase(node, nested=scope.phase_loop is not None):
            extents, longest = self._trips(node, scope, share) if turns is None else (Trips((turns,)), 0.0)
            unrolled_by = loads_in_flight.unrolled_by(node, is_global, self.memory.is_constant)
            with (
                self._nested_phase(extents, unrolled_by=unrolled_by),
                self._live.loop(),
            ):
                unrolled = loops.is_unrolled(node)
                behind_branch = bool(branch.divided) or branch.trips > (1 if unrolled else 0)
                if behind_branch:
                    self._count_kept(branch, scope, 1.0)
                self._count_local_waits(scope, local_waits)
                self._count_trips_between_routines(node, scope)
                phase, chain = self.phase, self._load_chain(node.body)
                after = self._body(
                    node,
                    scope,
                    max(extents.mean, 1.0),
                    unrolled=unrolled,
                    as_phase=True,
                    together=unrolled_by,
                    longest=longest,
                    behind_branch=behind_branch,
                )
                if chain.trips() > 1:  # the other rules may have counted some of them
                    waits = scope.warp_executions * chain.trips(unrolled_by)
                    phase.counts["load_branches"] = max(waits, phase.counts.get("load_branches", 0.0))
                return after
        extent, longest = constant(node.extent) if turns is None else None, 0.0
        if turns is None:
            extents, longest = self._trips(node, scope, share)
            turns = extents.mean
        if turns <= 0:
            return scope
        self._count_local_waits(scope, local_waits.times(turns))
        if branch.trips:
            self._count_kept(branch, scope, turns)
        elif not self.fast_math and not inline and loops.loads_beside_calls(node, is_global):
            self.phase.counts["load_branches"] += scope.warp_executions * turns
        elif follows_shared_index(node, is_global):
            # the other warps of the block wait for those that gather
            self.phase.counts["load_branches"] += scope.warp_executions / scope.warp_share * turns
        elif in_turn := rewritten_in_turn(node.body, is_global):
            self.phase.counts["load_branches"] += scope.warp_executions * turns * in_turn
        elif alone and (trips_in_turn := self._load_chain(node).trips()) > 1:
            self.phase.counts["load_branches"] += scope.warp_executions * trips_in_turn
        with self._around_elements(node):
            return self._body(
                node,
                scope,
                turns,
                unrolled=inline
                or ((extent or UNROLLED_AT_MOST + 1) <= UNROLLED_AT_MOST and not is_kept(node, frozenset())),
                as_phase=False,
                longest=longest,
            )

    def _count_kept(self, branch: kept_branches.KeptBranch, scope: Scope, times: float) -> None:
        self.phase.counts["load_branches"] += scope.warp_executions * times * branch.trips
        self.phase.counts["divided_addresses"] += scope.warp_executions * times * branch.divided

    def _count_trips_between_routines(self, loop: Any, scope: Scope) -> None:
        """Count the round trips of an iteration whose loads stand between calls of routines."""
        trips = 0.0
        if not self.fast_math:
            trips = trips_between_routines(loop, self.memory.is_global, copied_iterations(loop))
        if trips:
            self.phase.counts["load_branches"] += scope.warp_executions * trips

    def _load_chain(self, statement: Any) -> LoadChain:
        varying = set(self.launch.thread_variables)
        chain = LoadChain(self.memory.is_global, varying, self.launch.warp_threads)
        chain.read(statement)
        return chain

    def _count_local_waits(self, scope: Scope, waits: LocalWaits) -> None:
        if waits.all:
            self.phase.counts["local_waits"] += scope.warp_executions * waits.all
            self.phase.counts["near_local_waits"] += scope.warp_executions * waits.near

    @contextmanager
    def _around_elements(self, node: Any) -> Iterator[None]:
        """A loop around uses of local buffers, in one sequence of statements if it is unrolled."""
        if loops.is_unrolled(node) or loops.is_short(node, self.memory.is_global):
            with self._live.unrolled(), self._elements.loop(node):
                yield
        else:
            with self._live.loop():
                yield

    def _is_phase(self, node: Any, *, nested: bool) -> bool:
        """Whether a loop becomes a phase: its iterations run one after another and move data or wait."""
        if nested:
            return loops.calls(node.body, loops.ASYNCHRONOUS)
        return loops.touches_global(node.body, self.memory.is_global) or loops.calls(
            node.body, (*loops.ASYNCHRONOUS, *loops.MATRIX, *loops.GLOBAL)
        )

    def _body(
        self,
        node: Any,
        scope: Scope,
        extent: float,
        *,
        unrolled: bool,
        as_phase: bool,
        together: int = 1,
        longest: float = 0.0,
        behind_branch: bool = False,
    ) -> Scope:
        """Count the body of a loop. Returns the scope after the loop.

        The keywords are those of `Scope.with_loop`, but for `behind_branch`: whether its iterations wait for
        loads behind a branch that the compiler keeps.

        A start that is not constant, such as one that depends on the block, is kept as an expression.
        """
        from tvm import tirx

        start = constant(node.min)
        rewrites = not as_phase and rewrites_shared(node.body)
        # a store to shared memory may change what the next iteration loads
        copies = 1 if unrolled or as_phase or rewrites else copied_iterations(node)
        if as_phase and together > 1 and not stores_to_shared(node.body):
            copies = 2 ** int(math.log2(together))
        if start is not None:
            step = node.loop_var - start if start else node.loop_var
            variable = node.loop_var
        else:
            step = tirx.Var("step", node.loop_var.dtype)
            variable = step
        inner = scope.with_loop(
            identity(variable),
            start or 0,
            extent,
            unrolled,
            as_phase=as_phase,
            together=together,
            rewrites=rewrites,
            limit=None if scope.is_data(node.extent) else node.extent,
            longest=longest,
            stores=loops.stored_buffers(node.body),
            functions=functions_of(node.body, fast_math=self.fast_math)
            if unrolled or copies > 1
            else Functions.SHORT,
            copies=copies,
        )
        if start is None:
            # `bound` keeps the new variable alive: variables are identified by their address
            inner = inner.with_binding(identity(node.loop_var), node.min + step)
        if longest and not scope.is_data(node.extent):
            inner = inner.in_iterations(step < node.extent) or inner
        carried = loops.carried(node.body)
        self._scalars |= set(carried)
        known = self._at_its_iteration(node, inner, identity(variable))
        for scalar, counter in carried.items() if known is None else ():
            if counter is None:
                inner = inner.with_unknown(scalar, step, ScalarProgram(node.body))
            elif scalar in scope.pattern:
                inner = inner.with_binding(scalar, counter[0] + step * counter[1])
            else:  # its start is unknown, but it numbers the slots of a ring buffer in turn
                inner = inner.with_binding(scalar, step * counter[1])
        start_of_turn, turns = known or inner, constant(node.extent)
        warps = self._role.threads / self.launch.warp_threads
        again = 1.0 if as_phase or loops.is_unrolled(node) else extent / copies
        with self.phase.repeating(
            again, self.launch.warp_threads, beyond=UNROLLED_CODE * warps if unrolled else 0.0
        ):
            result = self._iteration(node.body, start_of_turn, as_phase=as_phase, behind_branch=behind_branch)
        counted = (
            {}
            if turns is None
            else {s: c for s, c in carried.items() if c is not None and s in scope.pattern}
        )
        after = scope.after(result, self._scalars - set(counted))
        for scalar, (load, each) in counted.items():
            after = after.with_binding(scalar, load + (turns or 0) * each)
        return after

    def _iteration(self, body: Any, scope: Scope, *, as_phase: bool, behind_branch: bool) -> Scope:
        """Count an iteration of a loop, as two phases if blocks differ in how many of their iterations work.

        So are those of a loop that waits behind a branch which the compiler keeps, also if blocks are equal.
        Copies that a loop issues ahead are in one order, so a loop with such copies stays one phase.
        """
        from tvm import tirx

        if not as_phase or loops.calls(body, loops.COPIES):
            return self.statement(body, scope)
        condition = condition_of_work(body, is_kept=behind_branch)
        if condition is None:
            return self.statement(body, scope)
        known = scope
        for part in body.seq:
            if type(part).__name__ == "IfThenElse":
                break
            if type(part).__name__ == "BufferStore":
                value = self._stated(part.buffer, part.value, known)
                known = known.with_binding(identity(part.buffer.data), value)
            elif type(part).__name__ == "Bind":
                known = known.with_binding(identity(part.var), part.value)
        working = trips.of_condition(condition, known)
        if working is None or (working.smallest == working.largest and not behind_branch):
            return self.statement(body, scope)
        idle = Trips(tuple(1.0 - share for share in working.per_block), working.axes)
        waits = {name: self.phase.counts.pop(name, 0.0) for name in WAITS}
        joined, after = self.phase.unrolled_by, scope
        for share, held, of_loads in ((idle, tirx.Not(condition), 0.0), (working, condition, 1.0)):
            inside = known.in_iterations(held)
            if inside is not None:
                with self._nested_phase(share, unrolled_by=joined):
                    for name, number in waits.items():
                        self.phase.counts[name] += number * of_loads
                    after = self.statement(body, inside)
        return after

    def _repeat(self, node: Any, scope: Scope) -> Scope:
        """Count a while loop. The values that it stores to local scalars are unknown afterwards."""
        turns = self._known_turns(node, scope)
        if turns is None:
            turns = self._execution.turns.get(identity(node))
        if turns is None:
            self.notes.append(f"a while loop was taken for {UNKNOWN_TRIPS:g} iterations")
            turns = UNKNOWN_TRIPS
        inner = scope.with_loop(WHILE, 0, turns, unrolled=False, stores=loops.stored_buffers(node.body))
        known = self._at_its_iteration(node, inner, WHILE)
        self._scalars |= set(loops.carried(node.body))
        for scalar in loops.carried(node.body) if known is None else ():
            inner = inner.with_unknown(scalar, ScalarProgram(node))
        inner = known or inner
        self.count_value(node.condition, inner)
        with self.phase.repeating(turns, self.launch.warp_threads):
            return scope.after(self.statement(node.body, inner), self._scalars)

    def _at_its_iteration(self, node: Any, scope: Scope, step: int) -> Scope | None:
        """The scope in an iteration of a loop, with the values of the local scalars that it stores to.

        None if no known data ends the loop, or if their values are not known.

        Args:
            node: the loop.
            scope: the scope in it, with the values before it.
            step: identity of the variable that numbers its iterations.
        """
        if identity(node) not in self._turns:
            return None
        return _with_results(scope, LoopState(node, step))

    def _known_turns(self, node: Any, scope: Scope) -> float | None:
        """Mean iterations of a loop that a condition ends; None if that depends on unknown data."""
        if not self.memory.tables:
            return None
        if identity(node) not in self._turns:
            try:
                self._turns.update(turns_of(node, scope.chance))
            except UnevaluableError:
                return None
        return self._turns.get(identity(node))

    @property
    def _execution(self) -> Executed:
        """What an execution on the example inputs shows of the loops and branches that data decide."""
        if self._found_execution is None:
            found = execute(self._function, self.launch, self.data.inputs)
            if found.blocks:
                self.add_note(
                    f"how far loops and branches go was found by executing {found.blocks} of "
                    f"{math.prod(self.launch.grid)} blocks on the example inputs"
                )
            self._found_execution = found
        return self._found_execution

    def _executed_share(self, loop: Any) -> float:
        """Share of its iterations that a loop makes before data end it; all of them if that is not known."""
        share = self._execution.shares.get(identity(loop))
        if share is None:
            self.add_note("a loop may end early: all its iterations are charged")
        return 1.0 if share is None else share

    def _trips(self, node: Any, scope: Scope, share: float = 1.0) -> tuple[Trips, float]:
        """The iterations of a loop, as `trips.of_extent` returns them; a guess if they depend on data.

        Args:
            node: the loop.
            scope: the scope around it.
            share: of its iterations, which it makes before it ends early.
        """
        executed = None
        if share < 1 and scope.depends_on(node.extent) & self.launch.thread_variables:
            executed = self._execution.turns.get(identity(node))  # the threads of a warp differ
        try:
            if executed is None:
                found, longest = trips.of_extent(node.extent, scope)
                return trips.product(Trips((share,)), found, self.launch.grid), longest * share
        except UnevaluableError as reason:
            unknown = str(reason)
            executed = self._execution.turns.get(identity(node))
        if executed is not None:
            return Trips((executed,)), 0.0
        return self._guessed_trips(node, scope, unknown)

    def _guessed_trips(self, node: Any, scope: Scope, unknown: str) -> tuple[Trips, float]:
        """The iterations of a loop whose extent depends on `unknown` data."""
        # a producer's loop tells what the consumer's loop, which reads no tensor, is taken for
        key = str(node.extent)
        typical = typical_value(node.extent, scope)
        if typical is not None and typical >= 1:
            self.notes.append(
                f"a loop's extent depends on {unknown}: taken for {typical:.4g} iterations, the mean by "
                "the given data"
            )
            return Trips((typical,)), 0.0
        guess = guessed_trips(node, scope, self.memory) or self._guessed.get(key)
        if guess is not None:
            self._guessed[key] = guess
        taken = (
            f"{UNKNOWN_TRIPS:g} iterations"
            if guess is None
            else f"{guess:.4g} iterations, as if the data divided its tensors evenly"
        )
        self.notes.append(f"a loop's extent depends on {unknown}: taken for {taken}")
        return Trips((guess or UNKNOWN_TRIPS,)), 0.0

    # --- branches -------------------------------------------------------------------------------------------

    def _branch(self, node: Any, scope: Scope) -> Scope:
        from tvm import tirx

        elected = elected_group(node.condition)
        if elected is not None:
            return scope.after(self.statement(node.then_case, scope.with_elected(elected)), self._scalars)
        split = specialised_branches(node, scope)
        if split is not None:
            after = scope
            for body, first, count in split:
                with self._enter_role(first, count):
                    after = after.after(self.statement(body, scope.with_threads(first, count)), self._scalars)
            return after
        # TileLang binds a condition to a variable just before the branch
        known = self._parts
        if self._bound is not None and node.condition.same_as(self._bound[0]):
            known = self._bound[1]
        with self._with_parts(known) as tested:
            self.count_value(node.condition, scope)
        if self._waits_for_local_memory(node.condition):
            self.phase.counts["shared_branches"] += scope.warp_executions
        elif scope.loops and scope.loops[-1].rewrites and stores_to_shared(node):
            waits = waits_of_condition(node.condition, scope.derived)
            # the other warps of the block wait for those that branch
            self.phase.counts["shared_branches"] += scope.warp_executions / scope.warp_share * waits
        after = scope
        has_other = node.else_case is not None
        bodies = [node.then_case, node.else_case] if has_other else [node.then_case]
        phases = [loops.has_phases(body) for body in bodies]
        chance = self._chance_of_first(node) if any(phases) else None
        entered: tuple[Entered | None, Entered | None] = (None, None)
        if scope.is_data(node.condition):
            entered = self._execution.branches.get(identity(node.then_case), entered)
        branches = [_Branch(node.then_case, node.condition, chance, entered[0])]
        if has_other:
            other = None if chance is None else 1 - chance
            branches.append(_Branch(node.else_case, tirx.Not(node.condition), other, entered[1]))
        for branch, has_phases in zip(branches, phases, strict=True):
            # of two branches, none has the results of the other
            own = replace(scope, apart=identity(branch.body)) if has_other else scope
            # the branch has the values of its condition
            known = None if has_phases else tested
            with self._one_of_branches(branch.condition), self._with_parts(known):
                if has_phases:
                    inside = self._taken(branch, own, has_other=has_other)
                else:
                    inside = self._taken_inline(branch, own, has_other=has_other)
            if inside is not None:
                after = after.after(inside, self._scalars)
        return after

    def _chance_of_first(self, node: Any) -> float | None:
        """How often data enter the first branch, as the caller says or if only one of two branches loads.

        The one that loads nothing from device memory, without products and reductions, writes what an empty
        row or an absent token gets, which are rare. None if nothing is known.
        """
        if self.data.density is not None or node.else_case is None:
            return self.data.density
        branches = (node.then_case, node.else_case)
        loading = [loops.loads_globally(branch, self.memory.is_global) for branch in branches]
        if loading[0] == loading[1] or loops.calls(branches[loading.index(False)], loops.MATRIX):
            return None
        return float(loading[0])

    def _waits_for_local_memory(self, condition: Any) -> bool:
        """Whether a condition loads from an array in local memory, for which no loop counts the waits."""
        arrays = self.memory.in_local_memory
        return not self.phase.counts.get("local_waits") and any(
            identity(load.buffer.data) in arrays for load in loads(condition)
        )

    @contextmanager
    def _one_of_branches(self, condition: Any) -> Iterator[None]:
        """A branch around uses of local buffers, or the iterations of unrolled loops that have it."""
        around = (
            self._elements.condition(condition)
            if self._elements.is_static(condition)
            else self._live.branch()
        )
        with around:
            yield

    def _taken(self, branch: _Branch, scope: Scope, *, has_other: bool) -> Scope | None:
        """Count a branch with phases. Returns the scope at its end; None if it is never executed.

        Args:
            branch: the branch.
            scope: the scope before it.
            has_other: whether it is one of two branches.
        """
        condition, density, entered = branch.condition, branch.density, branch.entered
        share = trips.of_condition(condition, scope)
        inside = scope.with_condition(condition) if share is None else scope.with_given(condition)
        if inside is None or (share is not None and not share.largest):
            return None
        if not inside.knows(condition) and entered is not None:
            if not entered.warps:
                return None
            share, inside = Trips((entered.warps,)), inside.in_share_of_lanes(entered.lanes)
        elif not inside.knows(condition):
            if has_other:
                share = trips.of_unknown_condition(condition, scope, density)
                if not share.largest:
                    return None
            elif density is not None:
                share = Trips((density,))
            self._note_data_branch(has_other=has_other and density is None)
        if share is None or share.smallest == 1:
            return self.statement(branch.body, inside)
        with self._nested_phase(share, is_loop=self.phase.is_loop):
            return self.statement(branch.body, inside)

    def _taken_inline(self, branch: _Branch, scope: Scope, *, has_other: bool) -> Scope | None:
        """Count a branch without phases, within the phase around it; arguments and result as for `_taken`."""
        body, condition, entered = branch.body, branch.condition, branch.entered
        inside = scope.with_condition(condition)
        if inside is None or (entered is not None and not entered.warps):
            return None
        if entered is not None:
            inside = inside.in_share_of_warps(entered.warps).in_share_of_lanes(entered.lanes)
        elif not inside.knows(condition) and loops.calls(body, (*loops.MATRIX, *loops.COPIES)):
            self._note_data_branch()
            inside = inside.in_share_of_warps(1.0 if self.data.density is None else self.data.density)
        elif not has_other and is_vote(condition, scope.derived):
            # all threads of the block enter it together, now and then
            inside = inside.in_share_of_warps(VOTED_SHARE if self.data.density is None else self.data.density)
        if not inside.knows(condition):
            count_selected_moves(self, body, scope)
        known = shared_values.is_constant(condition, scope)
        issued_by_all = not (known or has_other) and is_predicated(self, body)
        times = scope.warps / inside.warps if issued_by_all else 1.0
        with self.phase.under_predicate(times, self.launch.warp_threads):
            return self.statement(body, inside)

    def _note_data_branch(self, *, has_other: bool = False) -> None:
        """Report a branch around matrix work or copies whose condition depends on data."""
        density = self.data.density
        if density is not None:
            taken = f"entered in {density:.0%} of the cases"
        else:
            taken = "entered as often as the other one" if has_other else "always entered"
        self.add_note(f"a branch around matrix work or copies depends on data: taken as {taken}")


def _with_results(scope: Scope, program: ScalarProgram, scalars: Iterable[int] | None = None) -> Scope | None:
    """`scope` with what a program gives to local scalars; None if that depends on unknown data.

    Args:
        scope: the scope before the program.
        program: the program.
        scalars: the scalars that get a new value or become unknown; None for those that the program gives.
    """
    try:
        known = program.value(scope.chance)
    except UnevaluableError:
        return None
    found = scope.with_binding(identity(program), program)
    for scalar in known if scalars is None else scalars:
        if scalar in known:
            found = found.with_binding(scalar, ScalarResult(program, scalar))
        else:
            found = found.with_unknown(scalar, program)
    return found
