"""The first-level cache of a core: its room beside shared memory, and the sectors that it serves again."""

from __future__ import annotations

from dataclasses import replace

from ...profile.values import Access, KernelProfile, Phase, Space
from ...target.spec import Target
from .gathers import SECTOR_BYTES

LINE_BYTES = 128.0  # that a cache of a core has one tag for, however few of its sectors it holds
# If what is in use exceeds the room of a cache by this share of it, none is there when it is used again: the
# least recently used lines are evicted first, so a cyclic walk over slightly more than fits finds nothing.
OUTGROWN = 0.5
SCATTERED_LANES = 0.9  # share of the lanes of an instruction that touch a sector of their own
TABLE_SHARE = 0.25  # of the room of the cache: a table of that size stays in it beside what streams through
TABLE_READS = 2.0  # loads of each byte of a table by a block, from which it counts as one
READ_WHOLE = 0.9  # share of a tensor that a kernel reads if each thread reads a row of it


def first_level_room(profile: KernelProfile, target: Target, resident: float) -> float:
    """Bytes of the first-level cache of a core that holds `resident` blocks.

    On NVIDIA GPUs one memory serves as cache and shared memory. Other targets may give the size of the cache.
    """
    both = (
        target["core.memory.shared.bytes"] - profile.shared_bytes * resident
        if profile.kind == "cuda"
        else 0.0
    )
    return target.get("core.memory.l1.bytes", both)


def missing_share(footprint: float, room: float, outgrown: float = OUTGROWN) -> float:
    """Share of what is in use that a cache lost before it is used again.

    Args:
        footprint: bytes in use, of all that share the cache.
        room: bytes of the cache.
        outgrown: share of the room beyond it with which the cache loses all.
    """
    return min(1.0, max(0.0, footprint / max(1.0, room) - 1) / outgrown)


def with_held_sectors(profile: KernelProfile, target: Target, resident: float) -> KernelProfile:
    """The profile in which no sector that the first-level cache has counts as alone in its 64 bytes.

    If each lane reads a row of its own, its next loads touch the same sector again. While the lines of all
    resident threads fit, L2 is asked once for each. Then the sectors of an instruction cost their own bytes
    (the rate of the cache), not those of requests to L2. If the loads of a thread lie apart, each sector
    still takes a cycle: a transposition by others takes 1.1 on an H200.
    """
    sizes = {tensor.label: tensor.bytes for tensor in profile.tensors}
    room = first_level_room(profile, target, resident)
    lines = LINE_BYTES * profile.block_threads * resident
    lost = missing_share(lines, room)

    def held(access: Access, phase: Phase) -> bool:
        size = sizes[access.tensor]
        read = access.footprint_bytes * (phase.trips.mean if access.loop_dependent else 1.0)
        whole = access.bytes <= access.footprint_bytes and read * profile.blocks >= READ_WHOLE * size
        row_bytes = size / (profile.blocks * profile.block_threads)
        return whole and row_bytes >= SECTOR_BYTES and bool(row_bytes % LINE_BYTES)

    def of(phase: Phase) -> Phase:
        return phase.with_accesses(
            lambda access: (
                replace(
                    access,
                    alone_share=access.alone_share * lost,
                    lines=0.0 if access.step_bytes else access.transactions,
                )
                if _is_scattered(access, target) and held(access, phase)
                else access
            )
        )

    if not any(_is_scattered(a, target) for r in profile.roles for p in r.phases for a in p.work.accesses):
        return profile
    return profile.with_phases(of)


def held_tables(profile: KernelProfile, target: Target, resident: float) -> dict[str, float]:
    """Bytes of the tensors that the first-level cache holds while data chooses places in them, by label.

    Tables of the values of a short format, for example: a block loads each of their bytes several times, and
    they take a small part of the cache.
    """
    room = first_level_room(profile, target, resident) * TABLE_SHARE
    loaded: dict[str, float] = {}
    for phase in (phase for role in profile.roles for phase in role.phases):
        for access in filter(is_table_load, phase.work.accesses):
            loaded[access.tensor] = loaded.get(access.tensor, 0.0) + access.bytes * phase.trips.mean
    sizes = {tensor.label: tensor.bytes for tensor in profile.tensors}
    return {t: sizes[t] for t, read in loaded.items() if 0 < sizes.get(t, 0) <= min(room, read / TABLE_READS)}


def is_table_load(access: Access) -> bool:
    """Whether lanes load from device memory at places that data chooses."""
    return access.space is Space.GLOBAL and access.mechanism == "ld" and access.row_bytes > 0


def with_held_tables(profile: KernelProfile, target: Target, resident: float) -> KernelProfile:
    """The profile in which a block moves a table that the first-level cache holds from L2 once."""
    tables = held_tables(profile, target, resident)
    if not tables:
        return profile

    def of(phase: Phase) -> Phase:
        once = {t: max(1.0, size / max(1.0, phase.trips.mean)) for t, size in tables.items()}
        return phase.with_accesses(
            lambda access: (
                replace(access, sector_bytes=once[access.tensor], alone_share=0.0)
                if is_table_load(access) and access.tensor in tables
                else access
            )
        )

    return profile.with_phases(of)


def fresh_share(access: Access, loads: float, resident: float, room: float) -> float:
    """Share of the round trips of a plain load that come to a sector which the cache does not have.

    A lane that walks over a row finds its next elements in the sector that it loaded before, as long as the
    lines of all lanes of the core stay.

    Args:
        access: the load.
        loads: executions of a lane, one after another, that are one round trip.
        resident: blocks of the core.
        room: bytes of the cache.
    """
    if not access.step_bytes:
        return 1.0
    lines = LINE_BYTES * min(access.transactions, access.bytes / access.step_bytes) * resident
    lost = missing_share(lines, room)
    fresh = min(1.0, access.step_bytes * loads / SECTOR_BYTES)
    return fresh + (1 - fresh) * lost


def _is_scattered(access: Access, target: Target) -> bool:
    """Whether each lane of a plain load touches a sector of its own, with others beside it in a row."""
    return (
        access.space is Space.GLOBAL
        and access.mechanism == "ld"
        and access.alone_share > 0
        and access.run_bytes >= SECTOR_BYTES
        and access.transactions >= SCATTERED_LANES * target["warp.threads"] * access.instructions
    )


__all__ = [
    "first_level_room",
    "fresh_share",
    "held_tables",
    "is_table_load",
    "missing_share",
    "with_held_sectors",
    "with_held_tables",
]
