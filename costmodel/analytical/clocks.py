"""The clock under load: power and current limits lower it as the matrix pipes get busier."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ...profile.values import KernelProfile
from ...target.spec import Figure, Target

# Busy shares of the matrix pipes at which the clock begins to fall, and at which it reaches the target's
# matrix clock. Read off 671 kernels of an H200 (experiments/counters): 1.96 GHz without matrix work, 1.78
# with a little of it, 1.57 at 85 %.
FALL_BEGINS, FALL_ENDS = 0.45, 0.85


def under_load(profile: KernelProfile, target: Target) -> Target:
    """`target` with the clock of kernels with matrix instructions, if `profile` has any."""
    mixed = target.get("core.clock_mixed_mhz")
    if not mixed or not any(phase.work.matrix for role in profile.roles for phase in role.phases):
        return target
    return _at(target, mixed)


def sustained_mhz(target: Target, matrix_share: float) -> float:
    """Clock in MHz of a target from `under_load`, with matrix pipes busy for `matrix_share` of the time."""
    free, limited = target["core.clock_mhz"], target["core.clock_matrix_mhz"]
    fall = (matrix_share - FALL_BEGINS) / (FALL_ENDS - FALL_BEGINS)
    return free - max(0.0, free - limited) * min(1.0, max(0.0, fall))


@lru_cache(maxsize=64)
def _at(target: Target, clock_mhz: float) -> Target:
    figure = Figure(clock_mhz, "derived", "the clock under mixed load")
    return replace(target, figures={**target.figures, "core.clock_mhz": figure})
