"""The number of blocks of a kernel that are resident on a core, and the registers that do not fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ...profile.values import WORKSPACE, Access, KernelProfile, Phase, Role, Space
from ...target.spec import Target
from .unrolling import iterations_joined

# Registers beside the fragments: addresses, loop counters, descriptors, operands in flight. Read off ptxas
# reports of TileLang kernels (see `registers_needed`). Roles with a producer that copies for them need 24.
# Blocks that copy themselves need more, in particular if mma.sync takes its operands from registers (the mean
# of 131 kernels: 48 of chunk states, 83 of others). Blocks without matrix work need least.
ROLE_OVERHEAD_REGISTERS = 24
PRODUCER_OVERHEAD_REGISTERS = 14  # the same for a producer, which computes only addresses
MANY_GROUPS_OVERHEAD_REGISTERS = 28  # the same for consumers of three or more groups of four warps
BLOCK_OVERHEAD_REGISTERS = {"wgmma": 36, "mma": 83, "": 20}
OTHER_OVERHEAD_REGISTERS = 40  # for matrix instructions without compiled examples
# Share of the live buffers of a block without matrix work that are in registers together: the compiler joins
# the loops over their elements and makes the values of one when it needs them. Read off ptxas reports of 24
# kernels with 256 to 512 registers of buffers, which need 76 to 255 and spill 0 to 24.
JOINED_SHARE = 0.5
# Of each divided address in the copies of an unrolled loop. Read off the ptxas reports of products of windows
# of volumes by others: 236 registers with 32 addresses, 114 with 16.
QUOTIENT_REGISTERS = 6.5
# The same in a block without a producer, whose overhead has room for some: 104 registers in place of 72 with
# 8 addresses, 158 of 82 and 182 of 114 with 16 (convolutions whose edges reflect, by others).
BLOCK_QUOTIENT_REGISTERS = 4.4
STAGED_SHARE = 0.5  # share of the data staged by plain loads and stores that is in registers at the same time
# Read off ptxas reports of the softmax and cross_entropy kernels in the H200 datasets: with the 32-bit values
# the mean of |log(estimated / given registers)| falls, e.g. from 0.234 to 0.110 (softmax, keep=global).
WIDENED_SHARE = 0.5  # special functions over loaded numbers from which each number goes through one
# Live buffers over the 32-bit values beyond which other buffers decide the registers. So chosen that it
# concerns no softmax or cross_entropy kernel of the datasets.
FEW_OF_LIVE = 4.0
PREDICATED_LOADS = 6.0  # loads of a wait for which predicates take the place of a branch
LOADED_AGAIN = 1.5  # bytes of all loads of a tensor over its different ones from which rows are loaded twice
KEPT_SHARE = 0.7  # share of the elements that straight code loads and later stores again
TOGETHER_OVERHEAD_REGISTERS = (
    16  # beside the plain loads of straight code, all issued before the first is used
)
WARP_THREADS = 32
WARP_GROUP_THREADS = 128
# the most registers a thread that ptxas gives a warp-specialised kernel at launch, before setmaxnreg moves
# them
SPECIALISED_LAUNCH_LIMIT = 240
# Registers per thread are allocated in multiples of this. Of kernels without matrix work the compiler saves a
# few registers where that reaches the next lower multiple: of 6,553 kernels of ten operators, those with an
# estimate of 41 to 43 take 40 in the median. With the nearest multiple the resident blocks are wrong for 42 %
# of them, with the next higher one for 47 % (datasets of an H200 and an H100).
ALLOCATION_UNIT = 8
BARE_CONTROL_REGISTERS = 24
SPILLED_REGISTER_BYTES = 8  # a spilled register is stored and loaded once


@dataclass(frozen=True, slots=True)
class Occupancy:
    """Resident blocks per core, and registers.

    Attributes:
        blocks: resident blocks of a core; 0 if not even one fits.
        limited_by: the resource that limits them.
        registers: registers per thread, as allocated at launch.
        spilled: 32-bit registers per thread that do not fit, by name of the role.
        spill_bytes: the compiler's count of spilled bytes per thread, loads and stores; None if it was not
            built.
        fullness: needed over allowed registers, of the role with the largest live buffers.
    """

    blocks: int
    limited_by: str
    registers: int
    spilled: dict[str, float]
    spill_bytes: float | None = None
    fullness: float = 0.0


def occupancy(profile: KernelProfile, target: Target, built: Mapping[str, int] | None = None) -> Occupancy:
    """Compute the resident blocks of a core from shared memory, registers, threads and block slots.

    Source: CUDA C++ Programming Guide, "Multiprocessor Level" (the same bounds hold on CDNA: LDS, VGPRs,
    waves). The register rule of warp-specialised kernels was exact on 149 of 149 compiled kernels of an
    earlier trial.

    Args:
        profile: the kernel.
        target: the capacities of a core.
        built: the compiler's figures of the kernel (`BuildResult.resources`): `registers`, `spill_bytes` and
            `smem_bytes`, if present, replace the estimates from the IR.
    """
    built = built or {}
    registers, spilled, fullness = _registers(profile, target)
    if built.get("registers"):
        registers = math.ceil(built["registers"] / ALLOCATION_UNIT) * ALLOCATION_UNIT
    spill_bytes = built.get("spill_bytes")
    if spill_bytes is not None:
        spilled = {spilling_role(profile).name: spill_bytes / SPILLED_REGISTER_BYTES} if spill_bytes else {}
    bounds = {
        "shared memory": _shared_bound(built.get("smem_bytes") or profile.shared_bytes, target),
        "registers": int(
            target["core.memory.registers.bytes"] // (4 * registers * _rounded_threads(profile, target))
        ),
        "threads": target.int("core.max_threads") // _rounded_threads(profile, target),
        "block slots": target.int("core.max_blocks"),
    }
    if profile.block_threads > target.int("core.max_block_threads"):
        bounds["threads"] = 0
    limited_by = min(bounds, key=lambda name: bounds[name])
    return Occupancy(bounds[limited_by], limited_by, registers, spilled, spill_bytes, fullness)


def spilling_role(profile: KernelProfile) -> Role:
    """The role for which the compiler runs out of registers: the one with the largest live buffers."""
    return max(profile.roles, key=lambda role: role.local_registers)


def misfit(profile: KernelProfile, target: Target) -> str | None:
    """Why a block of this kernel cannot run on the target; None if it can."""
    if profile.is_exchange:
        return None
    if not profile.roles:
        return "does nothing that takes time: there is nothing to predict"
    limit = target.int("core.memory.shared.block_bytes")
    if profile.shared_bytes > limit:
        return (
            f"needs {profile.shared_bytes} bytes of shared memory, {target.name} gives a block {limit}; "
            "use smaller tiles or fewer stages"
        )
    most = target.int("core.max_block_threads")
    if profile.block_threads > most:
        return (
            f"launches {profile.block_threads} threads a block, {target.name} allows {most}; "
            "use fewer threads"
        )
    return None


def _shared_bound(shared_bytes: int, target: Target) -> int:
    if shared_bytes > target["core.memory.shared.block_bytes"]:
        return 0
    if not shared_bytes:
        return target.int("core.max_threads")  # no bound
    each = shared_bytes + target["core.memory.shared.reserved_bytes"]
    return int(target["core.memory.shared.bytes"] // each)


def _rounded_threads(profile: KernelProfile, target: Target) -> int:
    warp = target.int("warp.threads")
    return math.ceil(profile.block_threads / warp) * warp


def registers_limit(profile: KernelProfile, target: Target) -> float:
    """The most registers that the compiler can give a thread; as many blocks fit as the kernel asks for.

    It is asked by CUDA's launch bounds, which ptxas ignores for more threads than a core holds.
    """
    block = _rounded_threads(profile, target)
    threads = block * (profile.min_blocks_per_core if profile.kind == "cuda" else 1)
    if threads > target["core.max_threads"]:
        threads = block
    file_limit = target["core.memory.registers.bytes"] / 4 / threads
    return min(target["thread.max_registers"], file_limit // ALLOCATION_UNIT * ALLOCATION_UNIT)


def _registers(profile: KernelProfile, target: Target) -> tuple[int, dict[str, float], float]:
    """(registers per thread at launch, registers that each role lacks, fullness as in `Occupancy`)."""
    limit = registers_limit(profile, target)
    roles = {role.name: role for role in profile.roles}
    if any(role.registers_limit is not None for role in roles.values()):
        # the kernel moves registers from its producer to its consumers: it is launched with the whole
        # register file
        allocated = int(min(SPECIALISED_LAUNCH_LIMIT, limit))
    else:
        need = max((registers_taken(role, profile) for role in profile.roles), default=0.0)
        units = max(need, BARE_CONTROL_REGISTERS) / ALLOCATION_UNIT
        allocated = int(
            min(limit, ALLOCATION_UNIT * (math.ceil(units) if _matrix_kind(profile) else round(units)))
        )
    lacking = {
        name: _lacking(role, profile, float(role.registers_limit or limit)) for name, role in roles.items()
    }
    holder = spilling_role(profile)
    most = float(holder.registers_limit or limit)
    fullness = registers_needed(holder, profile, most) / most
    return allocated, {name: short for name, short in lacking.items() if short > 0}, fullness


def registers_needed(role: Role, profile: KernelProfile, limit: float = math.inf) -> float:
    """Registers per thread below which `role` spills: its live buffers and the overhead of every program.

    If there are no more than `limit`, the compiler keeps one copy of the numbers of a row, as 32-bit values.
    If those do not fit, either, it moves both copies.

    Source: ptxas reports of 6,308 TileLang kernels of six operators (datasets of an H200).
    """
    if role.name == "producer":
        return role.local_registers + PRODUCER_OVERHEAD_REGISTERS
    if any(r.name == "producer" for r in profile.roles):
        many = role.threads >= 3 * WARP_GROUP_THREADS
        return role.local_registers + (MANY_GROUPS_OVERHEAD_REGISTERS if many else ROLE_OVERHEAD_REGISTERS)
    rows, wide = _rows_kept(role, profile), _widened(role, profile)
    overhead = min(_overhead(profile), OTHER_OVERHEAD_REGISTERS)
    live = role.local_registers + rows if rows else live_share(profile) * role.local_registers
    if wide > live / FEW_OF_LIVE:
        live = wide if wide + overhead <= limit else wide + rows
    return live + overhead


def live_share(profile: KernelProfile) -> float:
    """Share of a role's live buffers that is in registers together."""
    return 1.0 if _matrix_kind(profile) else JOINED_SHARE


