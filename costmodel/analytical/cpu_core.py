"""The model of one CPU core: arithmetic, load and store ports, and the bytes that each level of memory
serves.

It is meant for TileLang's C backend, which makes no threads. The caches are as the timing protocol leaves
them: the kernel ran before on the same inputs, so what fits a cache is in it (`cpu_caches.py`). The figures
of the `cpu` target are those of a typical core; `tilesight calibrate --target cpu` measures those of the
machine at hand.
"""

from __future__ import annotations

import math

from ...profile.values import KernelProfile, Phase
from ...records.trial import Prediction
from ...target.spec import Target
from .cpu_caches import LEVELS, served_bytes
from .norms import p_norm

VECTOR_UNITS = 2.0  # multiply-add units; `core.unit.vector.fp32_lanes` counts the lanes of all of them
STORES_PER_CYCLE = 1.5
LOADS_PER_CYCLE = 3.0
LOOP_CYCLES = 1.0  # to enter an innermost loop
# An out-of-order core overlaps its units with each other and with memory, but not completely.
OVERLAP_NORM = 3.0
UNCERTAINTY = 0.3  # with figures that were measured on this machine
TYPICAL_UNCERTAINTY = 0.6  # of the figures of a typical core, added as a square
UNKNOWN_CALL_UNCERTAINTY = 0.5
CHOSEN_UNCERTAINTY = 0.5  # of places in tensors that loaded data chooses


def predict(profile: KernelProfile, target: Target, version: str) -> Prediction:
    """Predict the microseconds of one call on one core."""
    cycles_per_us = target["core.clock_mhz"]
    phases = [phase for role in profile.roles for phase in role.phases]
    arithmetic = [_arithmetic_cycles(phase, target) for phase in phases]
    ports = [_port_cycles(phase, target) for phase in phases]
    served = served_bytes(profile, target)
    rates = {
        "l2": target["core.memory.l2.bytes_per_cycle"] * cycles_per_us,
        "llc": target["device.memory.llc.gb_per_s"] * 1e3,
        "dram": target["device.memory.dram.gb_per_s"] * 1e3,
    }
    terms = {
        "launch": target["device.launch_us"],
        "vector": sum(arithmetic) / cycles_per_us,
        "l1": sum(ports) / cycles_per_us,
        **{level: served[level] / rates[level] for level in LEVELS},
        "loops": sum(phase.work.loop_entries * phase.trips.mean for phase in phases)
        * LOOP_CYCLES
        / cycles_per_us,
    }
    core_us = sum(map(max, arithmetic, ports)) / cycles_per_us
    memory_us = sum(terms[level] for level in LEVELS)
    latency = terms["launch"] + p_norm([core_us + terms["loops"], memory_us], OVERLAP_NORM)
    resources = ("vector", "l1", *LEVELS)
    unknown = [f"{name} is not understood: charged as a long function" for name in profile.unknown_calls]
    notes = (*profile.notes, *unknown)
    return Prediction(
        latency_us=latency,
        utilization={name: min(1.0, terms[name] / latency) for name in resources},
        limiting=max(resources, key=lambda name: terms[name]),
        terms_us=terms,
        uncertainty=_uncertainty(profile, target),
        notes=notes,
        model=version,
    )


def _uncertainty(profile: KernelProfile, target: Target) -> float:
    is_chosen = any(a.row_bytes for r in profile.roles for p in r.phases for a in p.work.accesses)
    is_guessed = bool(profile.unknown_calls) or bool(profile.notes)
    is_typical = target.figures["core.clock_mhz"].provenance == "derived"
    return math.hypot(
        UNCERTAINTY,
        is_typical * TYPICAL_UNCERTAINTY,
        is_guessed * UNKNOWN_CALL_UNCERTAINTY,
        is_chosen * CHOSEN_UNCERTAINTY,
    )


def _native_lanes(target: Target) -> float:
    """Lanes of one vector: a power of two, while the measured rate of all units is none."""
    return float(2 ** round(math.log2(max(1.0, target["core.unit.vector.fp32_lanes"] / VECTOR_UNITS))))


def _arithmetic_cycles(phase: Phase, target: Target) -> float:
    """Cycles of the arithmetic units for all executions of a phase.

    They run at full rate if the stores of the tile are neighbours, else with one lane a unit. In a reduction
    each operation waits for the one before. Functions of the C library are called one by one.
    """
    work = phase.work
    store = next((a for a in work.accesses if a.write), None)
    lanes = min(_native_lanes(target), max(1.0, store.vector_bytes / 4)) if store else 1.0
    rate = target["core.unit.vector.fp32_lanes"] * lanes / _native_lanes(target)
    cycles = work.vector_ops / rate
    chained = work.chained_ops * target["core.unit.vector.latency_cycles"]
    return (max(cycles, chained) + work.special_ops / target["core.unit.special.lanes"]) * phase.trips.mean


def _port_cycles(phase: Phase, target: Target) -> float:
    """Cycles of the load and store ports for all executions of a phase."""
    native_bytes = _native_lanes(target) * 4
    loads = stores = loaded_bytes = 0.0
    for access in phase.work.accesses:
        # vectors wider than the machine's take several instructions
        count = access.instructions * max(1.0, access.vector_bytes / native_bytes)
        if access.write:
            stores += count
        else:
            loads += count
            loaded_bytes += access.instructions * access.vector_bytes
    widest = loaded_bytes / target["core.memory.l1.bytes_per_cycle"]
    return max(loads / LOADS_PER_CYCLE, widest, stores / STORES_PER_CYCLE) * phase.trips.mean
