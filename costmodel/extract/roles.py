"""Counts of each role of a kernel, and the names of the roles: all, producer or consumer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from ...profile.values import Access, Role, Space
from .phase_counts import PhaseCounts
from .registers import LiveRanges


@dataclass
class RoleCounts:
    """The phases of one range of threads, in program order. The program may enter the range several times."""

    number: int
    threads: int
    phases: list[PhaseCounts] = field(default_factory=list)
    registers_limit: int | None = None

    @property
    def is_whole_block(self) -> bool:
        return self.number == 0

    @property
    def is_empty(self) -> bool:
        return all(phase.is_empty for phase in self.phases)

    @property
    def has_matrix_work(self) -> bool:
        return any(phase.matrix for phase in self.phases)

    @property
    def computes(self) -> bool:
        """Whether the role computes floats, or stores results of other kinds, such as sums of integers."""
        stores = any(a.write and not a.asynchronous for a in self._global_accesses)
        return self.has_matrix_work or stores or any(p.counts.get("vector_ops") for p in self.phases)

    @property
    def fetches(self) -> bool:
        """Whether the role loads from global memory by asynchronous copies, and stores nothing to it."""
        accesses = self._global_accesses
        return any(a.asynchronous and not a.write for a in accesses) and not any(a.write for a in accesses)

    @property
    def _global_accesses(self) -> list[Access]:
        return [a for phase in self.phases for a in phase.accesses if a.space is Space.GLOBAL]


def roles_of(
    roles: Sequence[RoleCounts], live: LiveRanges, local_bytes: Mapping[int, float], warp_threads: int
) -> tuple[Role, ...]:
    """Convert the counts to frozen roles.

    Empty roles are left out; `local_bytes` are bytes per thread by local buffer.
    """
    refills = {copy: free for role in roles for phase in role.phases for copy, free in phase.refills.items()}
    return tuple(
        Role(
            name=_name(role, roles),
            threads=role.threads,
            phases=tuple(
                phase.to_phase(refills, role.threads / warp_threads, warp_threads)
                for phase in role.phases
                if not phase.is_empty
            ),
            registers_limit=role.registers_limit,
            local_registers=live.peak_registers(role.number, local_bytes),
            accumulator_registers=live.peak_accumulators(role.number, local_bytes),
            outside_registers=live.peak_registers(role.number, local_bytes)
            - live.peak_beside_products(role.number, local_bytes),
        )
        for role in roles
        if not role.is_empty
    )


def _name(role: RoleCounts, roles: Sequence[RoleCounts]) -> str:
    """The name of `role`.

    A role that only fetches for others is a producer, even if it computes addresses.
    """
    if role.is_whole_block:
        return "all"
    if not role.computes:
        return "producer"
    others = [r for r in roles if r is not role and not r.is_whole_block]
    served = any(r.has_matrix_work or (r.registers_limit or 0) > (role.registers_limit or 0) for r in others)
    return "producer" if served and role.fetches and not role.has_matrix_work else "consumer"