def _rows_kept(role: Role, profile: KernelProfile) -> float:
    """Registers per thread of rows that threads reduce together, and store only then.

    The compiler cannot join the loops before and after the reduction, and keeps the rows as 32-bit values
    beside the buffers of their own type.
    """
    if _matrix_kind(profile):
        return 0.0
    return KEPT_SHARE * max(
        (
            _kept_registers(phase, role.threads, profile)
            for phase in role.phases
            if phase.work.shuffles and not phase.is_loop and not _is_loaded_again(role, phase)
        ),
        default=0.0,
    )


def registers_taken(role: Role, profile: KernelProfile) -> float:
    """Registers per thread that the compiler gives `role` if there are enough. It issues loads early.

    Data on its way from plain loads to plain stores in shared memory waits in registers, and the operands of
    mma.sync are loaded for several steps at once. Source: as for `registers_needed`.
    """
    needed = registers_needed(role, profile)
    if any(r.name == "producer" for r in profile.roles):
        return needed + QUOTIENT_REGISTERS * _divided_addresses(role)
    if _matrix_kind(profile):
        beside, before = (_staged_at_once(role, in_loops=in_loops) for in_loops in (True, False))
        held = BLOCK_QUOTIENT_REGISTERS * _divided_addresses(role)
        return max(role.local_registers + max(beside, held), before) + _overhead(profile)
    ahead = max(
        (
            (iterations_joined(p, role.threads, WARP_THREADS) - 1) * _loaded_registers(p, role.threads)
            for p in role.phases
            if p.is_loop
        ),
        default=0.0,
    )
    together = max((_loaded_together(p, role.threads) for p in role.phases if not p.is_loop), default=0.0)
    kept = max((_kept_registers(p, role.threads, profile) for p in role.phases if not p.is_loop), default=0.0)
    # live buffers of twice as many registers have the 32-bit values among them
    beside = min(kept, max(0.0, 2 * kept - role.local_registers))
    return max(
        role.local_registers + max(ahead, KEPT_SHARE * beside) + _overhead(profile),
        _widened(role, profile) + _rows_kept(role, profile) + _overhead(profile),
        together + TOGETHER_OVERHEAD_REGISTERS,
    )


