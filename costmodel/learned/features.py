"""Features of the learned model: a launch as a fixed, named vector of ratios.

Each feature is a share, a ratio to a capacity of the machine, or the logarithm of a ratio. There are no
config values, no names of kernels or tensors and no absolute sizes, so features have the same meaning for all
operators.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...profile.values import KernelProfile, Space
from ...records.trial import Prediction
from ...target.spec import Target
from ..analytical.occupancy import Occupancy, occupancy
from ..analytical.pipeline import WORDS_AT_ONCE
from ..analytical.spills import first_accumulators
from .totals import Totals, totals

FEATURE_VERSION = 2  # raise it when a feature changes its meaning
DEEPEST_LOG2 = 12.0  # logarithms are limited to this in both directions
# terms of the analytical model whose shares of the latency are features; missing terms are 0
TERMS = (
    "launch",
    "fill",
    "dram",
    "matrix",
    "shared",
    "vector",
    "special",
    "issue",
    "copy",
    "l2",
    "dependency chain",
    "load latency",
)
RESOURCE_TERMS = ("dram", "matrix", "shared", "vector", "special", "issue", "copy", "l2")
MOST_SHARE = 4.0  # limit of a share, which may exceed 1 since terms overlap

FEATURES: Mapping[str, str] = {
    **{
        f"share_{term.replace(' ', '_')}": f"analytical term '{term}' over the predicted latency"
        for term in TERMS
    },
    "share_makespan": "time on the cores over the predicted latency",
    "share_atomics": "most contended atomic over the predicted latency",
    "second_resource": "second busiest resource over the busiest: how much must overlap",
    "crowding": "sum of all resources' busy times over the busiest one's",
    "unexplained": "share of the cores' time beyond that of the busiest resource: latencies, waits, tails",
    "dram_to_core": "log2 of device memory's time over the cores'",
    "resident_blocks": "log2 of the blocks that a core holds together",
    "resident_warps": "resident threads over the most that a core takes",
    "registers": "registers a thread over the most that one may have",
    "spilled": "registers a thread that do not fit, over the most that one may have (worst role)",
    "fullness": "registers needed over registers allowed, of the role that needs most for its buffers",
    "chained": "registers of the first of two products' accumulators, over the most that one may have",
    "shared_block": "shared memory of a block over the most that one may have",
    "shared_core": "shared memory of all resident blocks over what a core has",
    "waves": "log2 of the grid's blocks over the places on the device: below 0, places stay empty",
    "busy_cores": "share of the cores that have a block in the fullest wave",
    "tail": "share of the places that stay empty over all waves",
    "block_threads": "threads of a block over the most that one may have",
    "producer_threads": "share of the threads that only copy",
    "specialised": "1 where producer and consumers are roles of their own",
    "phases": "log2 of the phases of the longest role",
    "depth": "log2 of the deepest pipeline, in iterations",
    "least_slots": "log2 of the fewest buffers that a bulk copy cycles through",
    "trips": "log2 of the mean trip count of the longest loop",
    "trip_spread": "longest less shortest trip count over the mean, across blocks",
    "loop_share": "share of the work (matrix, vector, bytes) inside loops",
    "waits_per_cycle": "barrier waits for each thousand cycles of a block, log2(1 + x)",
    "syncs_per_cycle": "block barriers for each thousand cycles of a block, log2(1 + x)",
    "matrix_waits_per_cycle": "waits for matrix results for each thousand cycles of a block, log2(1 + x)",
    "shuffles_per_cycle": "lane exchanges of a warp for each thousand cycles of a block, log2(1 + x)",
    "conflicts_load": "log2 of wavefronts over the fewest possible, shared memory loads",
    "conflicts_store": "log2 of wavefronts over the fewest possible, shared memory stores",
    "sectors_load": "log2 of sector bytes over bytes asked, global loads: 0 is coalesced",
    "sectors_store": "log2 of sector bytes over bytes asked, global stores",
    "wide_global": "share of global bytes in accesses of 16 bytes a lane or by bulk copy",
    "wide_shared": "share of the lanes' shared-memory bytes in accesses of 16 bytes a lane",
    "bulk_loads": "share of global load bytes by bulk copy",
    "async_loads": "share of global load bytes by asynchronous copies that are not bulk",
    "plain_loads": "share of global load bytes that the next instruction waits for",
    "bulk_stores": "share of global store bytes by bulk copy",
    "atomic_stores": "share of global store bytes by atomics",
    "bytes_in_flight": "log2 of bytes of plain loads in flight over device memory's rate times its latency",
    "box_waste": "log2 of what bulk copies' boxes span over what lies inside the tensor",
    "box_rows": "contiguous bytes of a bulk copy's row over 128",
    "written": "share of global bytes that are written",
    "global_reuse": "log2 of bytes that blocks ask of L2 over the tensors' bytes",
    "working_set": "log2 of all tensors' bytes over L2's capacity",
    "intensity": "log2 of device-memory time over matrix or vector time at full rate: 0 is the balance point",
    "matrix_share": "share of matrix operations among matrix and vector operations",
    "matrix_warp_level": "share of matrix operations by instructions of a single warp",
    "matrix_operands": "log2 of shared-memory cycles for operands over matrix cycles",
    "matrix_size": "log2 of the cycles that one matrix instruction takes",
    "matrix_rate": "log2 of the dtype's matrix rate over fp16's",
    "converted": "share of lane operations that convert types",
    "integer": "share of lane operations on integers",
    "special": "share of lane operations by the special-function unit",
    "exchanged": "share of lane operations that exchange lanes",
    "element_spread": "log2 of the widest element over the narrowest among the tensors",
    "swizzled": "log2 of the lines that a rasterization walks together",
    "cluster": "log2 of the blocks in a cluster",
    "unknown": "1 where a call was not understood",
    "kernels": "log2 of the kernels that are launched one after another",
}
NAMES = tuple(FEATURES)
# columns with shares of the time that no estimate of latencies, waits or instructions enters: those that are
# added, and those of which the largest counts
SURE = (
    (NAMES.index("share_launch"), NAMES.index("share_fill")),
    (NAMES.index("share_dram"), NAMES.index("share_matrix")),
)


def feature_digest() -> str:
    """8 hex digits that change when a feature is added, removed or changes its meaning."""
    return hashlib.sha256(f"{FEATURE_VERSION}:{','.join(NAMES)}".encode()).hexdigest()[:8]


def features(kernels: Sequence[KernelProfile], target: Target, prediction: Prediction) -> NDArray[np.float32]:
    """The features of a function on a GPU.

    If there are several kernels, most features are those of the kernel with the most work.

    Args:
        kernels: the profiles, in launch order.
        target: the GPU.
        prediction: the prediction of the analytical model for them.

    Returns:
        A vector of shape (len(NAMES),).

    Raises:
        ValueError: there is no kernel, or the target is a CPU.
    """
    if not kernels or not target.is_gpu:
        raise ValueError(f"features are those of GPU kernels; got {len(kernels)} kernels for {target.name}")
    counted = [totals(kernel) for kernel in kernels]
    main = max(range(len(kernels)), key=lambda i: _weight(kernels[i], counted[i], target))
    held = occupancy(kernels[main], target)
    found: dict[str, float] = {
        **_of_terms(prediction),
        **_of_launch(kernels[main], held, target),
        **_of_program(kernels[main], held, counted[main], target, prediction),
        **_of_memory(kernels[main], held, counted[main], target),
        **_of_arithmetic(kernels[main], counted[main], target),
        "kernels": math.log2(len(kernels)),
    }
    return np.array([found[name] for name in NAMES], dtype=np.float32)


def feature_matrix(rows: Sequence[tuple[Sequence[KernelProfile], Target, Prediction]]) -> NDArray[np.float32]:
    """The features of rows (kernels, target, analytical prediction), shape (len(rows), len(NAMES))."""
    return np.stack([features(*row) for row in rows]) if rows else np.empty((0, len(NAMES)), dtype=np.float32)


def _of_terms(prediction: Prediction) -> dict[str, float]:
    terms, latency = prediction.terms_us, prediction.latency_us
    busy = sorted((terms.get(name, 0.0) for name in RESOURCE_TERMS), reverse=True)
    core = max((terms.get(name, 0.0) for name in RESOURCE_TERMS if name != "dram"), default=0.0)
    makespan = terms.get("makespan", latency)
    return {
        **{
            f"share_{name.replace(' ', '_')}": min(MOST_SHARE, terms.get(name, 0.0) / latency)
            for name in TERMS
        },
        "share_makespan": min(MOST_SHARE, makespan / latency),
        "share_atomics": min(MOST_SHARE, terms.get("atomics", 0.0) / latency),
        "second_resource": busy[1] / busy[0] if busy[0] else 0.0,
        "crowding": sum(busy) / busy[0] if busy[0] else 0.0,
        "unexplained": max(0.0, 1 - core / makespan) if makespan else 0.0,
        "dram_to_core": log2_ratio(terms.get("dram", 0.0), makespan),
    }


def _of_launch(kernel: KernelProfile, held: Occupancy, target: Target) -> dict[str, float]:
    blocks, cores = max(1, held.blocks), target.int("core.count")
    places = blocks * cores
    waves = kernel.blocks / places
    limit = target["thread.max_registers"]
    producers = sum(r.threads for r in kernel.roles if r.name == "producer")
    return {
        "resident_blocks": math.log2(blocks),
        "resident_warps": blocks * kernel.block_threads / target["core.max_threads"],
        "registers": held.registers / limit,
        "spilled": max(held.spilled.values(), default=0.0) / limit,
        "fullness": held.fullness,
        "chained": max(
            (first_accumulators(phase) for role in kernel.roles for phase in role.phases), default=0.0
        )
        / limit,
        "shared_block": kernel.shared_bytes / target["core.memory.shared.block_bytes"],
        "shared_core": blocks * kernel.shared_bytes / target["core.memory.shared.bytes"],
        "waves": log2_ratio(kernel.blocks, places),
        "busy_cores": min(1.0, kernel.blocks / cores),
        "tail": 1 - waves / math.ceil(waves),
        "block_threads": kernel.block_threads / target["core.max_block_threads"],
        "producer_threads": producers / kernel.block_threads,
        "specialised": float(producers > 0),
        "swizzled": math.log2(max(1, kernel.rasterization.factor))
        if kernel.rasterization.order != "linear"
        else 0.0,
        "cluster": math.log2(max(1, kernel.cluster)),
        "unknown": float(bool(kernel.unknown_calls)),
    }


def _of_program(
    kernel: KernelProfile, held: Occupancy, total: Totals, target: Target, prediction: Prediction
) -> dict[str, float]:
    loops = [phase for role in kernel.roles for phase in role.phases if phase.is_loop]
    longest = max((phase.trips for phase in loops), key=lambda trips: trips.mean, default=None)
    mean = longest.mean if longest else 1.0
    resident = min(max(1, held.blocks), -(-kernel.blocks // target.int("core.count")))
    waves = max(1.0, kernel.blocks / (target["core.count"] * resident))
    kilocycles = max(
        0.1,
        prediction.terms_us.get("makespan", prediction.latency_us) * target["core.clock_mhz"] / waves / 1e3,
    )
    return {
        "phases": math.log2(max(1, *(len(role.phases) for role in kernel.roles))) if kernel.roles else 0.0,
        "depth": math.log2(max((phase.pipeline_depth for phase in loops), default=1)),
        "least_slots": math.log2(total.least_slots),
        "trips": min(DEEPEST_LOG2, math.log2(max(1.0, mean))),
        "trip_spread": (longest.largest - longest.smallest) / mean if longest and mean else 0.0,
        "loop_share": total.loop_share,
        "waits_per_cycle": math.log2(1 + total.barrier_waits / kilocycles),
        "syncs_per_cycle": math.log2(1 + total.block_syncs / kilocycles),
        "matrix_waits_per_cycle": math.log2(1 + total.matrix_waits / kilocycles),
        "shuffles_per_cycle": math.log2(1 + total.shuffles / target["warp.threads"] / kilocycles),
    }


def _of_memory(kernel: KernelProfile, held: Occupancy, total: Totals, target: Target) -> dict[str, float]:
    moved = total.global_load_bytes + total.global_store_bytes
    extent = sum(tensor.bytes for tensor in kernel.tensors)
    return {
        "conflicts_load": log2_ratio(total.shared_load_wavefronts, total.shared_load_ideal),
        "conflicts_store": log2_ratio(total.shared_store_wavefronts, total.shared_store_ideal),
        "sectors_load": log2_ratio(total.load_sector_bytes, total.plain_load_bytes),
        "sectors_store": log2_ratio(total.store_sector_bytes, total.plain_store_bytes),
        "wide_global": _share(total.wide_global_bytes, moved),
        "wide_shared": _share(total.wide_shared_bytes, total.lane_shared_bytes),
        "bulk_loads": _share(total.bulk_load_bytes, total.global_load_bytes),
        "async_loads": _share(total.async_load_bytes, total.global_load_bytes),
        "plain_loads": _share(total.blocking_load_bytes, total.global_load_bytes),
        "bulk_stores": _share(total.bulk_store_bytes, total.global_store_bytes),
        "atomic_stores": _share(total.atomic_bytes, total.global_store_bytes),
        "bytes_in_flight": _bytes_in_flight(kernel, held, target),
        "box_waste": log2_ratio(total.box_bytes, total.bulk_load_bytes + total.bulk_store_bytes),
        "box_rows": total.least_row_bytes / 128,
        "written": _share(total.global_store_bytes, moved),
        "global_reuse": log2_ratio(moved * kernel.blocks, extent),
        "working_set": log2_ratio(extent, target["device.memory.l2.bytes"]),
        "element_spread": _element_spread(kernel),
    }


def _of_arithmetic(kernel: KernelProfile, total: Totals, target: Target) -> dict[str, float]:
    rate = target["core.unit.matrix.fp16_flops_per_cycle"]
    operands = total.matrix_operand_bytes / target["core.memory.shared.bytes_per_cycle"]
    lanes = total.lane_operations
    extent = sum(tensor.bytes for tensor in kernel.tensors)
    compute = (
        total.matrix_flops / rate + total.vector_ops / target["core.unit.vector.fp32_lanes"]
    ) * kernel.blocks
    dram_cycles = extent / (target.dram_gb_per_s * 1e3) * target["core.clock_mhz"]
    return {
        "intensity": log2_ratio(dram_cycles, compute / target["core.count"]),
        "matrix_share": _share(total.matrix_flops, total.matrix_flops + 2 * total.vector_ops),
        "matrix_warp_level": _share(total.warp_matrix_flops, total.matrix_flops),
        "matrix_operands": log2_ratio(operands, total.matrix_flops / rate),
        "matrix_size": log2_ratio(total.matrix_flops / rate, total.matrix_instructions),
        "matrix_rate": _matrix_rate(total, target),
        "converted": _share(total.convert_ops, lanes),
        "integer": _share(total.integer_ops, lanes),
        "special": _share(total.special_ops, lanes),
        "exchanged": _share(total.shuffles, lanes),
    }


def _bytes_in_flight(kernel: KernelProfile, held: Occupancy, target: Target) -> float:
    """log2 of the bytes in flight of the phase with most plain loads, over those of Little's law."""
    moved, ahead = 0.0, 0.0
    for phase in (phase for role in kernel.roles for phase in role.phases):
        each = sum(
            a.bytes
            for a in phase.work.accesses
            if a.space is Space.GLOBAL and not a.write and not a.asynchronous
        )
        if each * phase.trips.mean > moved:
            most = 4 * WORDS_AT_ONCE * kernel.block_threads
            moved, ahead = (
                each * phase.trips.mean,
                each * phase.pipeline_depth if phase.is_loop else min(each, most),
            )
    resident = min(kernel.blocks, max(1, held.blocks) * target.int("core.count"))
    return (
        log2_ratio(ahead * resident, target.dram_gb_per_s * target["device.memory.dram.latency_ns"])
        if ahead
        else 0.0
    )


