"""The time of a block's phases on a core that it shares with others: throughput, dependency chains, finite pipelines."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

from ..profile import Access, KernelProfile, Phase, Role, Space
from ..target import Target
from .constants import Constants
from .demand import RESOURCES, Demand, copy_cycles, demand, is_plain_shared, l2_bytes_per_cycle, sector_bytes
from .occupancy import Occupancy
from .queueing import round_time
from .spills import share_beyond_core, spilled_bytes, spilled_registers

WORDS_AT_ONCE = 128.0  # of a thread's registers, what straight code fills with loads before it uses the first
SPECIAL_CYCLES = 20.0  # one special function, issue to result


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One iteration of a phase with all resident blocks of a core taking part, in cycles."""

    period: float  # of one iteration of all resident blocks together
    chain: float  # of one block alone, dependencies only
    waiting: float  # part of `chain` or of the pipeline bound that is exposed memory latency
    demand: Demand  # of one block
    bound: str  # what sets the period
    fill: float = 0.0  # cycles from entering the loop to the first loaded slot, once each time that a block enters it


@dataclass(frozen=True, slots=True)
class _Flow:
    """One iteration of one block, as a customer of the core's units sees it, in cycles."""

    service: tuple[float, ...]  # of one group of warps: matrix pipe, arithmetic, load/store
    thinking: float  # latencies that the group waits for by itself
    groups: float  # of warps that go their own ways
    latency: float  # part of `thinking` that is exposed memory latency

    @property
    def chain(self) -> float:
        return self.thinking + sum(self.service)

    def together(self, resident: float, contention: float) -> float:
        """Period of one iteration of `resident` blocks."""
        customers = max(1, math.ceil(self.groups * resident))
        return round_time(self.service, self.thinking, customers, contention)


def latency_cycles(target: Target, miss_share: float) -> float:
    """Load to use from beyond the core: L2 hit or device memory, weighted by how often L2 misses."""
    hit, miss = target["device.memory.l2.latency_ns"], target["device.memory.dram.latency_ns"]
    return (hit + miss_share * (miss - hit)) * target["core.clock_mhz"] / 1e3


