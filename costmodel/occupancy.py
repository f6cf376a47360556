"""How many blocks of a kernel live on a core together, and what of a role's registers does not fit."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..profile import KernelProfile, Role
from ..target import Target

# Registers beside the fragments: addresses, loop counters, descriptors. Read off ptxas reports of TileLang kernels: roles
# that leave copying to a producer need 24 (exact on four kernels), blocks that copy for themselves more.
ROLE_OVERHEAD_REGISTERS = 24
BLOCK_OVERHEAD_REGISTERS = 40
# ptxas gives a warp-specialised kernel at most this many registers a thread at launch, then setmaxnreg moves them
SPECIALISED_LAUNCH_LIMIT = 240
ALLOCATION_UNIT = 8  # registers a thread are allocated in eights
BARE_CONTROL_REGISTERS = 24


@dataclass(frozen=True, slots=True)
class Occupancy:
    """`blocks` resident per core (0: one block alone does not fit), and the resource that bounds them.

    `spilled` is the number of 32-bit registers per thread that do not fit, by role name.
    """

    blocks: int
    limited_by: str
    registers: int  # per thread, as allocated at launch
    spilled: dict[str, float]


def occupancy(profile: KernelProfile, target: Target) -> Occupancy:
    """Resident blocks per core from shared memory, registers, threads and block slots.

    Source: CUDA C++ Programming Guide, "Multiprocessor Level" (the same bounds hold on CDNA: LDS, VGPRs, waves). The
    register rule of warp-specialised kernels was exact on 149 of 149 compiled kernels of an earlier trial.
    """
    registers, spilled = _registers(profile, target)
    bounds = {
        "shared memory": _shared_bound(profile, target),
        "registers": int(target["core.memory.registers.bytes"] // (4 * registers * _rounded_threads(profile, target))),
        "threads": target.int("core.max_threads") // _rounded_threads(profile, target),
        "block slots": target.int("core.max_blocks"),
    }
    if profile.block_threads > target.int("core.max_block_threads"):
        bounds["threads"] = 0
    limited_by = min(bounds, key=lambda name: bounds[name])
    return Occupancy(bounds[limited_by], limited_by, registers, spilled)


def misfit(profile: KernelProfile, target: Target) -> str | None:
    """Why one block of this kernel cannot run on the target at all; None where it can."""
    limit = target.int("core.memory.shared.block_bytes")
    if profile.shared_bytes > limit:
        return (
            f"needs {profile.shared_bytes} bytes of shared memory, {target.name} gives a block {limit}; use smaller tiles or fewer stages"
        )
    most = target.int("core.max_block_threads")
    if profile.block_threads > most:
        return f"launches {profile.block_threads} threads a block, {target.name} allows {most}; use fewer threads"
    return None


def _shared_bound(profile: KernelProfile, target: Target) -> int:
    if profile.shared_bytes > target["core.memory.shared.block_bytes"]:
        return 0
    if not profile.shared_bytes:
        return target.int("core.max_threads")  # no bound
    each = profile.shared_bytes + target["core.memory.shared.reserved_bytes"]
    return int(target["core.memory.shared.bytes"] // each)


def _rounded_threads(profile: KernelProfile, target: Target) -> int:
    warp = target.int("warp.threads")
    return math.ceil(profile.block_threads / warp) * warp


def _registers(profile: KernelProfile, target: Target) -> tuple[int, dict[str, float]]:
    """Registers per thread at launch, and what each role lacks."""
    file_limit = target["core.memory.registers.bytes"] / 4 / _rounded_threads(profile, target)
    limit = min(target["thread.max_registers"], file_limit // ALLOCATION_UNIT * ALLOCATION_UNIT)
    roles = {role.name: role for role in profile.roles}
    overhead = ROLE_OVERHEAD_REGISTERS if "producer" in roles else BLOCK_OVERHEAD_REGISTERS
    if any(role.registers_limit is not None for role in roles.values()):
        # the kernel moves registers from its producer to its consumers: it is launched with all that the file has
        allocated = int(min(SPECIALISED_LAUNCH_LIMIT, limit))
    else:
        need = max((role.local_registers for role in roles.values()), default=0.0) + overhead
        allocated = int(min(limit, math.ceil(max(need, BARE_CONTROL_REGISTERS) / ALLOCATION_UNIT) * ALLOCATION_UNIT))
    lacking = {name: _lacking(role, float(role.registers_limit or limit), overhead) for name, role in roles.items()}
    return allocated, {name: short for name, short in lacking.items() if short > 0}


def _lacking(role: Role, limit: float, overhead: int) -> float:
    """A role without local buffers moves data by copy engines alone: it fits whatever it is left."""
    return max(0.0, role.local_registers + overhead - limit) if role.local_registers else 0.0