def _matrix_rate(total: Totals, target: Target) -> float:
    path = {"float32": "fp32", "float8": "fp8", "int8": "int8"}.get(total.matrix_dtype)
    if path is None:
        return 0.0
    return log2_ratio(target.matrix_flops_per_cycle(path), target.matrix_flops_per_cycle("fp16"))


def _weight(kernel: KernelProfile, total: Totals, target: Target) -> float:
    """Cycles of the grid's arithmetic and bytes at full rate. The main kernel has most of them."""
    each = (
        total.matrix_flops / target["core.unit.matrix.fp16_flops_per_cycle"]
        + total.vector_ops / target["core.unit.vector.fp32_lanes"]
    )
    return kernel.blocks * (
        each
        + (total.global_load_bytes + total.global_store_bytes) / target["core.memory.shared.bytes_per_cycle"]
    )


def _element_spread(kernel: KernelProfile) -> float:
    widths = [tensor.element_bytes for tensor in kernel.tensors if tensor.element_bytes > 0]
    return math.log2(max(widths) / min(widths)) if widths else 0.0


def log2_ratio(above: float, below: float) -> float:
    """log2(above / below), limited to +-12; 0 if either is not positive."""
    if above <= 0 or below <= 0:
        return 0.0
    return max(-DEEPEST_LOG2, min(DEEPEST_LOG2, math.log2(above / below)))


def _share(part: float, whole: float) -> float:
    return part / whole if whole > 0 else 0.0


__all__: list[Any] = [
    "FEATURES",
    "NAMES",
    "SURE",
    "feature_digest",
    "feature_matrix",
    "features",
    "log2_ratio",
]
