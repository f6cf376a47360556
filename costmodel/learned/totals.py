"""Total counts of one block over all roles and phases, from which features are computed."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

from ...profile.values import Access, KernelProfile, Phase, Role, Space


@dataclass(slots=True)
class Totals:
    """Counts of one block of mean length, loops multiplied out.

    Bytes are requested ones, except in fields with another name.
    """

    matrix_flops: float = 0.0
    matrix_instructions: float = 0.0
    matrix_operand_bytes: float = 0.0  # that matrix units read directly from shared memory
    warp_matrix_flops: float = 0.0  # of instructions that a single warp issues
    matrix_dtype: str = ""
    vector_ops: float = 0.0
    integer_ops: float = 0.0
    convert_ops: float = 0.0
    special_ops: float = 0.0
    shuffles: float = 0.0
    block_syncs: float = 0.0
    barrier_waits: float = 0.0
    matrix_waits: float = 0.0
    global_load_bytes: float = 0.0
    global_store_bytes: float = 0.0
    bulk_load_bytes: float = 0.0
    bulk_store_bytes: float = 0.0
    async_load_bytes: float = 0.0
    blocking_load_bytes: float = 0.0
    atomic_bytes: float = 0.0
    plain_load_bytes: float = 0.0  # all but bulk copies: the denominator of load_sector_bytes
    plain_store_bytes: float = 0.0
    load_sector_bytes: float = 0.0
    store_sector_bytes: float = 0.0
    wide_global_bytes: float = 0.0
    shared_load_wavefronts: float = 0.0
    shared_store_wavefronts: float = 0.0
    shared_load_ideal: float = 0.0
    shared_store_ideal: float = 0.0
    lane_shared_bytes: float = 0.0
    wide_shared_bytes: float = 0.0
    box_bytes: float = 0.0
    least_row_bytes: float = 0.0
    least_slots: int = 1
    global_instructions: float = 0.0
    in_loops: float = 0.0
    all_work: float = 0.0

    @property
    def lane_operations(self) -> float:
        return self.vector_ops + self.integer_ops + self.convert_ops + self.special_ops + self.shuffles

    @property
    def loop_share(self) -> float:
        return self.in_loops / self.all_work if self.all_work else 0.0


def totals(kernel: KernelProfile) -> Totals:
    """The counts of `kernel`, which must not be modified: rasterization variants share them."""
    return _of_roles(_RolesByIdentity(kernel.roles))


@dataclass(frozen=True, slots=True, eq=False)
class _RolesByIdentity:
    """Roles compared by identity: they are not hashable, and a comparison costs as much as counting."""

    roles: tuple[Role, ...]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _RolesByIdentity) and other.roles is self.roles

    def __hash__(self) -> int:
        return id(self.roles)


@lru_cache(maxsize=8)
def _of_roles(key: _RolesByIdentity) -> Totals:
    found = Totals()
    slots: list[int] = []
    rows: list[int] = []
    for role in key.roles:
        for phase in role.phases:
            times = phase.trips.mean
            before = _work_of(found)
            _add_work(found, phase, times)
            for access in phase.work.accesses:
                if access.space is Space.GLOBAL:
                    _add_global(found, access, times)
                    if access.mechanism == "tma":
                        rows.append(access.vector_bytes)
                        if phase.is_loop and not access.write:
                            slots.append(access.slots)
                elif access.space is Space.SHARED and access.mechanism != "tma":
                    _add_shared(found, access, times)
            if phase.is_loop:
                found.in_loops += _work_of(found) - before
    found.all_work = _work_of(found)
    found.least_slots = max(1, min(slots, default=1))
    found.least_row_bytes = min(rows, default=0)
    return found


def _work_of(found: Totals) -> float:
    """All kinds of work as one number in bytes; a rough conversion is enough for a share."""
    return found.matrix_flops / 64 + found.vector_ops + found.global_load_bytes + found.global_store_bytes


def _add_work(found: Totals, phase: Phase, times: float) -> None:
    work = phase.work
    largest = 0.0
    for matrix in work.matrix:
        flops = matrix.count * matrix.flops * times
        found.matrix_flops += flops
        found.matrix_instructions += matrix.count * times
        found.matrix_operand_bytes += matrix.count * matrix.shared_bytes * times
        if matrix.warps == 1:
            found.warp_matrix_flops += flops
        if flops > largest:
            largest, found.matrix_dtype = flops, matrix.dtype
    found.vector_ops += work.vector_ops * times
    found.integer_ops += work.integer_ops * times
    found.convert_ops += work.convert_ops * times
    found.special_ops += work.special_ops * times
    found.shuffles += work.shuffles * times
    found.block_syncs += work.block_syncs * times
    found.barrier_waits += work.barrier_waits * times
    found.matrix_waits += work.matrix_waits * times


def _add_global(found: Totals, access: Access, times: float) -> None:
    moved = access.bytes * times
    bulk = access.mechanism == "tma"
    found.global_instructions += access.instructions * times
    if bulk:
        found.box_bytes += access.box_bytes * access.instructions * times
    if bulk or access.vector_bytes >= 16:
        found.wide_global_bytes += moved
    if access.write:
        found.global_store_bytes += moved
        found.bulk_store_bytes += moved if bulk else 0.0
        found.atomic_bytes += moved if access.mechanism == "atomic" else 0.0
        if not bulk:
            found.plain_store_bytes += moved
            found.store_sector_bytes += access.transactions * 32 * times
        return
    found.global_load_bytes += moved
    if bulk:
        found.bulk_load_bytes += moved
        return
    found.plain_load_bytes += moved
    found.load_sector_bytes += access.transactions * 32 * times
    if access.asynchronous:
        found.async_load_bytes += moved
    else:
        found.blocking_load_bytes += moved


def _add_shared(found: Totals, access: Access, times: float) -> None:
    """Add a shared-memory access of lanes, which needs at least one wavefront for 128 distinct bytes."""
    found.lane_shared_bytes += access.bytes * times
    if access.vector_bytes >= 16:
        found.wide_shared_bytes += access.bytes * times
    ideal = (access.footprint_bytes or access.bytes) * times / 128
    if access.write:
        found.shared_store_wavefronts += access.transactions * times
        found.shared_store_ideal += ideal
    else:
        found.shared_load_wavefronts += access.transactions * times
        found.shared_load_ideal += ideal


__all__ = ["Totals", "totals"]
