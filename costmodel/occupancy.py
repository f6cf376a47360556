"""How many blocks of a kernel live on a core together, and what of a role's registers does not fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..profile import Access, KernelProfile, Phase, Role, Space
from ..target import Target

# Registers beside the fragments: addresses, loop counters, descriptors, operands on their way. Read off ptxas reports of
# TileLang kernels (see `registers_needed`): roles that leave copying to a producer need 24, blocks that copy for
# themselves more, above all where mma.sync takes its operands from registers; blocks without matrix work least.
ROLE_OVERHEAD_REGISTERS = 24
MANY_GROUPS_OVERHEAD_REGISTERS = 28  # the same where three or more groups of four warps consume
BLOCK_OVERHEAD_REGISTERS = {"wgmma": 36, "mma": 100, "": 20}
OTHER_OVERHEAD_REGISTERS = 40  # matrix instructions that no compiled kernel told us about
# of what plain loads and stores bring to shared memory: in registers at once
STAGED_SHARE = 0.5
KEPT_SHARE = 0.7  # of elements that straight code loads and stores again
TOGETHER_OVERHEAD_REGISTERS = 16  # beside plain loads of straight code, all of which are issued before the first is used
WARP_THREADS = 32
WARP_GROUP_THREADS = 128
# ptxas gives a warp-specialised kernel at most this many registers a thread at launch, then setmaxnreg moves them
SPECIALISED_LAUNCH_LIMIT = 240
ALLOCATION_UNIT = 8  # registers a thread are allocated in eights
BARE_CONTROL_REGISTERS = 24
SPILLED_REGISTER_BYTES = 8  # a register that is spilled once is stored and loaded once


@dataclass(frozen=True, slots=True)
class Occupancy:
    """`blocks` resident per core (0: one block alone does not fit), and the resource that bounds them.

    `spilled` is the number of 32-bit registers per thread that do not fit, by role name. `spill_bytes` is the compiler's
    own count of spilled bytes per thread, loads and stores; None where it has not been asked.
    """

    blocks: int
    limited_by: str
    registers: int  # per thread, as allocated at launch
    spilled: dict[str, float]
    spill_bytes: float | None = None
    fullness: float = 0.0  # registers needed over registers allowed, of the role that needs most for its buffers


def occupancy(profile: KernelProfile, target: Target, built: Mapping[str, int] | None = None) -> Occupancy:
    """Resident blocks per core from shared memory, registers, threads and block slots.

    `built` are the compiler's figures of this kernel (`BuildResult.resources`): what it has of `registers`, `spill_bytes`
    and `smem_bytes` takes the place of what the IR says.

    Source: CUDA C++ Programming Guide, "Multiprocessor Level" (the same bounds hold on CDNA: LDS, VGPRs, waves). The
    register rule of warp-specialised kernels was exact on 149 of 149 compiled kernels of an earlier trial.
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
        "registers": int(target["core.memory.registers.bytes"] // (4 * registers * _rounded_threads(profile, target))),
        "threads": target.int("core.max_threads") // _rounded_threads(profile, target),
        "block slots": target.int("core.max_blocks"),
    }
    if profile.block_threads > target.int("core.max_block_threads"):
        bounds["threads"] = 0
    limited_by = min(bounds, key=lambda name: bounds[name])
    return Occupancy(bounds[limited_by], limited_by, registers, spilled, spill_bytes, fullness)


def spilling_role(profile: KernelProfile) -> Role:
    """The role whose registers the compiler runs out of: the one with the largest live buffers."""
    return max(profile.roles, key=lambda role: role.local_registers)


def misfit(profile: KernelProfile, target: Target) -> str | None:
    """Why one block of this kernel cannot run on the target at all; None where it can."""
    if not profile.roles:
        return "does nothing that takes time: there is nothing to predict"
    limit = target.int("core.memory.shared.block_bytes")
    if profile.shared_bytes > limit:
        return (
            f"needs {profile.shared_bytes} bytes of shared memory, {target.name} gives a block {limit}; use smaller tiles or fewer stages"
        )
    most = target.int("core.max_block_threads")
    if profile.block_threads > most:
        return f"launches {profile.block_threads} threads a block, {target.name} allows {most}; use fewer threads"
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


