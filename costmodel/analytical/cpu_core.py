"""The model of one CPU core: the register tile of each store at the rate of the units, fed by the caches.

It is meant for ranking the tiles of TileLang's C backend on the local machine. Its figures are those of a
typical core, so the times are rough, but their order is useful. Source of the cache rule: the classic reuse
argument (a loop nest whose distinct data fits a cache is fetched into it once for each execution).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...profile.values import Access, KernelProfile, Phase, Space
from ...records.trial import Prediction
from ...target.spec import Target
from .gathers import LINE_BYTES, fetched_bytes, first_share, hit_share

VECTOR_UNITS = 2.0  # multiply-add units; `core.unit.vector.fp32_lanes` counts the lanes of all of them
VECTOR_REGISTERS = 32.0  # AVX-512
MULTIPLY_ADD_LATENCY = 4.0  # cycles
STORES_PER_CYCLE = 1.0
LOADS_PER_CYCLE = 2.0
KEPT_SHARE = 0.75  # usable share of a cache: associativity and other data take the rest
UNCERTAINTY = 0.5
CHOSEN_UNCERTAINTY = 0.5  # of places in tensors that loaded data chooses, added as a square
LEVELS = ("l2", "llc", "dram")


def predict(profile: KernelProfile, target: Target, version: str) -> Prediction:
    """Predict the microseconds of one call on one core: the C backend makes no threads."""
    cycles_per_us = target["core.clock_mhz"]
    compute = loads = 0.0
    memory = dict.fromkeys(LEVELS, 0.0)
    total = 0.0
    sizes = {t.label: float(t.bytes) for t in profile.tensors}
    for role in profile.roles:
        for phase in role.phases:
            arithmetic, traffic = _arithmetic_cycles(phase, target), _load_store_cycles(phase, target)
            misses = _miss_cycles(phase, target, cycles_per_us, sizes)
            compute += arithmetic
            loads += traffic
            for level, cycles in misses.items():
                memory[level] += cycles
            # an out-of-order core hides cache misses behind arithmetic only in part
            total += max(arithmetic, traffic) + 0.5 * sum(misses.values())
    latency = target["device.launch_us"] + total / cycles_per_us
    terms = {
        "launch": target["device.launch_us"],
        "vector": compute / cycles_per_us,
        "l1": loads / cycles_per_us,
    }
    terms |= {level: cycles / cycles_per_us for level, cycles in memory.items()}
    resources = ("vector", "l1", *LEVELS)
    return Prediction(
        latency_us=latency,
        utilization={name: min(1.0, terms[name] / latency) for name in resources},
        limiting=max(resources, key=lambda name: terms[name]),
        terms_us=terms,
        uncertainty=_uncertainty(profile),
        notes=(
            *profile.notes,
            *(f"{name} is not understood: charged as a long function" for name in profile.unknown_calls),
        ),
        model=version,
    )


def _uncertainty(profile: KernelProfile) -> float:
    chosen = any(a.row_bytes for r in profile.roles for p in r.phases for a in p.work.accesses)
    return math.hypot(UNCERTAINTY, CHOSEN_UNCERTAINTY) if chosen else UNCERTAINTY


def _arithmetic_cycles(phase: Phase, target: Target) -> float:
    """Cycles of the vector units.

    They run at full rate if the stores of the tile are contiguous, else with one lane a unit. A reduction
    into few accumulators waits for the latency of each step.
    """
    work = phase.work
    native = target["core.unit.vector.fp32_lanes"] / VECTOR_UNITS
    store = next((a for a in work.accesses if a.write), None)
    lanes = min(native, max(1.0, store.vector_bytes / 4)) if store else 1.0
    cycles = work.vector_ops / (VECTOR_UNITS * lanes) + work.special_ops / target["core.unit.special.lanes"]
    if store is not None and any(not a.write and a.tensor == store.tensor for a in work.accesses):
        cycles = max(cycles, MULTIPLY_ADD_LATENCY)
    return cycles * phase.trips.mean


def _load_store_cycles(phase: Phase, target: Target) -> float:
    """Cycles of the load and store ports.

    A local tile that fits in vector registers is not loaded or stored.
    """
    native_bytes = target["core.unit.vector.fp32_lanes"] / VECTOR_UNITS * 4
    loads = stores = 0.0
    for access in phase.work.accesses:
        if access.space is Space.LOCAL and _stays_in_registers(access, native_bytes):
            continue
        count = access.bytes / min(access.vector_bytes, native_bytes)
        loads, stores = (loads, stores + count) if access.write else (loads + count, stores)
    return max(loads / LOADS_PER_CYCLE, stores / STORES_PER_CYCLE) * phase.trips.mean


def _stays_in_registers(access: Access, native_bytes: float) -> bool:
    """Whether a local tile does not change with the loop around it and fits in registers beside operands."""
    moves = len(access.levels) > 1 and access.levels[1][1] > access.levels[0][1]
    return not moves and access.bytes <= (VECTOR_REGISTERS - 2) * native_bytes


def _miss_cycles(
    phase: Phase, target: Target, cycles_per_us: float, sizes: Mapping[str, float]
) -> dict[str, float]:
    """Cycles to fetch the misses of each cache level from the next level, by the name of that next level."""
    capacities = {
        "l2": target["core.memory.l1.bytes"],
        "llc": target["core.memory.l2.bytes"],
        "dram": target["device.memory.llc.bytes"],
    }
    rates = {
        "l2": target["core.memory.l2.bytes_per_cycle"],
        "llc": target["device.memory.llc.gb_per_s"] * 1e3 / cycles_per_us,
        "dram": target["device.memory.dram.gb_per_s"] * 1e3 / cycles_per_us,
    }
    return {level: _fetched(phase, capacities[level] * KEPT_SHARE, sizes) / rates[level] for level in LEVELS}


def _fetched(phase: Phase, capacity: float, sizes: Mapping[str, float]) -> float:
    """Bytes that are fetched into a cache of `capacity` bytes.

    The distinct data of each access is fetched once, and again in each iteration of a loop that does not
    change its address but whose data does not fit. `sizes` are the bytes of each tensor: places that loaded
    data chooses lie within them.
    """
    accesses = phase.work.accesses
    if not accesses:
        return 0.0
    depth = min(len(a.levels) for a in accesses)
    overflows = [sum(_distinct(a, level, sizes) for a in accesses) > capacity for level in range(depth)]
    if not overflows[-1]:
        # everything fits: the tensors of the kernel are fetched once, local buffers are in the cache already
        return sum(_distinct(a, -1, sizes) for a in accesses if a.space is Space.GLOBAL)
    at_known, chosen = 0.0, []
    for access in accesses:
        fetched = access.levels[-1][1]
        for level in range(depth - 1):
            (here, inside), (outer, around) = access.levels[level], access.levels[level + 1]
            if around == inside and overflows[level]:
                fetched *= here / outer
        if access.row_bytes:
            chosen.append((access, fetched * fetched_bytes(access.row_bytes, LINE_BYTES)))
        else:
            at_known += fetched
    return at_known + sum(_refetched(a, read, sizes, at_known, capacity) for a, read in chosen)


def _distinct(access: Access, level: int, sizes: Mapping[str, float]) -> float:
    """Distinct bytes of an access in one execution of the loop at `level`, in whole lines if data chooses."""
    inside = access.levels[level][1]
    if not access.row_bytes:
        return inside
    read = inside * fetched_bytes(access.row_bytes, LINE_BYTES)
    return read * first_share(read, sizes.get(access.tensor, 0.0), access.row_bytes, LINE_BYTES)


def _refetched(
    access: Access, read: float, sizes: Mapping[str, float], streamed: float, capacity: float
) -> float:
    """Bytes of an access at places that data chooses, of `read` bytes, that its cache does not have."""
    first = first_share(read, sizes.get(access.tensor, 0.0), access.row_bytes, LINE_BYTES)
    return read * (first + (1 - first) * (1 - hit_share(read, read * first, streamed, capacity)))
