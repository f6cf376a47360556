"""Spilled registers: their number, how often they are stored and loaded, and the bytes that reach L2.

For a built kernel, ptxas reports the bytes of all spilling loads and stores in the code of a thread. How
often these run depends on their place in the code. Rules from the local-memory counters of 66 spilling
kernels of an H200:

- If the buffers of a loop nearly fill the registers, the spills are in the loop, which runs all of them
  (attention, de-quantising: 0.8 to 1.0 of them an iteration).
- A loop that only issues matrix instructions runs less than half of them; the others are before and after it
  (matmuls).
- If registers are left, the compiler spills values that the loop does not use, and all spills run once a
  block.

For a kernel that is not built, the IR tells how many registers a role lacks. These are spilled one by one,
unless an iteration has two products. Then the accumulators of one make room for those of the other, by whole
fragments (n/2 registers a thread), and those of the first product move about twice, once for the waiting
values and once for the values computed from them (ptxas reports of 135 attention kernels with nine pairs of
accumulators: the mean of each pair is within a factor of two, single kernels within 2.6).

The same counters show where the bytes go. The first-level cache writes stores through, so half of the bytes
reach L2. Loads reach L2 as far as the spilled registers of all resident threads exceed the cache beside
shared memory.
"""

from __future__ import annotations

from ...profile.values import KernelProfile, Phase, Role, Work
from .occupancy import Occupancy, spilling_role

NEARLY_FULL = 0.78  # needed over allowed registers from which the spills are in the loop
FEW_BYTES = 24  # spills of up to this are addresses and counters, which the compiler moves out of the loop
FEW_REGISTERS = 12.0  # up to this, no accumulators of matrix instructions are spilled
LOOP_SHARE = 0.85  # share of the spilling instructions that one iteration of a loop runs
MATRIX_LOOP_SHARE = 0.4  # the same for a loop that only issues matrix instructions
ROUND_TRIP_BYTES = 8  # a register is stored once and loaded once


def spilled_registers(role: Role, phase: Phase, occupancy: Occupancy) -> float:
    """Registers per thread that an iteration of `phase` spills, or the whole kernel if it was built."""
    if occupancy.spill_bytes is not None:
        return occupancy.spill_bytes / ROUND_TRIP_BYTES
    short = occupancy.spilled.get(role.name, 0.0)
    if not short or not phase.is_loop:
        return 0.0
    chained = first_accumulators(phase)
    return 2 * chained if chained and short > FEW_REGISTERS else short


def first_accumulators(phase: Phase) -> float:
    """Registers per thread of the accumulators of the first of two products in one iteration.

    0 for a single product.

    A wgmma with n columns has n/2 accumulators a thread.
    """
    widths = [
        int(m.instruction.split("n")[1].split("k")[0])
        for m in phase.work.matrix
        if m.instruction.startswith("wgmma.")
    ]
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
    """Share of the spilled bytes that reach L2: all stores, and the loads that miss the first-level cache.

    Args:
        registers: spilled registers of one thread.
        threads: threads of all resident blocks.
        room: bytes of the first-level cache.
    """
    footprint = 4 * registers * threads
    kept = min(1.0, max(0.0, room) / footprint) if footprint else 1.0
    return 1 - kept / 2


def _share(role: Role, phase: Phase, in_loop: bool) -> float:
    """Share of a thread's spilling instructions that one iteration of `phase` runs."""
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