def _staged_at_once(role: Role, *, in_loops: bool) -> float:
    """Registers per thread of data that loops, or straight code, move to shared memory by plain accesses."""
    phases = (phase for phase in role.phases if phase.is_loop is in_loops)
    return STAGED_SHARE * max((_staged_registers(phase, role.threads) for phase in phases), default=0.0)


def _divided_addresses(role: Role) -> float:
    """Addresses of a thread in a loop whose parts come from divisions and are changed by no iteration."""
    warps = max(1.0, role.threads / WARP_THREADS)
    return max((p.work.divided_addresses / warps for p in role.phases if p.is_loop), default=0.0)


def _matrix_kind(profile: KernelProfile) -> str:
    """wgmma, mma or mfma; empty without matrix work."""
    return max(
        (m.instruction.split(".")[0] for r in profile.roles for p in r.phases for m in p.work.matrix),
        default="",
    )


def _overhead(profile: KernelProfile) -> float:
    return BLOCK_OVERHEAD_REGISTERS.get(_matrix_kind(profile), OTHER_OVERHEAD_REGISTERS)


def _staged_registers(phase: Phase, threads: int) -> float:
    """Registers per thread for data that an iteration moves to shared memory by plain accesses."""
    words = sum(a.bytes for a in _plain_loads(phase)) / 4 / threads
    return _held(_plain_loads(phase), threads) * min(1.0, _stored(phase, threads) / words) if words else 0.0