def _registers(profile: KernelProfile, target: Target) -> tuple[int, dict[str, float], float]:
    """Registers per thread at launch, what each role lacks, and how full the role that needs most makes its share."""
    file_limit = target["core.memory.registers.bytes"] / 4 / _rounded_threads(profile, target)
    limit = min(target["thread.max_registers"], file_limit // ALLOCATION_UNIT * ALLOCATION_UNIT)
    roles = {role.name: role for role in profile.roles}
    if any(role.registers_limit is not None for role in roles.values()):
        # the kernel moves registers from its producer to its consumers: it is launched with all that the file has
        allocated = int(min(SPECIALISED_LAUNCH_LIMIT, limit))
    else:
        need = max((registers_taken(role, profile) for role in profile.roles), default=0.0)
        allocated = int(min(limit, math.ceil(max(need, BARE_CONTROL_REGISTERS) / ALLOCATION_UNIT) * ALLOCATION_UNIT))
    lacking = {name: _lacking(role, profile, float(role.registers_limit or limit)) for name, role in roles.items()}
    holder = spilling_role(profile)
    fullness = registers_needed(holder, profile) / (holder.registers_limit or limit)
    return allocated, {name: short for name, short in lacking.items() if short > 0}, fullness


def registers_needed(role: Role, profile: KernelProfile) -> float:
    """Registers per thread without which `role` spills: its live buffers and what every program needs beside them.

    Source: ptxas reports of 6,308 TileLang kernels of six operators (datasets of an H200).
    """
    if any(r.name == "producer" for r in profile.roles):
        many = role.threads >= 3 * WARP_GROUP_THREADS
        return role.local_registers + (MANY_GROUPS_OVERHEAD_REGISTERS if many else ROLE_OVERHEAD_REGISTERS)
    return role.local_registers + min(_overhead(profile), OTHER_OVERHEAD_REGISTERS)


def registers_taken(role: Role, profile: KernelProfile) -> float:
    """Registers per thread that the compiler gives `role` where it may: loads are issued ahead of their use.

    Same source. What plain loads bring and plain stores put into shared memory waits in registers in between, and
    mma.sync's operands are loaded for several steps at once.
    """
    needed = registers_needed(role, profile)
    if any(r.name == "producer" for r in profile.roles):
        return needed
    if _matrix_kind(profile):
        staged = max((_staged_registers(phase, role.threads) for phase in role.phases), default=0.0)
        return role.local_registers + _overhead(profile) + STAGED_SHARE * staged
    ahead = max(((p.pipeline_depth - 1) * _loaded_registers(p, role.threads) for p in role.phases if p.is_loop), default=0.0)
    together = max((_loaded_registers(p, role.threads) for p in role.phases if not p.is_loop), default=0.0)
    kept = max((_kept_registers(p, role.threads, profile) for p in role.phases if not p.is_loop), default=0.0)
    return max(role.local_registers + max(ahead, KEPT_SHARE * kept) + _overhead(profile), together + TOGETHER_OVERHEAD_REGISTERS)


def _matrix_kind(profile: KernelProfile) -> str:
    """wgmma, mma, mfma; empty where there is no matrix work."""
    return max((m.instruction.split(".")[0] for r in profile.roles for p in r.phases for m in p.work.matrix), default="")


def _overhead(profile: KernelProfile) -> float:
    return BLOCK_OVERHEAD_REGISTERS.get(_matrix_kind(profile), OTHER_OVERHEAD_REGISTERS)


def _staged_registers(phase: Phase, threads: int) -> float:
    """Registers per thread that hold what one iteration moves from global to shared memory by plain loads and stores."""
    words = sum(a.bytes for a in _plain_loads(phase)) / 4 / threads
    return _held(_plain_loads(phase), threads) * min(1.0, _stored(phase, threads) / words) if words else 0.0


def _loaded_registers(phase: Phase, threads: int) -> float:
    """Registers per thread that hold what the plain loads of one iteration bring. Where the larger part of it goes to shared
    memory, the rest is loaded later."""
    loads = _plain_loads(phase)
    held, stored = _held(loads, threads), _stored(phase, threads)
    return min(held, stored) if stored >= max((a.bytes for a in loads), default=0.0) / 4 / threads else held


def _kept_registers(phase: Phase, threads: int, profile: KernelProfile) -> float:
    """Elements per thread that straight code loads and, after other work, stores again without shared memory in between:
    the compiler keeps them as 32-bit values beside the buffer of their own type."""
    if _stored(phase, threads) >= max((a.bytes for a in _plain_loads(phase)), default=0.0) / 4 / threads:
        return 0.0
    sizes = {t.label: t.element_bytes for t in profile.tensors}
    written = sum(a.bytes / sizes.get(a.tensor, 4) for a in phase.work.accesses if a.space is Space.GLOBAL and a.mechanism == "st")
    loaded = max((a.bytes / sizes.get(a.tensor, 4) for a in _plain_loads(phase)), default=0.0)
    return min(written, loaded) / threads


def _plain_loads(phase: Phase) -> list[Access]:
    return [a for a in phase.work.accesses if a.space is Space.GLOBAL and a.mechanism == "ld"]


def _held(loads: list[Access], threads: int) -> float:
    # a load of less than a word takes a register all the same
    return sum(a.instructions * WARP_THREADS / threads * max(1.0, a.vector_bytes / 4) for a in loads)


def _stored(phase: Phase, threads: int) -> float:
    return sum(a.bytes for a in phase.work.accesses if a.space is Space.SHARED and a.mechanism == "st") / 4 / threads


def _lacking(role: Role, profile: KernelProfile, limit: float) -> float:
    """A role without local buffers moves data by copy engines alone: it fits whatever it is left."""
    return max(0.0, registers_needed(role, profile) - limit) if role.local_registers else 0.0
