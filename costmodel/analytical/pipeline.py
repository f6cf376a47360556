"""The time of the phases of a block on a shared core: throughput, dependency chains, finite pipelines."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from ...profile.values import Access, KernelProfile, Phase, Role, Space, Work
from ...target.spec import Target
from .constants import Constants
from .demand import (
    RESOURCES,
    Demand,
    bulk_copies,
    copy_cycles,
    demand,
    is_plain_shared,
    l2_bytes,
    l2_bytes_per_cycle,
    l2_writes_per_cycle,
)
from .fetch import fetch_cycles
from .first_level import first_level_room, fresh_share, held_tables, is_table_load, missing_share
from .norms import p_norm
from .occupancy import Occupancy, registers_limit
from .queueing import round_time
from .spills import (
    array_bytes,
    loaded_beyond_core,
    local_bytes,
    local_footprint,
    local_moves,
    serial_cycles,
)
from .unrolling import iterations_joined

WORDS_AT_ONCE = 128.0  # registers of a thread that straight code fills with loads before it uses the first
# of them for addresses and counters beside live buffers, and words that are always left. Read off the machine
# code of matmuls whose accumulators leave 63 registers: 33 loads before the first store.
ADDRESS_REGISTERS, LEAST_WORDS = 30.0, 32.0
# Of the largest load of an iteration: rows of scales and sums beside tiles, which are 1/16 of one at most.
SMALL_OPERAND = 1 / 8
# Resources that are stations of the queueing network of `Flow` as well: the matrix pipe, and arithmetic. The
# copies of a block use shared memory beside its loads and stores, so that is not among them.
STATIONS = ("matrix", "vector", "special", "issue")
BulkLoad = tuple[Access, float]  # of an iteration, and the blocks of a cluster that receive it
SUPPLY_ROUNDS = 4  # after which the time that blocks wait for copies changes by less than a hundredth
FEW_STEPS = 0.5  # fewer are none, but for rounding
SPECIAL_CYCLES = 20.0  # latency of a special function, from issue to result
# Of a lane exchange, from issue to result. Source: Luo et al., "Benchmarking and Dissecting the Nvidia Hopper
# GPU Architecture via Microbenchmarking", 2024
EXCHANGE_CYCLES = 23.0
# From the store of a value to shared memory to its use by another thread, behind a barrier that is counted by
# itself: the latency of a load from shared memory. Source: as above
SHARED_CYCLES = 33.0
# Latency of a load that hits the first-level cache. A chain of such loads takes 9 cycles a load longer than
# one from shared memory. Source: experiments/copy_latency, an H200
FIRST_LEVEL_CYCLES = 41.0
# Of a branch in which a warp loads a number from shared memory, adds it, and joins its lanes again: the
# latency of the load, and a dozen cycles. 54 kernels of chunk_scan, with 32 to 256 such branches one after
# another, are predicted best with 40 to 50.
BRANCH_CYCLES = 45.0
# Of an address with divisions by constants, which a branch keeps from being computed before: some 45
# instructions, half of which wait for another (machine code of nvcc 13.0). Times of six products of windows
# of volumes by others agree.
ADDRESS_CYCLES = 100.0
# Of an exact division or square root beyond its instructions: a warp begins the next one when it is back
# from the branch to the routine for rare values. For a warp alone, a division takes 62 cycles, and a division
# by one more than an exponential 111 to 130. Source: experiments/exact_functions, an H200
ROUTINE_CYCLES = 45.0
# Threads that arrive at barriers of a core in each cycle. Source: CUDA C++ Programming Guide, throughput of
# `__syncthreads` (compute capability 7 and 8). Of 750 kernels of norms, softmax and recurrent decoding the
# mean error is least with 16, of 16 to 64.
BARRIER_LANES = 16.0
# Share of the warps that advance independently between barriers for such exchanges. 720 kernels of attention
# that decodes, with mma.sync, are predicted equally well with 0.3 to 0.8.
EXCHANGE_OVERLAP = 0.5


# Share of the issue slots of its scheduler that a warp alone fills in kernels without matrix instructions:
# each of its instructions waits for two cycles in the mean, by the stall counts in the machine code of 33
# kernels (norms, softmax, cross-entropy, gemv, rope, silu_mul, quantize, topk_gate; nvcc 13.0; 1.3 to 3.2).
PLAIN_ISSUE_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """The cycles of one iteration of a phase that all resident blocks of a core execute."""

    period: float  # of all resident blocks together
    chain: float  # of one block alone: its dependency chain
    waiting: float  # part of `chain` or of the pipeline bound that is exposed memory latency
    demand: Demand  # of one block
    bound: str  # the largest lower bound of the period
    fill: float = (
        0.0  # from the start of the loop to its first loaded buffer, each time that a block enters it
    )
    spills: float = 0.0  # part of `period` in which registers are spilled and loaded again
    drain: float = 0.0  # from the mean end of the groups of warps of a block to the end of the last one


@dataclass(frozen=True, slots=True)
class Flow:
    """The cycles of one iteration of one block, as a customer of the queueing network of the core's units."""

    # of one group of warps at the matrix pipe, arithmetic, load/store and barriers
    service: tuple[float, ...]
    thinking: float  # latencies during which the group uses no unit
    groups: float  # of warps that advance independently
    latency: float  # part of `thinking` that is exposed memory latency

    @property
    def chain(self) -> float:
        return self.thinking + sum(self.service)

    def together(self, resident: float, contention: float) -> float:
        """The period of one iteration of `resident` blocks."""
        customers = max(1, math.ceil(self.groups * resident))
        return round_time(self.service, self.thinking, customers, contention)

    def drain(self, contention: float) -> float:
        """The cycles that a loop of one block takes beyond its iterations at the period of the block alone.

        The groups begin together, and the slowest unit serves them one after another. So the last group ends
        its first iteration after its own chain and the service of all others, and the other iterations follow
        at the period.
        """
        last = self.chain + (math.ceil(self.groups) - 1) * max(self.service)
        return max(0.0, last - self.together(1, contention))

    def beside(self, resident: float, contention: float, idle: float) -> float:
        """The cycles from start to end of an iteration of a block beside others.

        Each of `resident` blocks waits for `idle` cycles before each iteration, and leaves the units to the
        others. The warps of one block begin together, since they wait for the same copies.
        """
        customers = max(1, math.ceil(self.groups * resident))
        together = round_time(self.service, self.thinking + idle, customers, contention) - idle
        return max(together, self.together(1, contention))


