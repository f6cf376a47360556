"""The time for which warps wait for instructions that the caches of their core do not hold."""

from __future__ import annotations

from ...profile.values import Phase
from .first_level import missing_share

INSTRUCTION_BYTES = 16.0
# Instructions of machine code for each one of the IR, which has none for addresses and descriptors: 1.1 to
# 2.2, read off the loops of eight gated delta rules (nvcc 13.0).
WITH_ADDRESSES = 1.5
# Code that a scheduler's own cache holds, and that of the core. A loop a quarter larger finds none of it when
# it comes back: the caches evict the oldest lines first. Source: experiments/fetch, an H200
SCHEDULER_BYTES, CORE_BYTES = 32 * 1024.0, 128 * 1024.0
CODE_OUTGROWN = 0.25
# Cycles for which an instruction waits beyond either cache. Straight arithmetic waits for 1.1 and 4.9
# (experiments/fetch); programs that wait for other things, too, fetch ahead meanwhile. In the samples of
# Nsight Compute, warps of gated delta rules with loops of 2,700 instructions wait for 0.5.
NEAR_CYCLES, FAR_CYCLES = 0.5, 2.0


def fetch_cycles(phase: Phase) -> float:
    """Cycles for which a warp waits for instructions in one iteration of a loop; 0 for straight code.

    Straight code comes once, from beyond its scheduler's cache, however short it is. Of 30 row-wise kernels
    with 3,800 to 6,900 instructions of the IR, those that do not spill take no longer than predicted without.
    """
    if not phase.is_loop:
        return 0.0
    instructions = WITH_ADDRESSES * phase.code_instructions
    size = INSTRUCTION_BYTES * instructions
    near, far = (missing_share(size, room, CODE_OUTGROWN) for room in (SCHEDULER_BYTES, CORE_BYTES))
    return instructions * (NEAR_CYCLES * near + FAR_CYCLES * far)