def _loaded_registers(phase: Phase, threads: int) -> float:
    """Registers per thread for the data of the plain loads of one iteration.

    If the larger part of it goes to shared memory, the rest is loaded later.
    """
    loads = _plain_loads(phase)
    held = _held(loads, threads)
    return min(held, _stored(phase, threads)) if _stages(phase, threads) else held


def _loaded_together(phase: Phase, threads: int) -> float:
    """Registers per thread for the plain loads of straight code that are in flight at once.

    Branches that the compiler keeps have few loads, and are waited for one after another. If each has as many
    as there are predicates, the compiler makes predicates of the branches and holds all loads together.
    """
    loaded = _loaded_registers(phase, threads)
    branches = phase.work.load_branches / max(1.0, threads / WARP_THREADS)
    return loaded / branches if branches > 1 and loaded < PREDICATED_LOADS * branches else loaded


def _stages(phase: Phase, threads: int) -> bool:
    """Whether the larger part of the plain loads of one iteration goes to shared memory."""
    loaded = max((a.bytes for a in _plain_loads(phase)), default=0.0)
    return _stored(phase, threads) >= loaded / 4 / threads


def _comes_back(phase: Phase) -> bool:
    """Whether threads load what they stored to shared memory, once, before they exchange values."""
    accesses = [a for a in phase.work.accesses if a.space is Space.SHARED and a.mechanism in ("ld", "st")]
    exchange = next((i for i, a in enumerate(accesses) if a.tensor == WORKSPACE), 0)
    loads = [a for a in accesses[:exchange] if not a.write]
    if not loads:
        return False
    rows = [a for a in accesses if a.tensor == max(loads, key=lambda a: a.bytes).tensor]
    loaded, stored = (sum(a.bytes for a in rows if a.write is write) for write in (False, True))
    return stored / LOADED_AGAIN <= loaded <= stored * LOADED_AGAIN


