"""The time of a block's phases on a core that it shares with others: throughput, dependency chains, finite pipelines."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..profile import Access, KernelProfile, Phase, Role, Space, Work
from ..target import Target
from .constants import Constants
from .demand import RESOURCES, Demand, demand, l2_bytes_per_cycle, sector_bytes
from .occupancy import Occupancy

FEW_REGISTERS = 8.0  # spilled without touching a matrix instruction's accumulators
SPECIAL_CYCLES = 20.0  # one special function, issue to result


@dataclass(frozen=True, slots=True)
class PhaseTime:
    """One iteration of a phase with all resident blocks of a core taking part, in cycles."""

    period: float  # of one iteration of all resident blocks together
    chain: float  # of one block alone, dependencies only
    waiting: float  # part of `chain` or of the pipeline bound that is exposed memory latency
    demand: Demand  # of one block
    bound: str  # what sets the period


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

    def phase_time(self, role: Role, phase: Phase, resident: float) -> PhaseTime:
        """`resident` blocks share the core. For a consumer the producer's loads bound the period by their slots."""
        need = demand(phase.work, self.target, self.constants, self.cores_busy)
        feeding = self._feeding_phase(role, phase)
        if feeding is not None:
            need = need + demand(feeding.work, self.target, self.constants, self.cores_busy)
        chain, waiting = self._chain(role, phase, need)
        spill = self._spill_cycles(role, phase)
        supply = self._supply_bound(feeding or phase, chain)
        name, busiest = need.largest
        bounds = {name: busiest * resident, "dependency chain": chain, "load latency": supply, "spills": spill * resident}
        period = p_norm([*(getattr(need, r) * resident for r in RESOURCES), chain, supply], self.constants.overlap_norm)
        # matrix work cannot go on while its accumulators are away
        period += spill * resident
        bound = max(bounds, key=lambda b: bounds[b])
        return PhaseTime(period, chain, max(waiting, supply - chain), need, bound)

    def _feeding_phase(self, role: Role, phase: Phase) -> Phase | None:
        """The producer's loop that runs beside this loop of a consumer: the one with the same trip count."""
        if role.name != "consumer" or not phase.is_loop:
            return None
        loops = [p for r in self.profile.roles if r.name == "producer" for p in r.phases if p.is_loop]
        mine = [p for p in role.phases if p.is_loop]
        position = mine.index(phase)
        return loops[position] if position < len(loops) else None

    def _chain(self, role: Role, phase: Phase, need: Demand) -> tuple[float, float]:
        """Cycles of one iteration of one block alone, and how many of them wait for memory."""
        work = phase.work
        warps = max(1.0, role.threads / self.target["warp.threads"])
        schedulers = self.target["core.issue_per_cycle"]
        # arithmetic of one warp group at a time: groups of four warps fill the schedulers once each
        groups = max(1.0, warps / schedulers)
        alone = max(need.vector, need.issue / min(1.0, self.constants.warp_issue_share * max(1.0, warps / schedulers)), need.special)
        independent = groups if not work.block_syncs else 1.0
        # groups that are not tied by block barriers overlap one's matrix work with another's arithmetic
        matrix = need.matrix + self.constants.matrix_drain_cycles * work.matrix_waits
        serial = (matrix / groups + alone / independent) if independent > 1 else matrix + alone
        own_shared = (
            sum(a.transactions for a in work.accesses if a.space is Space.SHARED and a.mechanism != "tma") if not work.matrix_waits else 0.0
        )
        serial += own_shared
        serial += self.constants.barrier_wait_cycles * work.barrier_waits + self.target["core.sync_cycles"] * work.block_syncs
        serial += self.constants.shuffle_cycles * work.shuffles / max(1.0, role.threads) + SPECIAL_CYCLES * min(1.0, work.special_ops)
        serial += self.target["core.unit.matrix.warp_issue_cycles"] * min(1.0, sum(m.count for m in work.matrix if m.warps == 1))
        waits = self._synchronous_latency(work)
        return serial + waits, waits

    def _spill_cycles(self, role: Role, phase: Phase) -> float:
        """Cycles that spilled registers cost one iteration: stored and loaded once each.

        A few find a place outside the loop or in L1. More of them mean accumulators of a wgmma, which ptxas spills by
        whole fragments (n/2 registers a thread), never in part.
        """
        short = self.occupancy.spilled.get(role.name, 0.0)
        if not short or not phase.is_loop:
            return 0.0
        if short <= FEW_REGISTERS:
            return 2 * 4 * short * role.threads / self.target["core.memory.shared.bytes_per_cycle"]
        widths = [int(m.instruction.split("n")[1].split("k")[0]) for m in phase.work.matrix if m.instruction.startswith("wgmma.")]
        fragment = max(widths, default=0) / 2
        registers = math.ceil(short / fragment) * fragment if fragment else short
        return 2 * 4 * registers * role.threads / self.constants.spill_bytes_per_cycle

    def _synchronous_latency(self, work: Work) -> float:
        """Latency of loads that the next instruction waits for: one round trip for each group that is issued together."""
        loads = [a for a in work.accesses if a.space is Space.GLOBAL and not a.write and not a.asynchronous]
        if not loads:
            return 0.0
        transfer = sum(sector_bytes(a) for a in loads) / l2_bytes_per_cycle(self.target, self.constants, self.cores_busy)
        return latency_cycles(self.target, self.miss_share) + transfer

    def _supply_bound(self, phase: Phase, chain: float) -> float:
        """Least period that asynchronous loads allow: a slot is busy from the issue of its copy until its consumer lets
        go, and each group of copies has only so many slots."""
        bulk = [a for a in phase.work.accesses if a.space is Space.GLOBAL and a.asynchronous and not a.write and a.mechanism == "tma"]
        bounds = [self._slot_period(a, chain) for a in bulk] if phase.is_loop else []
        grouped = [a for a in phase.work.accesses if a.mechanism == "cp_async" and a.space is Space.GLOBAL]
        if grouped and phase.is_loop:
            moved = sum(sector_bytes(a) for a in grouped)
            arrival = latency_cycles(self.target, self.miss_share) + moved / l2_bytes_per_cycle(
                self.target, self.constants, self.cores_busy
            )
            bounds.append(arrival / max(1, phase.pipeline_depth - 1) if phase.pipeline_depth > 1 else arrival + chain)
        return max(bounds, default=0.0)

    def _slot_period(self, access: Access, chain: float) -> float:
        arrival = (
            latency_cycles(self.target, self.miss_share)
            + self.constants.copy_start_cycles
            + access.bytes / l2_bytes_per_cycle(self.target, self.constants, self.cores_busy)
        )
        # of an iteration, a group's slot is held for its share of the matrix work that reads it
        groups = max(1, len({a.tensor for a in self._bulk_loads()}))
        return (arrival + chain / groups) / max(1, access.slots)

    def _bulk_loads(self) -> list[Access]:
        return [
            a
            for r in self.profile.roles
            for p in r.phases
            if p.is_loop
            for a in p.work.accesses
            if a.space is Space.GLOBAL and a.mechanism == "tma" and not a.write
        ]


def p_norm(values: list[float], power: float) -> float:
    """(sum of v^p)^(1/p): the maximum, raised a little where others come close to it."""
    top = max(values, default=0.0)
    if top <= 0:
        return 0.0
    return float(top * sum((v / top) ** power for v in values) ** (1 / power))


__all__ = ["CorePipeline", "PhaseTime", "latency_cycles", "p_norm"]