@dataclass(frozen=True)
class CorePipeline:
    """Times phases of one kernel on one core of the target."""

    profile: KernelProfile
    target: Target
    constants: Constants
    occupancy: Occupancy
    miss_share: float
    cores_busy: float
    edge_weight: float = 0.0  # see `demand`

    def phase_time(self, role: Role, phase: Phase, resident: float) -> PhaseTime:
        """`resident` blocks share the core. For a consumer the producer's loads bound the period by their slots."""
        need = own = self._demand(phase, role.threads)
        feeding = self._feeding_phase(role, phase)
        if feeding is not None:
            need = need + self._demand(feeding)
        flow = self._flow(role, phase, own)
        spill = self._spill_cycles(role, phase, resident)
        together = flow.together(resident, self.constants.contention)
        supply = self._supply_bound(feeding or phase, phase, together, self._held_cycles(flow, phase, together))
        name, busiest = need.largest
        bounds = {name: busiest * resident, "dependency chain": together, "load latency": supply, "spills": spill * resident}
        period = p_norm([*(getattr(need, r) * resident for r in RESOURCES), together, supply], self.constants.overlap_norm)
        # matrix work cannot go on while its accumulators are away
        period += spill * resident
        bound = max(bounds, key=lambda b: bounds[b])
        return PhaseTime(period, flow.chain, max(flow.latency, supply - together), need, bound, self._fill(feeding or phase, phase))

    @cached_property
    def _demands(self) -> dict[int, Demand]:
        return {}

    def _demand(self, phase: Phase, threads: int = 0) -> Demand:
        # asked for several numbers of resident blocks: the profile keeps its phases alive, so their identities hold
        if id(phase) not in self._demands:
            self._demands[id(phase)] = demand(phase.work, self.target, self.constants, self.cores_busy, self.edge_weight, threads)
        return self._demands[id(phase)]

    def _feeding_phase(self, role: Role, phase: Phase) -> Phase | None:
        """The producer's phase that runs beside this one of a consumer: the loop with the same trip count; outside of loops the
        first copies, beside the first phase that waits at a barrier."""
        if role.name != "consumer":
            return None
        producer = [p for r in self.profile.roles if r.name == "producer" for p in r.phases]
        if not phase.is_loop:
            copies = [p for p in producer if not p.is_loop and _bulk_loads(p)]
            waiting = [p for p in role.phases if not p.is_loop and p.work.barrier_waits]
            return copies[0] if copies and waiting[:1] == [phase] else None
        loops, mine = ([p for p in phases if p.is_loop] for phases in (producer, role.phases))
        position = next(i for i, p in enumerate(mine) if p is phase)
        if len(loops) == len(mine):
            return loops[position]
        alike = [p for p in loops if p.trips == phase.trips]
        return alike[0] if alike else (loops[position] if position < len(loops) else None)

    def _flow(self, role: Role, phase: Phase, own: Demand) -> _Flow:
        """How the warps of one block go through one iteration: what they use in turn, and what they wait for."""
        work, warp = phase.work, self.target["warp.threads"]
        warps = max(1.0, role.threads / warp)
        schedulers = self.target["core.issue_per_cycle"]
        # warps that advance together: those of one matrix instruction, or all where barriers tie them
        unit = max((m.warps for m in work.matrix), default=1.0)
        groups = 1.0 if work.block_syncs else max(1.0, warps / unit)
        spread = min(warps / groups, schedulers)  # schedulers that one group can use
        depth = warps / groups / spread  # its warps on each of them
        # kinds of arithmetic alternate in one program: they overlap less than different units do
        arithmetic = p_norm([own.vector, own.issue, own.special], self.constants.arithmetic_norm)
        # alone, a group uses only its own schedulers, and dependent instructions leave some of their slots empty
        slots = own.issue * schedulers / spread / min(1.0, self.constants.warp_issue_share * depth)
        alone = p_norm([own.vector, slots, own.special], self.constants.arithmetic_norm) / groups
        alone = max(alone, own.issue * schedulers / warps + self._rewriting_latency(role, phase))
        memory = sum(a.transactions for a in work.accesses if a.space is Space.SHARED and a.mechanism != "tma") / groups
        thinking = alone - arithmetic / groups
        if unit == 1.0:  # a warp uses the matrix pipe of its own scheduler only; a warp group those of all
            thinking += own.matrix / groups * (schedulers / spread - 1)
        thinking += self.constants.matrix_drain_cycles * work.matrix_waits
        thinking += self.constants.barrier_wait_cycles * work.barrier_waits + self.target["core.sync_cycles"] * work.block_syncs
        thinking += self.constants.shuffle_cycles * work.shuffles / max(1.0, role.threads) + SPECIAL_CYCLES * min(1.0, work.special_ops)
        thinking += self.target["core.unit.matrix.warp_issue_cycles"] * min(1.0, sum(m.count for m in work.matrix if m.warps == 1))
        waits = self._synchronous_latency(role, phase) + self._store_latency(phase)
        return _Flow((own.matrix / groups, arithmetic / groups, memory), thinking + waits, groups, waits)

    def _spill_cycles(self, role: Role, phase: Phase, resident: float) -> float:
        """Cycles that spilled registers cost one iteration of one block."""
        moved = self.spilled_bytes(role, phase)
        if not moved:
            return 0.0
        # one memory holds both on NVIDIA's parts; elsewhere the target may say what the cache has
        both = self.target["core.memory.shared.bytes"] - self.profile.shared_bytes * resident if self.profile.kind == "cuda" else 0.0
        room = self.target.get("core.memory.l1.bytes", both)
        registers = spilled_registers(role, phase, self.occupancy)
        beyond = moved * share_beyond_core(registers, role.threads * resident, room)
        return moved / self.target["core.memory.shared.bytes_per_cycle"] + beyond / self._l2_share

    def spilled_bytes(self, role: Role, phase: Phase) -> float:
        """Bytes of local memory that one iteration of one block stores and loads."""
        return spilled_bytes(self.profile, role, phase, self.occupancy)

    def _rewriting_latency(self, role: Role, phase: Phase) -> float:
        """Latency of a warp's steps from shared memory through registers and back: the compiler does not move a step's loads
        before the stores of the one before it, which might write what they read."""
        if not phase.work.matrix:
            return 0.0
        plain = [a for a in phase.work.accesses if is_plain_shared(a)]
        loads, stores = (sum(a.instructions for a in plain if a.write == write) for write in (False, True))
        return min(loads, stores) * self.target["warp.threads"] / role.threads * self.constants.rewrite_cycles

    def _store_latency(self, phase: Phase) -> float:
        """A block that has stored its tile by bulk copies waits until the engine has read all of it."""
        stored = sum(a.bytes for a in phase.work.accesses if a.space is Space.GLOBAL and a.write and a.mechanism == "tma")
        if phase.is_loop or not stored:
            return 0.0
        return self.constants.copy_start_cycles + stored / self._l2_share

    def _synchronous_latency(self, role: Role, phase: Phase) -> float:
        """Latency of loads that the next instructions wait for: one round trip for each group that is issued together.
        A loop of nothing but such loads is unrolled by the compiler, as deep as the reader says."""
        loads = [a for a in phase.work.accesses if a.space is Space.GLOBAL and not a.write and not a.asynchronous]
        if not loads:
            return 0.0
        overlapped = phase.is_loop and not any(a.asynchronous for a in phase.work.accesses)
        held = sum(a.instructions * max(1.0, a.vector_bytes / 4) for a in loads) * self.target["warp.threads"] / max(1.0, role.threads)
        turns = 1 / phase.pipeline_depth if overlapped else max(1.0, held / WORDS_AT_ONCE)
        stored = sum(a.bytes for a in phase.work.accesses if a.space is Space.SHARED and a.mechanism == "st")
        used = max(0.0, 1 - stored / max(1.0, sum(a.bytes for a in loads)))  # what only goes on to shared memory is not used yet
        each = used * sum(a.instructions for a in loads) * self.target["warp.threads"] / max(1.0, role.threads)
        # the first are used while the last still arrive
        return turns * self._arrival(0.0) + max(self.constants.load_cycles * each, sum(sector_bytes(a) for a in loads) / self._l2_share)

    def _held_cycles(self, flow: _Flow, phase: Phase, together: float) -> float:
        """For how long an iteration of `together` cycles needs what was loaded for it: each product its own part of it. One
        group of warps lets go once its matrix instructions have read a tile; several hold it one after the other."""
        work = phase.work
        products = max(1.0, min(work.barrier_waits, work.matrix_waits))
        if products == 1.0 or flow.groups > 1 or not flow.chain:
            return together / products
        reading = flow.service[0] + self.constants.matrix_drain_cycles * work.matrix_waits
        return together / products * min(1.0, reading / flow.chain)

    def _supply_bound(self, phase: Phase, consumer: Phase, together: float, held: float) -> float:
        """Least period that asynchronous loads allow: a slot is busy from the issue of its copy until its consumer lets
        go, `held` cycles after its arrival, and each group of copies has only so many slots. What waits at one barrier is
        one group."""
        if not phase.is_loop:
            return 0.0
        bounds = [(self._bulk_arrival(g) + held) / max(1, min(a.slots for a in g)) for g in _groups(phase, consumer)]
        grouped = self._grouped_arrival(phase)
        if grouped:
            bounds.append(grouped / max(1, phase.pipeline_depth - 1) if phase.pipeline_depth > 1 else grouped + together)
        return max(bounds, default=0.0)

    def _fill(self, phase: Phase, consumer: Phase) -> float:
        """Cycles until the first iteration of a loop, or a phase outside of loops that waits for copies, has its data."""
        loads = _bulk_loads(phase) if phase.is_loop or consumer.work.barrier_waits else []
        grouped = phase.is_loop or consumer.work.block_syncs
        return max(self._bulk_arrival(loads) if loads else 0.0, self._grouped_arrival(phase) if grouped else 0.0)

    def _bulk_arrival(self, group: list[Access]) -> float:
        """Cycles from the issue of a group of bulk copies to the wake-up of who waits for them."""
        engine = sum(copy_cycles(a, self.constants, self.edge_weight) for a in group)
        return self.constants.copy_start_cycles + max(self._arrival(sum(a.bytes for a in group)), self._arrival(0.0) + engine)

    def _grouped_arrival(self, phase: Phase) -> float:
        """The same for copies that threads issue in groups (cp.async); 0 where there are none."""
        moved = sum(sector_bytes(a) for a in phase.work.accesses if a.mechanism == "cp_async" and a.space is Space.GLOBAL)
        return self._arrival(moved) if moved else 0.0

    def _arrival(self, moved: float) -> float:
        return latency_cycles(self.target, self.miss_share) + moved / self._l2_share

    @property
    def _l2_share(self) -> float:
        return l2_bytes_per_cycle(self.target, self.constants, self.cores_busy)


def _groups(phase: Phase, consumer: Phase) -> list[list[Access]]:
    """Bulk loads by the barrier that they complete on: all together where the consumer waits once an iteration."""
    loads = _bulk_loads(phase)
    if consumer.work.barrier_waits > 1:
        return [[a] for a in loads]
    return [loads] if loads else []


def _bulk_loads(phase: Phase) -> list[Access]:
    return [a for a in phase.work.accesses if a.space is Space.GLOBAL and a.asynchronous and not a.write and a.mechanism == "tma"]


def p_norm(values: list[float], power: float) -> float:
    """(sum of v^p)^(1/p): the maximum, raised a little where others come close to it."""
    top = max(values, default=0.0)
    if top <= 0:
        return 0.0
    return float(top * sum((v / top) ** power for v in values) ** (1 / power))


__all__ = ["CorePipeline", "PhaseTime", "latency_cycles", "p_norm"]