def _kept_registers(phase: Phase, threads: int, profile: KernelProfile) -> float:
    """Elements per thread that straight code loads and later stores again.

    The compiler keeps them as 32-bit values beside the buffer of their own type. What threads only move to
    shared memory is not kept.
    """
    if _stages(phase, threads) and not _comes_back(phase):
        return 0.0
    sizes = {t.label: t.element_bytes for t in profile.tensors}
    written = sum(
        a.bytes / sizes.get(a.tensor, 4)
        for a in phase.work.accesses
        if a.space is Space.GLOBAL and a.mechanism == "st"
    )
    loaded = max((a.bytes / sizes.get(a.tensor, 4) for a in _plain_loads(phase)), default=0.0)
    return min(written, loaded) / threads


def _widened(role: Role, profile: KernelProfile) -> float:
    """Registers per thread for loaded numbers that the compiler keeps as 32-bit values."""
    return max((_widened_numbers(role, phase, profile) for phase in role.phases), default=0.0)


def _widened_numbers(role: Role, phase: Phase, profile: KernelProfile) -> float:
    """Loaded numbers per thread that one iteration of `phase` keeps as 32-bit values.

    The compiler converts a number once. One that is compared first and goes through a special function later,
    as in a softmax, is kept in between. In straight code that holds for rows that threads reduce together:
    other code converts a number where it uses it.
    """
    work, loads = phase.work, _plain_loads(phase)
    if work.matrix or not loads or _stages(phase, role.threads):
        return 0.0
    if _is_loaded_again(role, phase) or not (phase.is_loop or work.shuffles):
        return 0.0
    largest = max(loads, key=_different_bytes)
    sizes = {t.label: t.element_bytes for t in profile.tensors}
    numbers = _different_bytes(largest) / sizes.get(largest.tensor, 4)
    return numbers / role.threads if work.special_ops >= WIDENED_SHARE * numbers else 0.0


def _is_loaded_again(role: Role, phase: Phase) -> bool:
    """Whether a block loads numbers of a phase twice: those of straight code here or in a loop before it,
    those of a loop in one iteration.
    """
    loads = _plain_loads(phase)
    if not loads:
        return False
    largest = max(loads, key=_different_bytes)
    phases = [(phase, 1.0)] if phase.is_loop else [(p, p.trips.mean) for p in role.phases]
    total = sum(a.bytes * times for p, times in phases for a in _plain_loads(p) if a.tensor == largest.tensor)
    return total > LOADED_AGAIN * _different_bytes(largest)


def _different_bytes(access: Access) -> float:
    """Bytes of an access in one iteration, each once as far as is known."""
    return access.footprint_bytes or access.bytes


def _plain_loads(phase: Phase) -> list[Access]:
    return [a for a in phase.work.accesses if a.space is Space.GLOBAL and a.mechanism == "ld"]


def _held(loads: list[Access], threads: int) -> float:
    # a load of less than a word takes a whole register
    warps = max(1.0, threads / WARP_THREADS)
    return sum(a.instructions * max(1.0, a.vector_bytes / 4) for a in loads) / warps


def _stored(phase: Phase, threads: int) -> float:
    return (
        sum(a.bytes for a in phase.work.accesses if a.space is Space.SHARED and a.mechanism == "st")
        / 4
        / threads
    )


def _lacking(role: Role, profile: KernelProfile, limit: float) -> float:
    """Registers per thread that `role` lacks.

    A role without local buffers moves data by copy engines and always fits.
    """
    if not role.local_registers:
        return 0.0
    return max(0.0, registers_needed(role, profile, limit) - limit)
