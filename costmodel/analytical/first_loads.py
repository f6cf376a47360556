"""The first loads of a launch, which all cores ask device memory for at the same time.

All blocks of the first wave start together. None of them computes before its first data arrive, so device
memory moves the first data of all of them beside no arithmetic. Later loads, and those of later waves, run
beside the arithmetic of other blocks.

Source: kernels of an H200 and an H100 whose device memory is busy for 0.3 to 0.9 of the time of their cores
take longer than cores and memory that overlap, by 0.1 to 0.3 of their time. The excess falls with the number
of waves: 22 % in one and two waves, 9 % in nine and more (norms, softmax, quantize and gemv of
experiments/datasets).
"""

from __future__ import annotations

from collections.abc import Iterator

from ...profile.values import Access, KernelProfile, Phase, Role, Space
from ...target.spec import Target
from .demand import l2_bytes
from .traffic import Traffic
from .unrolling import iterations_joined


def first_loads_us(
    profile: KernelProfile, target: Target, traffic: Traffic, waves: float, core_us: float
) -> float:
    """Microseconds for which the cores wait for their first data beyond the time of the cores' ports.

    Args:
        profile: the kernel.
        target: the rate of device memory.
        traffic: the bytes of each tensor at device memory.
        waves: how often each core begins blocks, at least 1. The first loads of one wave are in step.
        core_us: time in which the port of a core moves the first loads of one wave of its blocks.
    """
    rate: float = target.get("device.memory.dram.read_gb_per_s", target.dram_gb_per_s)
    asked: dict[str, float] = {}
    first: dict[str, float] = {}
    for access, times, at_once in _loads(profile, target):
        moved = l2_bytes(access)
        asked[access.tensor] = asked.get(access.tensor, 0.0) + moved * times
        first[access.tensor] = first.get(access.tensor, 0.0) + moved * at_once
    read = sum(
        t.dram * first[t.tensor] / asked[t.tensor]
        for t in traffic.tensors
        if not t.write and asked.get(t.tensor)
    )
    return max(0.0, read / (rate * 1e3) / max(1.0, waves) - core_us)


def first_bytes(profile: KernelProfile, target: Target) -> float:
    """Bytes of the first loads of one block, between its core and L2."""
    return sum(l2_bytes(access) * at_once for access, _, at_once in _loads(profile, target))


def _loads(profile: KernelProfile, target: Target) -> Iterator[tuple[Access, float, float]]:
    """(load from global memory, its executions in a block, those that the first arithmetic waits for)."""
    for role in profile.roles:
        for phase in role.phases:
            for access in phase.work.accesses:
                if access.space is Space.GLOBAL and not access.write:
                    times = phase.trips.mean if access.loop_dependent else 1.0
                    joined = _joined(role, phase, access, target)
                    yield access, times, min(times, joined)


def _joined(role: Role, phase: Phase, access: Access, target: Target) -> float:
    """Iterations of a loop whose loads are in flight before the first of them computes."""
    if not phase.is_loop or phase.work.matrix or access.asynchronous:
        return 1.0
    return max(1.0, iterations_joined(phase, role.threads, target["warp.threads"]))