@dataclass(frozen=True, slots=True)
class PhaseParts:
    """The cycles from which the period of a phase follows, of one iteration of all resident blocks."""

    flow: Flow  # of one block
    need: Demand  # of one block, with its share of what the producer needs
    feeding: Phase | None  # the phase of the producer that runs beside it
    together: float  # in which every group of warps of the resident blocks has had its round
    supply: float  # shortest period that loads allow
    spills: float
    rewriting: float  # stores to elements of local arrays that were just stored; they drain beside the rest

    def period(self, resident: float, overlap_norm: float) -> float:
        """Cycles of one iteration."""
        # matrix work cannot continue while its accumulators are spilled
        return p_norm([*self._beside(resident), self.rewriting], overlap_norm) + self.spills

    def local(self, resident: float, overlap_norm: float) -> float:
        """The part of the period in which only local memory is used."""
        return self.period(resident, overlap_norm) - p_norm(self._beside(resident), overlap_norm)

    def _beside(self, resident: float) -> list[float]:
        busy = {r: getattr(self.need, r) * resident for r in RESOURCES}
        # the round of all groups is at least the time of each of its stations, which counts once
        together = max(self.together, *(busy.pop(r) for r in STATIONS))
        return [*busy.values(), together, self.supply]

    def bound(self, resident: float) -> str:
        """The largest lower bound of the period."""
        name, busiest = self.need.largest
        bounds = {
            name: busiest * resident,
            "dependency chain": self.together,
            "load latency": self.supply,
            "spills": self.spills + self.rewriting,
        }
        return max(bounds, key=lambda b: bounds[b])


@dataclass(frozen=True, slots=True)
class SharedSteps:
    """Instructions of all warps in one iteration that store to shared memory beside loads from it."""

    rewritten: float  # loads whose values go to another buffer
    exchanged: float  # loads of values that an iteration stores to the same buffer


def _shared_steps(work: Work) -> SharedSteps:
    """The steps through shared memory of a phase; loads that stand together are one."""
    loads: dict[str, float] = {}
    stores: dict[str, float] = {}
    for access in work.accesses:
        if is_plain_shared(access):
            of = stores if access.write else loads
            of[access.tensor] = of.get(access.tensor, 0.0) + access.instructions / access.in_row
    exchanged = sum(min(count, stores.get(buffer, 0.0)) for buffer, count in loads.items())
    others = sum(max(0.0, count - stores.get(buffer, 0.0)) for buffer, count in loads.items())
    return SharedSteps(min(others, sum(stores.values())), exchanged)


