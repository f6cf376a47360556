"""How many blocks of a kernel live on a core together, and what of a role's registers does not fit."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ..profile import KernelProfile, Phase, Role, Space
from ..target import Target

# Registers beside the fragments: addresses, loop counters, descriptors, operands on their way. Read off ptxas reports of
# TileLang kernels (see `registers_needed`): roles that leave copying to a producer need 24, blocks that copy for
# themselves more, above all where mma.sync takes its operands from registers; blocks without matrix work least.
ROLE_OVERHEAD_REGISTERS = 24
BLOCK_OVERHEAD_REGISTERS = {"wgmma": 36, "mma": 100, "": 20}
OTHER_OVERHEAD_REGISTERS = 40  # matrix instructions that no compiled kernel told us about
# of what plain loads and stores bring to shared memory: in registers at once
STAGED_SHARE = 0.5
STAGED_SHARE_WITHOUT_MATRIX = 0.75
WARP_THREADS = 32
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
        told = math.ceil(built["registers"] / ALLOCATION_UNIT) * ALLOCATION_UNIT
        registers = min(told, registers) if _streams(profile) else told
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


def _streams(profile: KernelProfile) -> bool:
    """Whether a loop loads into registers and has no matrix work. There the compiler spends registers on having more loads
    in flight: what that costs in resident blocks, it gains in each of them (79 gemv kernels of an H200: 26 % error
    where the blocks are lowered alone, 5 % where they are not)."""
    phases = [phase for role in profile.roles for phase in role.phases]
    loads = any(a.space is Space.GLOBAL and not a.write and not a.asynchronous for p in phases if p.is_loop for a in p.work.accesses)
    return loads and not any(p.work.matrix for p in phases)


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
        return role.local_registers + ROLE_OVERHEAD_REGISTERS
    return role.local_registers + min(_overhead(profile), OTHER_OVERHEAD_REGISTERS)


def registers_taken(role: Role, profile: KernelProfile) -> float:
    """Registers per thread that the compiler gives `role` where it may: loads are issued ahead of their use.

    Same source. What plain loads bring and plain stores put into shared memory waits in registers in between, and
    mma.sync's operands are loaded for several steps at once.
    """
    needed = registers_needed(role, profile)
    if any(r.name == "producer" for r in profile.roles):
        return needed
    staged = max((_staged_registers(phase, role.threads) for phase in role.phases), default=0.0)
    share = STAGED_SHARE if _matrix_kind(profile) else STAGED_SHARE_WITHOUT_MATRIX
    return role.local_registers + _overhead(profile) + share * staged


def _matrix_kind(profile: KernelProfile) -> str:
    """wgmma, mma, mfma; empty where there is no matrix work."""
    return max((m.instruction.split(".")[0] for r in profile.roles for p in r.phases for m in p.work.matrix), default="")


def _overhead(profile: KernelProfile) -> float:
    return BLOCK_OVERHEAD_REGISTERS.get(_matrix_kind(profile), OTHER_OVERHEAD_REGISTERS)


def _staged_registers(phase: Phase, threads: int) -> float:
    """Registers per thread that hold what one iteration moves from global to shared memory by plain loads and stores."""
    loads = [a for a in phase.work.accesses if a.space is Space.GLOBAL and a.mechanism == "ld"]
    stored = sum(a.bytes for a in phase.work.accesses if a.space is Space.SHARED and a.mechanism == "st") / 4 / threads
    words = sum(a.bytes for a in loads) / 4 / threads
    # a load of less than a word takes a register all the same
    held = sum(a.instructions * WARP_THREADS / threads * max(1.0, a.vector_bytes / 4) for a in loads)
    return held * min(1.0, stored / words) if words else 0.0


def _lacking(role: Role, profile: KernelProfile, limit: float) -> float:
    """A role without local buffers moves data by copy engines alone: it fits whatever it is left."""
    return max(0.0, registers_needed(role, profile) - limit) if role.local_registers else 0.0
