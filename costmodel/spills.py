"""What registers that do not fit cost: how many are spilled, how often, and where their bytes go.

Built, a kernel tells the first: ptxas prints the bytes of all spilling loads and stores of a thread's code, each counted
once. How often they run depends on where they stand. Held against the local-memory counters of 66 spilling kernels of an
H200:

- Where the buffers of the loop nearly fill the registers, they stand in the loop, and it runs all of them (attention,
  de-quantising: 0.8 to 1.0 of them an iteration).
- A loop that only issues matrix instructions runs less than half of them: the rest is before and after it (matmuls).
- Where registers are left, the compiler spills what the loop does not touch, and all run once a block.

Before it is built, the IR says how many registers a role lacks. They are spilled one by one, but where an iteration has two
products: there the accumulators of one make room for those of the other, by whole fragments (n/2 registers a thread). The
first product's moves about twice, once for what waits and once for what is computed from it (ptxas reports of 135 attention
kernels, nine pairs of accumulators: the mean of each pair within a factor of two, single kernels within 2.6).

Where the bytes go, the same counters say: the first-level cache writes stores through, so half of the bytes reach L2; loads
follow as far as the spilled registers of all resident threads outgrow what shared memory leaves of that cache.
"""

from __future__ import annotations

from ..profile import KernelProfile, Phase, Role, Work
from .occupancy import Occupancy, spilling_role

NEARLY_FULL = 0.78  # need of the live buffers over the register limit, from which spills stand in the loop
FEW_BYTES = 24  # so few are addresses and counters, which the compiler moves out of the loop
FEW_REGISTERS = 12.0  # spilled without touching a matrix instruction's accumulators
LOOP_SHARE = 0.85  # of all spilling instructions, those that one iteration runs
MATRIX_LOOP_SHARE = 0.4  # the same for a loop that only issues matrix instructions
ROUND_TRIP_BYTES = 8  # of a register that is stored once and loaded once


def spilled_registers(role: Role, phase: Phase, occupancy: Occupancy) -> float:
    """Registers per thread that leave and come back in one iteration of `phase`, or anywhere where the compiler told."""
    if occupancy.spill_bytes is not None:
        return occupancy.spill_bytes / ROUND_TRIP_BYTES
    short = occupancy.spilled.get(role.name, 0.0)
    if not short or not phase.is_loop:
        return 0.0
    chained = first_accumulators(phase)
    return 2 * chained if chained and short > FEW_REGISTERS else short


def first_accumulators(phase: Phase) -> float:
    """Registers per thread of the first product's accumulators (a wgmma of n columns takes n/2) where another product follows
    in the same iteration; else 0."""
    widths = [int(m.instruction.split("n")[1].split("k")[0]) for m in phase.work.matrix if m.instruction.startswith("wgmma.")]
    return widths[0] / 2 if widths and phase.work.matrix_waits >= 2 else 0.0


def spilled_bytes(profile: KernelProfile, role: Role, phase: Phase, occupancy: Occupancy) -> float:
    """Bytes of local memory that one iteration of `phase` of one block loads and stores."""
    if occupancy.spill_bytes is None:
        return ROUND_TRIP_BYTES * spilled_registers(role, phase, occupancy) * role.threads
    if not occupancy.spill_bytes or role is not spilling_role(profile):
        return 0.0
    share = _share(role, phase, occupancy.spill_bytes > FEW_BYTES and occupancy.fullness >= NEARLY_FULL)
    return share * occupancy.spill_bytes * role.threads


def share_beyond_core(registers: float, threads: float, room: float) -> float:
    """Of the bytes of spilling loads and stores, those that reach L2: all stores, and the loads that the first-level cache
    has no `room` (bytes) for, where `threads` in all spill `registers` each."""
    footprint = 4 * registers * threads
    kept = min(1.0, max(0.0, room) / footprint) if footprint else 1.0
    return 1 - kept / 2


def _share(role: Role, phase: Phase, in_loop: bool) -> float:
    """Of a thread's spilling instructions, those that one iteration of `phase` runs."""
    straight = [p for p in role.phases if not p.is_loop]
    if in_loop and len(straight) < len(role.phases):
        if not phase.is_loop:
            return 0.0
        return LOOP_SHARE if _computes(phase.work) else MATRIX_LOOP_SHARE
    if straight:
        return 0.0 if phase.is_loop else 1 / len(straight)
    loops = len(role.phases)
    return 1 / (loops * phase.trips.mean) if phase.trips.mean else 0.0


def _computes(work: Work) -> bool:
    return work.vector_ops + work.special_ops + work.convert_ops > 0