def iterations_ahead(phase: Phase) -> float:
    """Iterations from issuing the copies of a loop to waiting for them."""
    return phase.pipeline_depth - 1.0 if phase.copies_ahead is None else phase.copies_ahead


def iterations_in_flight(phase: Phase) -> int:
    """Iterations of a loop whose loads are in flight together, including the current one."""
    return int(iterations_ahead(phase)) + 1


def latency_cycles(target: Target, waiting_share: float) -> float:
    """Latency of a load from L2 or device memory, weighted by the share that waits for device memory."""
    hit, miss = target["device.memory.l2.latency_ns"], target["device.memory.dram.latency_ns"]
    return (hit + waiting_share * (miss - hit)) * target["core.clock_mhz"] / 1e3


@dataclass(frozen=True)
class CorePipeline:
    """Computes the times of the phases of one kernel on one core of the target."""

    profile: KernelProfile
    target: Target
    constants: Constants
    occupancy: Occupancy
    waiting: Mapping[str, float]  # by tensor, the share of its loads that wait for device memory
    cores_busy: float
    edge_weight: float = 0.0  # as for `demand`

    def phase_time(self, role: Role, phase: Phase, resident: float) -> PhaseTime:
        """Time of a phase if `resident` blocks share the core.

        A consumer's period is bounded by its producer's loads.
        """
        parts = self.parts(role, phase, resident)
        return PhaseTime(
            parts.period(resident, self.constants.overlap_norm),
            parts.flow.chain,
            max(parts.flow.latency, parts.supply - parts.together),
            parts.need,
            parts.bound(resident),
            self._fill(parts.feeding or phase, phase),
            parts.local(resident, self.constants.overlap_norm),
            self._drain(phase, parts.flow),
        )

    def _drain(self, phase: Phase, flow: Flow) -> float:
        """As `Flow.drain`, for loops whose groups advance freely: barriers would join them each iteration."""
        free = phase.is_loop and phase.work.matrix and not phase.work.block_syncs
        return flow.drain(self.constants.contention) if free else 0.0

    def parts(self, role: Role, phase: Phase, resident: float) -> PhaseParts:
        """What the period of a phase follows from if `resident` blocks share the core."""
        need = own = self._demand(phase, role.threads)
        feeding = self._feeding_phase(role, phase)
        if feeding is not None:
            need = need + self._demand(feeding).scaled(1 / self._fed_by(feeding))
        flow = self._flow(role, phase, own, resident)
        rest = None if feeding is None else self._rest_of_iteration(role, phase)
        if feeding is not None and rest is not None:
            supply = self._supply_between(feeding, role, phase, rest, flow, resident)
        else:
            supply = self._supply_bound(feeding or phase, phase, flow, resident)
        if feeding is not None:
            supply = max(supply, self._producer_latency(feeding), self._producer_work(feeding))
        return PhaseParts(
            flow,
            need,
            feeding,
            flow.together(resident, self.constants.contention),
            supply,
            self._spill_cycles(role, phase, resident) * resident,
            self._rewriting_cycles(role, phase) * resident,
        )

    def copies(self, phase: Phase, consumer: Phase) -> list[tuple[float, int]]:
        """Of each group of bulk copies in one iteration of `phase`, which complete on one barrier: the cycles
        from issue to arrival, and the buffers that its copies take in turn.
        """
        groups = _groups(self._bulk_loads(phase), consumer)
        return [(self._bulk_arrival(group), max(1, min(a.slots for a, _ in group))) for group in groups]

    @cached_property
    def _demands(self) -> dict[int, Demand]:
        return {}

    def _demand(self, phase: Phase, threads: int = 0) -> Demand:
        # needed for several numbers of resident blocks; the profile keeps its phases alive, so identities are
        # unique
        if id(phase) not in self._demands:
            self._demands[id(phase)] = demand(
                phase.work,
                self.target,
                self.constants,
                self.cores_busy,
                self.edge_weight,
                threads,
                self.profile.cluster,
            )
        return self._demands[id(phase)]

    def _feeding_phase(self, role: Role, phase: Phase) -> Phase | None:
        """The phase of the producer that runs beside a consumer's phase.

        For a loop this is the loop at the same position or with the same trips. For the first straight phase
        that waits at a barrier it is the first straight phase with bulk copies.
        """
        if role.name != "consumer":
            return None
        producer = [p for r in self.profile.roles if r.name == "producer" for p in r.phases]
        if not phase.is_loop:
            copies = [p for p in producer if not p.is_loop and self._bulk_loads(p)]
            waiting = [p for p in role.phases if not p.is_loop and p.work.barrier_waits]
            return copies[0] if copies and waiting[:1] == [phase] else None
        if not phase.work.barrier_waits:
            return None  # nothing in this loop waits for a producer
        # a loop around others that moves nothing feeds none
        loops = [p for p in producer if p.is_loop and (p.work.accesses or p.work.barrier_waits)]
        mine = [p for p in role.phases if p.is_loop and p.work.barrier_waits]
        position = next(i for i, p in enumerate(mine) if p is phase)
        alike = [p for p in loops if p.trips == phase.trips]
        if len(loops) == len(mine) and (loops[position] in alike or not alike):
            return loops[position]
        return alike[0] if alike else (loops[position] if position < len(loops) else None)

    def _fed_by(self, feeding: Phase) -> int:
        """The number of consumers that a phase of the producer copies for: each has a share of its work."""
        consumers = [r for r in self.profile.roles if r.name == "consumer"]
        fed = sum(any(self._feeding_phase(r, p) is feeding for p in r.phases) for r in consumers)
        return max(1, fed)

    def _role_of(self, phase: Phase) -> Role:
        return next(r for r in self.profile.roles if any(p is phase for p in r.phases))

    def _producer_latency(self, feeding: Phase) -> float:
        """Cycles for which the producer waits, in each iteration, for what it loads without a copy engine.

        Before straight code that copies it may run loops whose loads wait for each other.
        """
        producer = self._role_of(feeding)
        waits = self._synchronous_latency(producer, feeding)
        if not feeding.is_loop:
            position = next(i for i, p in enumerate(producer.phases) if p is feeding)
            waits += sum(
                self._synchronous_latency(producer, p) * p.trips.mean
                for p in producer.phases[:position]
                if p.is_loop and not p.work.barrier_waits
            )
        return waits

    def _producer_work(self, feeding: Phase) -> float:
        """Cycles of an iteration of a producer whose warps compute what they store to shared memory."""
        stores = any(a.space is Space.SHARED and a.mechanism == "st" for a in feeding.work.accesses)
        if not stores or not feeding.is_loop:
            return 0.0
        producer = self._role_of(feeding)
        flow = self._flow(producer, feeding, self._demand(feeding, producer.threads), 1.0)
        return flow.together(1.0, self.constants.contention)

    def _flow(self, role: Role, phase: Phase, own: Demand, resident: float) -> Flow:
        """The service times and latencies of the warps of one of `resident` blocks in one iteration."""
        work, warp = phase.work, self.target["warp.threads"]
        warps = max(1.0, role.threads / warp)
        schedulers = self.target["core.issue_per_cycle"]
        # warps that advance together: those of one matrix instruction, or all warps if barriers join them
        unit = max((m.warps for m in work.matrix), default=1.0)
        groups = max(1.0, warps / unit)
        if work.block_syncs:
            groups = 1.0 + (groups - 1.0) * self._overlap_between_barriers(work)
        spread = min(warps / groups, schedulers)  # schedulers of one group
        depth = warps / groups / spread  # warps of the group on each of them
        # the kinds of arithmetic alternate within a program, so they overlap less than separate units
        arithmetic = p_norm([own.vector, own.issue, own.special], self.constants.arithmetic_norm)
        # a group uses only its own schedulers and their lanes, and dependent instructions leave some of their
        # slots empty
        own_share = schedulers / spread
        issue_share = PLAIN_ISSUE_SHARE if self._is_plain else self.constants.warp_issue_share
        slots = own.issue * own_share / min(1.0, issue_share * depth)
        alone = (
            p_norm(
                [own.vector * own_share, slots, own.special * own_share],
                self.constants.arithmetic_norm,
            )
            / groups
        )
        alone = max(alone, own.issue * schedulers / warps + self._rewriting_latency(role, phase))
        memory = (
            sum(a.transactions for a in work.accesses if a.space is Space.SHARED and a.mechanism != "tma")
            / groups
        )
        thinking = alone - arithmetic / groups
        if unit == 1.0:  # a warp uses only the matrix pipe of its scheduler, a warp group uses all of them
            thinking += own.matrix / groups * (schedulers / spread - 1)
        thinking += self.constants.matrix_drain_cycles * work.matrix_waits
        arriving = role.threads / BARRIER_LANES / groups
        thinking += serial_cycles(role, phase, self.occupancy)
        thinking += (
            self.constants.barrier_wait_cycles * work.barrier_waits
            + max(0.0, self.target["core.sync_cycles"] - arriving) * work.block_syncs
        )
        thinking += self.constants.shuffle_cycles * work.shuffles / max(1.0, role.threads)
        if not work.matrix:  # other warps use the matrix pipe meanwhile, which bounds the time
            thinking += EXCHANGE_CYCLES * work.exchange_steps
        thinking += BRANCH_CYCLES * work.shared_branches / warps
        if self.profile.kind == "cuda":  # HIP's compiler divides without a branch
            thinking += ROUTINE_CYCLES * work.routine_calls / warps
            thinking += fetch_cycles(phase)  # the caches of other makes of GPU are not measured
        thinking += SPECIAL_CYCLES * min(1.0, work.special_ops)
        thinking += self.target["core.unit.matrix.warp_issue_cycles"] * min(
            1.0, sum(m.count for m in work.matrix if m.warps == 1)
        )
        # the warps of a group compute beside the matrix work that they have left in flight
        thinking -= min(work.matrix_in_flight * own.matrix / groups, alone)
        waits = self._synchronous_latency(role, phase, resident) + self._store_latency(phase)
        waits += self._local_latency(role, phase, resident)
        service = (own.matrix / groups, arithmetic / groups, memory, arriving * work.block_syncs)
        return Flow(service, thinking + waits, groups, waits)

    def _overlap_between_barriers(self, work: Work) -> float:
        """Share of the warps that advance independently although barriers join them.

        Barriers that only guard the buffers of asynchronous copies leave the warps free between them: while
        one loads its operands, another one computes. So do barriers for values that the threads exchange, as
        for sums of a row that several warps hold, for a part of the warps. If warps store to shared memory
        what they made of other values in it, the steps follow each other.
        """
        if not work.matrix:
            return 0.0
        one_warp = all(m.warps == 1 for m in work.matrix)
        share = EXCHANGE_OVERLAP if one_warp and _shared_steps(work).rewritten < FEW_STEPS else 0.0
        stored = any(is_plain_shared(a) and a.write for a in work.accesses)
        if not stored and any(a.mechanism == "cp_async" for a in work.accesses):
            share = max(share, self.target.get("core.unit.matrix.barrier_overlap"))
        return share

    def _spill_cycles(self, role: Role, phase: Phase, resident: float) -> float:
        """Cycles of spilled registers and of arrays in local memory in one iteration of one block."""
        moved = self.local_bytes(role, phase)
        if not moved:
            return 0.0
        room = first_level_room(self.profile, self.target, resident)
        footprint = local_footprint(role, phase, self.occupancy) * resident
        alone = moved - array_bytes(phase)  # arithmetic continues beside the accesses to arrays
        parts = local_moves(self.profile, role, phase, self.occupancy)
        beyond = loaded_beyond_core(parts.fresh_loaded, footprint, room) / self._l2_share
        beyond += parts.fresh_stored / self._store_rate  # the first-level cache writes stores through
        return alone / self.target["core.memory.shared.bytes_per_cycle"] + beyond

    def _rewriting_cycles(self, role: Role, phase: Phase) -> float:
        """Cycles in which L2 takes the elements of local arrays that one block stores again at once."""
        moved = local_moves(self.profile, role, phase, self.occupancy)
        return (moved.stored - moved.fresh_stored) / self._store_rate

    @property
    def _store_rate(self) -> float:
        """Bytes a cycle at which L2 takes what one core stores to local memory.

        In kernels with matrix instructions stores drain beside them. Others store all their spills at once.
        """
        if self._is_plain:
            return l2_writes_per_cycle(self.target, self.constants, self.cores_busy)
        return self._l2_share

    @cached_property
    def _is_plain(self) -> bool:
        """Whether the kernel has no matrix instructions."""
        return not any(phase.work.matrix for role in self.profile.roles for phase in role.phases)

    def local_bytes(self, role: Role, phase: Phase) -> float:
        """Bytes of local memory that one iteration of one block stores and loads."""
        return local_bytes(self.profile, role, phase, self.occupancy)

    def _local_latency(self, role: Role, phase: Phase, resident: float) -> float:
        """Cycles for which a warp waits for elements of arrays in local memory, one after another.

        A loop over an array comes to elements that were touched a whole array ago, as in a cyclic walk. What
        the iteration before touched is in the first-level cache.
        """
        each = self.target["warp.threads"] / max(1, role.threads)
        waits = phase.work.local_waits * each
        far = waits - phase.work.near_local_waits * each
        if not waits:
            return 0.0
        footprint = local_footprint(role, phase, self.occupancy) * resident
        beyond_core = missing_share(footprint, first_level_room(self.profile, self.target, resident))
        beyond_l2 = missing_share(footprint * self.cores_busy, self.target["device.memory.l2.bytes"])
        beyond = latency_cycles(self.target, beyond_l2)
        return waits * SHARED_CYCLES + far * beyond_core * max(0.0, beyond - SHARED_CYCLES)

    def _rewriting_latency(self, role: Role, phase: Phase) -> float:
        """Latency of a warp's steps from shared memory through registers and back to shared memory.

        The compiler does not move the loads of a step before the stores of the previous step, which may write
        the same addresses. Loads that stand together arrive together. The latency of values that threads
        exchange, a store and then a load of the same buffer, is that of the load.
        """
        if not phase.work.matrix:
            return 0.0
        steps = _shared_steps(phase.work)
        cycles = steps.rewritten * self.constants.rewrite_cycles + steps.exchanged * SHARED_CYCLES
        return cycles * self.target["warp.threads"] / role.threads

    def _store_latency(self, phase: Phase) -> float:
        """Latency of bulk stores at the end of a block, which waits for the copy engine to read its tile."""
        stored = sum(
            a.bytes
            for a in phase.work.accesses
            if a.space is Space.GLOBAL and a.write and a.mechanism == "tma"
        )
        if phase.is_loop or not stored:
            return 0.0
        return self.constants.copy_start_cycles + stored / self._l2_share

    def _synchronous_latency(self, role: Role, phase: Phase, resident: float = 1.0) -> float:
        """Latency of loads that the next instructions wait for: one round trip a group issued together.

        The compiler unrolls loops that have only such loads, to the pipeline depth of the profile. Without
        matrix work, a round trip to a sector that the loop loaded before ends at the first-level cache.
        """
        loads = [
            a for a in phase.work.accesses if a.space is Space.GLOBAL and not a.write and not a.asynchronous
        ]
        if not loads:
            return 0.0
        overlapped = (
            phase.is_loop and not phase.work.matrix and not any(a.asynchronous for a in phase.work.accesses)
        )
        warps = max(1.0, role.threads / self.target["warp.threads"])
        # a warp that loads for others waits for all of it
        held = sum(_of_one_warp(a, warps) * max(1.0, a.vector_bytes / 4) for a in loads)
        turns = max(_loading_share(loads, warps), held / self._words_at_once(role, phase))
        joined = 1.0
        if overlapped:
            joined = iterations_joined(phase, role.threads, self.target["warp.threads"])
            turns = 1 / joined
        # warps that a condition on the thread leaves out wait for nothing
        active = warps * max(a.warp_share for a in loads)
        turns = max(turns, phase.work.load_branches / active)
        stored = sum(a.bytes for a in phase.work.accesses if a.space is Space.SHARED and a.mechanism == "st")
        used = max(
            0.0, 1 - stored / max(1.0, sum(a.bytes for a in loads))
        )  # data that only moves to shared memory is not used yet
        # what the lanes of a block load again comes from the cache of the core, at once
        room = first_level_room(self.profile, self.target, resident)
        fresh = moved = away = 0.0
        of_tables = [a for a in loads if is_table_load(a)]
        held_in_cache = held_tables(self.profile, self.target, resident) if of_tables else {}
        of_tables = [a for a in of_tables if a.tensor in held_in_cache]
        others = [a for a in loads if a not in of_tables]
        for access in others:
            mine = _of_one_warp(access, warps)
            new = 1.0 if phase.work.matrix else fresh_share(access, 1.0, resident, room)
            fresh += mine * min(1.0, access.footprint_bytes / max(1.0, access.bytes)) * new
            moved += l2_bytes(access) * new
            each_trip = max(1.0, mine) * joined
            away = max(away, new, fresh_share(access, each_trip, resident, room))
        each = used * fresh
        arrival = away * self._arrival(others, 0.0) + (1 - away) * FIRST_LEVEL_CYCLES
        far = min(turns, _loading_share(others, warps)) if others else 0.0
        near = min(turns - far, sum(_of_one_warp(a, warps) for a in of_tables))
        addresses = ADDRESS_CYCLES * phase.work.divided_addresses / warps
        trips = near * FIRST_LEVEL_CYCLES + (turns - near) * arrival
        # the first loads are used while the last ones arrive
        return addresses + trips + max(self.constants.load_cycles * each, moved / self._l2_share)

    def _words_at_once(self, role: Role, phase: Phase) -> float:
        """Registers of a thread that straight code fills with loads before it uses the first.

        Beside matrix work these are the registers that live buffers and addresses leave.
        """
        if not phase.work.matrix:
            return WORDS_AT_ONCE
        limit = role.registers_limit or registers_limit(self.profile, self.target)
        left = limit - role.local_registers - ADDRESS_REGISTERS
        return max(LEAST_WORDS, left)

    def _held_cycles(self, flow: Flow, phase: Phase, together: float, operands: int) -> float:
        """Cycles for which an iteration of `together` cycles occupies the buffers that were loaded for it.

        Each of several products occupies its own buffers for its part of the iteration; with more products
        than `operands`, the tiles that are loaded, one of the last products reads a tile of the first, too. A
        single group of warps releases a buffer once its matrix instructions have read it. Several groups
        occupy it one after another.
        """
        work = phase.work
        if work.matrix_in_flight:  # it reads its buffers until the iteration ends; other work came before
            return together - (1.0 - work.matrix_in_flight) * flow.service[0] * flow.groups
        if phase.held_share is not None:
            return together * phase.held_share
        products = max(1.0, min(work.barrier_waits, work.matrix_waits))
        if work.matrix_waits > operands > 1:  # some of them are operands of a product at the end, too
            return together
        if products == 1.0 or flow.groups > 1 or not flow.chain:
            return together / products
        reading = flow.service[0] + self.constants.matrix_drain_cycles * work.matrix_waits
        return together / products * min(1.0, reading / flow.chain)

    def _supply_bound(self, phase: Phase, consumer: Phase, flow: Flow, resident: float) -> float:
        """The shortest period that asynchronous loads allow; 0 if there are none.

        A buffer slot is occupied from the issue of its copy until its consumer releases it. Each group of
        copies, which complete on one barrier, has a limited number of slots. While a block waits for its
        copies, it leaves the units to other blocks, and their iterations are shorter.
        """
        if not phase.is_loop:
            return 0.0
        rings = self.copies(phase, consumer)
        grouped, ahead = self.grouped_arrival(phase), iterations_ahead(phase)
        operands = _operands(self._bulk_loads(phase))
        period = idle = 0.0
        for _ in range(SUPPLY_ROUNDS if rings or grouped else 0):
            iteration = flow.beside(resident, self.constants.contention, idle)
            held = self._held_cycles(flow, consumer, iteration, operands)
            bounds = [(arrival + held) / slots for arrival, slots in rings]
            if grouped:
                # less than an iteration ahead, copies arrive while a part of it is computed
                exposed = iteration + grouped - ahead * iteration
                bounds.append(grouped / ahead if ahead >= 1 else exposed)
            period = max(bounds)
            idle = max(0.0, period - iteration)
        return period

    def _rest_of_iteration(self, role: Role, phase: Phase) -> list[Phase] | None:
        """The phases after the inner loop of an outer loop, if `phase` is code of that loop around it.

        A block that computes several tiles runs through its main loop once a tile. Code before and after it
        has phases with the trips of the outer loop. The profile does not tell nested loops from loops one
        after another: a loop between two shorter ones of equal trips is taken for an inner loop.
        """
        if role.name != "consumer" or not phase.is_loop:
            return None
        around = [i for i, p in enumerate(role.phases) if p.is_loop and p.trips == phase.trips]
        inside = [p for p in role.phases[around[0] : around[-1]] if p.is_loop]
        if not any(p.trips.mean > phase.trips.mean for p in inside):
            return None
        last = max(i for i in range(around[-1]) if role.phases[i].trips.mean > phase.trips.mean)
        return [role.phases[i] for i in around if i > last]

    def _supply_between(
        self, loading: Phase, role: Role, phase: Phase, rest: Sequence[Phase], flow: Flow, resident: float
    ) -> float:
        """As `_supply_bound`, for code of an outer loop around its inner loop.

        The producer copies ahead, beyond the end of a tile. A ring of buffers that the inner loop uses, too,
        has this code's data in time, as soon as it has those of the loop. A single buffer before the inner
        loop is free once the loop has used it: its copy arrives during the code after the loop.

        Args:
            loading: the phase of the producer beside `phase`.
            role: of `phase`.
            phase: the phase.
            rest: the phases of `role` after the inner loop.
            flow: of `phase`.
            resident: blocks of the core.
        """
        together = flow.together(resident, self.constants.contention)
        if any(p is phase for p in rest):
            return together
        after = sum(
            self._flow(role, p, self._demand(p, role.threads), resident).together(
                resident, self.constants.contention
            )
            for p in rest
        )
        single = [arrival for arrival, slots in self.copies(loading, phase) if slots == 1]
        return together + max(0.0, max(single, default=0.0) - after)

    def _fill(self, phase: Phase, consumer: Phase) -> float:
        """Cycles until the first iteration of a loop, or a straight phase with copies, has its data."""
        loads = self._bulk_loads(phase) if phase.is_loop or consumer.work.barrier_waits else []
        grouped = phase.is_loop or consumer.work.block_syncs
        return max(
            self._bulk_arrival(loads) if loads else 0.0, self.grouped_arrival(phase) if grouped else 0.0
        )

    def _bulk_loads(self, phase: Phase) -> list[BulkLoad]:
        copies = bulk_copies(phase.work, self.profile.cluster)
        return [(a, receivers) for a, receivers in copies if a.asynchronous and not a.write]

    def _bulk_arrival(self, group: Sequence[BulkLoad]) -> float:
        """Cycles from the issue of a group of bulk copies to the wake-up of the waiting threads."""
        engine = sum(copy_cycles(a, self.constants, self.edge_weight) * n for a, n in group)
        transfer = sum(a.bytes * n for a, n in group) / self._l2_share
        waiting = self._waiting([a for a, _ in group]) * self.constants.copy_miss_factor
        start = self.constants.copy_start_cycles
        if max(n for _, n in group) > 1:  # the other blocks report first that they have read the buffer
            start += self.target["cluster.network.latency_cycles"]
        return start + latency_cycles(self.target, waiting) + max(transfer, engine)

    def grouped_arrival(self, phase: Phase) -> float:
        """Cycles until copies arrive that threads issue in groups (cp.async); 0 if there are none."""
        copies = [a for a in phase.work.accesses if a.mechanism == "cp_async" and a.space is Space.GLOBAL]
        return self._arrival(copies, sum(map(l2_bytes, copies))) if copies else 0.0

    def _arrival(self, group: Sequence[Access], moved: float) -> float:
        return latency_cycles(self.target, self._waiting(group)) + moved / self._l2_share

    def _waiting(self, group: Sequence[Access]) -> float:
        """Share of the round trips of loads issued together that last as long as one to device memory.

        The slowest of them counts, so it is that of the tensor with the largest share.
        """
        return max((self.waiting.get(a.tensor, 0.0) for a in group), default=0.0)

    @property
    def _l2_share(self) -> float:
        return l2_bytes_per_cycle(self.target, self.constants, self.cores_busy)


