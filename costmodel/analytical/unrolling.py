"""How many iterations of a loop the compiler joins so that their plain loads are in flight together."""

from __future__ import annotations

import math

from ...profile.values import Phase

# Instructions of a thread up to which nvcc joins iterations of a loop (LLVM's default for unrolling in part).
# Read off the machine code of 35 loops of softmax, cross-entropy, norm and gemv kernels whose loads allow
# more than one iteration (nvcc 13.0): 26 are joined as `iterations_joined` says, 7 as the loads allow.
JOINED_INSTRUCTIONS = 150.0


def iterations_joined(phase: Phase, threads: int, warp: float) -> int:
    """Iterations of a loop whose plain loads are in flight together; the profile's depth for straight code.

    The profile has as many as the loads allow (`Phase.pipeline_depth`). The compiler joins fewer if their
    instructions are too many, so that all passes are equal if possible. A loop that the profile takes for
    completely unrolled stays so.

    Args:
        phase: the loop.
        threads: threads of its role.
        warp: threads of a warp.
    """
    most, work = phase.pipeline_depth, phase.work
    if not phase.is_loop or most >= phase.trips.largest:
        return most
    lanes = work.vector_ops + work.integer_ops + work.convert_ops + work.special_ops + work.shuffles
    warps = max(1.0, threads / warp)
    each = (lanes / warp + sum(a.instructions for a in work.accesses)) / warps
    fitting = int(JOINED_INSTRUCTIONS / max(1.0, each))
    if fitting >= most:
        return most
    trips = phase.trips.largest
    for count in range(fitting, 1, -1):
        if trips % count == 0:
            return count
    return 1 << int(math.log2(max(1, fitting)))
