"""What registers that the compiler spilled cost, once its own count is known.

ptxas prints the bytes of all spilling loads and stores of a thread's code, each counted once. How often they run depends
on where they stand. Held against the local-memory counters of 66 spilling kernels of an H200:

- Where the buffers of the loop nearly fill the registers, they stand in the loop, and it runs all of them (attention,
  de-quantising: 0.8 to 1.0 of them an iteration).
- A loop that only issues matrix instructions runs less than half of them: the rest is before and after it (matmuls).
- Where registers are left, the compiler spills what the loop does not touch, and all run once a block.

Loads and stores go through L1 and, where that overflows, L2: 30 to 50 bytes a cycle and core in all those kernels.
"""

from __future__ import annotations

from ..profile import KernelProfile, Phase, Role, Work
from .occupancy import Occupancy, spilling_role

NEARLY_FULL = 0.85  # need of the live buffers over the register limit, from which spills stand in the loop
FEW_BYTES = 24  # so few are addresses and counters, which the compiler moves out of the loop
LOOP_SHARE = 0.85  # of all spilling instructions, those that one iteration runs
MATRIX_LOOP_SHARE = 0.4  # the same for a loop that only issues matrix instructions
SPILL_BYTES_PER_CYCLE = 48.0  # of one core, loads and stores together


def spill_cycles(
    profile: KernelProfile, role: Role, phase: Phase, occupancy: Occupancy, bytes_per_cycle: float = SPILL_BYTES_PER_CYCLE
) -> float:
    """Cycles of one core that the compiler's spills cost one iteration of `phase` of one block; 0 where it spilled
    nothing, or has not been asked (`occupancy.spill_bytes` is None)."""
    if not occupancy.spill_bytes or role is not spilling_role(profile):
        return 0.0
    share = _share(role, phase, occupancy.spill_bytes > FEW_BYTES and occupancy.fullness >= NEARLY_FULL)
    return share * occupancy.spill_bytes * role.threads / bytes_per_cycle


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