def _operands(loads: Sequence[BulkLoad]) -> int:
    """The number of bulk loads of an iteration that are not small beside the largest one."""
    sizes = [a.bytes for a, _ in loads]
    return sum(size >= max(sizes) * SMALL_OPERAND for size in sizes)


def _loading_share(loads: Sequence[Access], warps: float) -> float:
    """Share of the iterations that load at all: less than one if loads stand under a rare condition.

    A block that stays loads what it needs at the end of a tile in one of the iterations of the tile. One lane
    that loads alone may load for all warps.
    """
    return min(
        1.0,
        max(a.instructions / (max(1.0, warps * a.warp_share) if _lanes(a) > 1 else 1.0) for a in loads),
    )


def _lanes(access: Access) -> float:
    return access.bytes / max(1e-9, access.instructions * access.vector_bytes)


def _of_one_warp(access: Access, warps: float) -> float:
    """Instructions of an access that one warp executes, of those warps that execute any."""
    return access.instructions / max(1.0, warps * access.warp_share)


def _groups(loads: list[BulkLoad], consumer: Phase) -> list[list[BulkLoad]]:
    """Bulk loads in groups by barrier: one group if the consumer waits once an iteration, else one a load."""
    if consumer.work.barrier_waits > 1:
        return [[load] for load in loads]
    return [loads] if loads else []


__all__ = ["CorePipeline", "PhaseParts", "PhaseTime", "iterations_in_flight", "latency_cycles"]
