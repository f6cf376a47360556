"""The clock that the chip keeps under a kernel's load: power and current limits lower it as the matrix pipes fill."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from ..profile import KernelProfile
from ..target import Figure, Target

# of the time that matrix pipes are busy: where the clock begins to fall, and where it is at the target's matrix clock.
# Read off 671 kernels of an H200 (experiments/counters): 1.96 GHz without matrix work, 1.78 with a little of it, 1.57 at 85 %
FALL_BEGINS, FALL_ENDS = 0.45, 0.85


def under_load(profile: KernelProfile, target: Target) -> Target:
    """`target` with the clock of kernels of this kind: with matrix instructions, or without."""
    mixed = target.get("core.clock_mixed_mhz")
    if not mixed or not any(phase.work.matrix for role in profile.roles for phase in role.phases):
        return target
    return _at(target, mixed)


def sustained_mhz(target: Target, matrix_share: float) -> float:
    """Clock in MHz of a `target` that comes from `under_load`, with its matrix pipes busy for that share of the time."""
    free, limited = target["core.clock_mhz"], target["core.clock_matrix_mhz"]
    fall = (matrix_share - FALL_BEGINS) / (FALL_ENDS - FALL_BEGINS)
    return free - max(0.0, free - limited) * min(1.0, max(0.0, fall))


@lru_cache(maxsize=64)
def _at(target: Target, clock_mhz: float) -> Target:
    figure = Figure(clock_mhz, "derived", "the clock under mixed load")
    return replace(target, figures={**target.figures, "core.clock_mhz": figure})
