"""Local memory: spilled registers and arrays, how often they are stored and loaded, and where the bytes go.

For a built kernel, ptxas reports the bytes of all spilling loads and stores in the code of a thread. How
often these run depends on their place in the code. Rules from the local-memory counters of 66 spilling
kernels of an H200:

- If the buffers of a loop nearly fill the registers, the spills are in the loop, which runs all of them
  (attention, de-quantising: 0.8 to 1.0 of them an iteration).
- A loop that only issues matrix instructions runs less than half of them; the others are before and after it
  (matmuls).
- If registers are left, the compiler spills values that the loop does not use, and all spills run once a
  block.

For a kernel that is not built, the IR tells how many registers a role lacks. Which ones are spilled follows
from ptxas reports of 28 kernels and the machine code of nine of them:

- Values that no matrix instruction holds (`Role.accumulator_registers` counts the others) are spilled one by
  one, each stored and loaded once an iteration.
- Accumulators are spilled by the tile of one matrix instruction (n/2 registers a thread), because all of
  them are in registers while it runs. If a role has several tiles of a product, they take turns: one more
  tile than the lacking registers fill is loaded before and stored after its instructions, in every iteration.
  A matmul of 128x256 with 128 threads lacks 40 registers and moves both of its tiles of 128. The compiler
  also waits for each of its matrix instructions (ptxas: "wgmma.mma_async instructions are serialized").
- If each product has one tile, the accumulators of one make room for those of the other, and those of the
  first product move about twice, once for the waiting values and once for the values computed from them
  (ptxas reports of 135 attention kernels with nine pairs of accumulators: the mean of each pair is within a
  factor of two, single kernels within 2.6).

The same counters, and those of 26 kernels of norms, softmax and cross-entropy, show where the bytes go. The
first-level cache writes stores through, so half of the bytes reach L2, at its rate of writes. Loads reach L2
as far as the spilled registers of all resident threads exceed the cache beside shared memory. Stores go on to
device memory if L2 does not hold them until the next block stores there, loads if they exceed L2 twice.

Local arrays that are indexed at run time (extract/local_arrays.py) take the same way, but the profile has
their stores and loads one by one. What the next iterations touch again (`Access.sector_bytes`) is stored
through to L2 each time, but it is there, and in the first-level cache, when it is loaded or stored again.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ...profile.values import KernelProfile, Phase, Role, Space, Work
from .first_level import LINE_BYTES, missing_share
from .occupancy import WARP_THREADS, Occupancy, spilling_role

NEARLY_FULL = 0.78  # needed over allowed registers from which the spills are in the loop
FEW_BYTES = 24  # spills of up to this are addresses and counters, which the compiler moves out of the loop
FEW_REGISTERS = 12.0  # up to this, no accumulators of matrix instructions are spilled
LOOP_SHARE = 0.85  # share of the spilling instructions that one iteration of a loop runs
MATRIX_LOOP_SHARE = 0.4  # the same for a loop that only issues matrix instructions
# registers of a role's accumulators, over those of one matrix instruction of each of its kinds, from which
# a product has several tiles
SEVERAL_TILES = 1.5
# from one wgmma to the next if the compiler waits for each: a middle of six kernels on an H200 (0 to 230)
SERIAL_CYCLES = 50.0
ROUND_TRIP_BYTES = 8  # a register is stored once and loaded once


def spilled_registers(role: Role, phase: Phase, occupancy: Occupancy) -> float:
    """Registers per thread that an iteration of `phase` spills, or the whole kernel if it was built."""
    if occupancy.spill_bytes is not None:
        return occupancy.spill_bytes / ROUND_TRIP_BYTES
    short = _lacking(role, phase, occupancy)
    if not short or not _uses_peak(role, phase):
        return 0.0
    if not spills_accumulators(role, phase, occupancy):
        return short
    tiles = _tile_registers(phase)
    if _tiles_take_turns(role, tiles):
        tile = next((t for t in tiles if t >= short), max(tiles))
        moved = tile * (1 + math.ceil(short / tile))
        return min(moved, role.accumulator_registers or role.local_registers)
    return 2 * first_accumulators(phase)


def _lacking(role: Role, phase: Phase, occupancy: Occupancy) -> float:
    """Registers per thread that `role` lacks in `phase`.

    What only the code around the loops with matrix instructions needs is spilled there: the accumulators stay
    in registers. Source: ptxas reports of products of which only the values to be stored exceed the registers
    (14 to 70 registers are spilled, those of no tile), and their times.
    """
    short = occupancy.spilled.get(role.name, 0.0)
    if occupancy.spill_bytes is not None or not phase.work.matrix:
        return short
    return max(0.0, short - role.outside_registers)


def first_accumulators(phase: Phase) -> float:
    """Registers per thread of the accumulators of the first of two products in one iteration.

    0 for a single product.
    """
    tiles = _tile_registers(phase)
    return tiles[0] if tiles and phase.work.matrix_waits >= 2 else 0.0


def spills_accumulators(role: Role, phase: Phase, occupancy: Occupancy) -> bool:
    """Whether accumulators of wgmma are spilled in `phase`; the compiler then waits for each instruction.

    Those of a built kernel are if it spills at least one tile, and if the phase has no other values.
    """
    short = _lacking(role, phase, occupancy)
    tiles = _tile_registers(phase)
    if not tiles or not short:
        return False
    if occupancy.spill_bytes is not None:
        return short >= max(tiles) and _tiles_take_turns(role, tiles) and not _computes(phase.work)
    others = role.local_registers - role.accumulator_registers
    if role.accumulator_registers and FEW_REGISTERS < others >= short:
        return False
    if phase.work.matrix_waits >= 2:
        return short > FEW_REGISTERS
    # if the accumulators were not counted: beside arithmetic, much of the rest is no accumulator
    counted = role.accumulator_registers or not _computes(phase.work)
    return bool(counted) and _tiles_take_turns(role, tiles)


def serial_cycles(role: Role, phase: Phase, occupancy: Occupancy) -> float:
    """Cycles for which the warps of one block wait in an iteration, one matrix instruction after another."""
    tiles = _tile_registers(phase)
    if not spills_accumulators(role, phase, occupancy) or not _tiles_take_turns(role, tiles):
        return 0.0
    count = sum(m.count * m.warps for m in phase.work.matrix if m.warps > 1)
    return SERIAL_CYCLES * count * WARP_THREADS / max(1, role.threads)


def _tile_registers(phase: Phase) -> list[float]:
    """Registers per thread of the accumulators of one wgmma, by kind of instruction: n/2 for n columns."""
    return [
        int(m.instruction.split("n")[1].split("k")[0]) / 2
        for m in phase.work.matrix
        if m.instruction.startswith("wgmma.")
    ]


def _tiles_take_turns(role: Role, tiles: list[float]) -> bool:
    """Whether the role holds several tiles of its products."""
    return (role.accumulator_registers or role.local_registers) >= SEVERAL_TILES * sum(tiles)


def _uses_peak(role: Role, phase: Phase) -> bool:
    """Whether the registers of `role` run out in `phase`: beside its matrix work, if it has any."""
    if any(p.work.matrix for p in role.phases):
        return bool(phase.work.matrix) or (role.outside_registers > 0 and _computes(phase.work))
    return phase.is_loop or _computes(phase.work)


def _repetitions(role: Role, phase: Phase) -> float:
    """Iterations of a loop that `phase` has in line, as after a pipelined loop: by its matrix work."""
    work = [sum(m.count * m.flops for m in p.work.matrix) for p in role.phases if p.is_loop]
    each = max(work, default=0.0)
    own = sum(m.count * m.flops for m in phase.work.matrix)
    return max(1.0, own / each) if each and not phase.is_loop else 1.0


def local_bytes(profile: KernelProfile, role: Role, phase: Phase, occupancy: Occupancy) -> float:
    """Bytes of local memory that one iteration of `phase` of one block loads and stores."""
    return _spilled_bytes(profile, role, phase, occupancy) + array_bytes(phase)


def array_bytes(phase: Phase) -> float:
    """The part of them that belongs to arrays whose elements get no registers."""
    return sum(access.bytes for access in phase.work.accesses if access.space is Space.LOCAL)


@dataclass(frozen=True, slots=True)
class LocalBytes:
    """Bytes of local memory that one iteration of a phase of one block stores and loads.

    `stored` are whole words of all lanes, also where some lanes store nothing: L2 takes as long for a part of
    a line. Source: sums of rows in which each element is stored by a part of the lanes, with 64, 128 and 256
    threads (7.4 to 7.9 cycles for each store of a warp, as for 128 bytes at L2's rate of writes).
    `fresh_stored` and `fresh_loaded` are bytes that the iterations just before did not touch.
    """

    stored: float
    loaded: float
    fresh_stored: float
    fresh_loaded: float


def local_moves(profile: KernelProfile, role: Role, phase: Phase, occupancy: Occupancy) -> LocalBytes:
    """The bytes of `local_bytes` by their way. A spilled register is stored as often as it is loaded."""
    half = _spilled_bytes(profile, role, phase, occupancy) / 2
    moved = {True: [half, half], False: [half, half]}
    for access in phase.work.accesses:
        if access.space is Space.LOCAL:
            lanes = access.transactions * LINE_BYTES if access.write else 0.0
            moved[access.write][0] += max(access.bytes, lanes)
            moved[access.write][1] += access.sector_bytes or access.bytes
    return LocalBytes(moved[True][0], moved[False][0], moved[True][1], moved[False][1])


def stack_bytes(role: Role) -> float:
    """Bytes per thread of such arrays."""
    sizes: dict[str, float] = {}
    for phase in role.phases:
        for access in phase.work.accesses:
            if access.space is Space.LOCAL:
                sizes[access.tensor] = max(sizes.get(access.tensor, 0.0), access.footprint_bytes)
    return sum(sizes.values()) / max(1, role.threads)


def local_footprint(role: Role, phase: Phase, occupancy: Occupancy) -> float:
    """Bytes of local memory that the threads of `role` in one block use."""
    return (4 * spilled_registers(role, phase, occupancy) + stack_bytes(role)) * role.threads


def _spilled_bytes(profile: KernelProfile, role: Role, phase: Phase, occupancy: Occupancy) -> float:
    if occupancy.spill_bytes is None:
        registers = spilled_registers(role, phase, occupancy) * _repetitions(role, phase)
        return ROUND_TRIP_BYTES * registers * role.threads
    if not occupancy.spill_bytes or role is not spilling_role(profile):
        return 0.0
    share = _share(role, phase, occupancy.spill_bytes > FEW_BYTES and occupancy.fullness >= NEARLY_FULL)
    return share * occupancy.spill_bytes * role.threads


def loaded_beyond_core(loaded: float, footprint: float, room: float) -> float:
    """The part of the bytes loaded from local memory that comes from L2.

    Args:
        loaded: bytes that are loaded.
        footprint: bytes of local memory of all resident threads of a core.
        room: bytes of the first-level cache.
    """
    kept = min(1.0, max(0.0, room) / footprint) if footprint else 1.0
    return loaded * (1 - kept)


def loaded_beyond_l2(loaded: float, footprint: float, capacity: float) -> float:
    """The part of the bytes loaded from local memory that comes from device memory.

    Between the store of a value and its load, half of the others are touched in the mean.

    Args:
        loaded: bytes that are loaded.
        footprint: bytes of local memory of all resident threads of the device.
        capacity: bytes of L2.
    """
    return loaded * (1 - min(1.0, 2 * capacity / footprint)) if footprint else 0.0


def written_beyond_l2(stored: float, footprint: float, beside: float, capacity: float) -> float:
    """The part of the bytes stored to local memory that is written back to device memory.

    A block stores to the addresses of the block before it. The lines in between, and what the blocks move
    `beside`, evict these addresses before that if L2 does not hold both; then each store is written back.

    Args:
        stored: bytes that are stored.
        footprint: bytes of local memory of all resident threads of the device.
        beside: other bytes that all resident blocks move.
        capacity: bytes of L2.
    """
    return stored * missing_share(footprint + beside, capacity) if footprint else 0.0


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
