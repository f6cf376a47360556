"""The model's view of one candidate: work read from the IR, limits, and hardware counters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..costmodel.analytical.headroom import limits
from ..costmodel.analytical.occupancy import occupancy
from ..costmodel.analytical.pipeline import iterations_in_flight
from ..problem.space import Config
from ..profile.names import KernelNames
from ..profile.values import KernelProfile, Role, Space
from ..records.trial import Prediction
from ..target.spec import Target
from .buffers import buffer_work
from .findings import caveats, compiled_figures, findings
from .view_values import CandidateView, CounterComparison, RequestedWork


def view(
    kernels: Sequence[KernelProfile],
    prediction: Prediction,
    target: Target,
    config: Config | None = None,
    measured_us: float | None = None,
    counters: Mapping[str, float] | None = None,
    compiled: Mapping[str, float] | None = None,
    is_training_row: bool = False,
    names: Sequence[KernelNames] = (),
) -> CandidateView:
    """The view of a candidate.

    Args:
        kernels: profiles of its kernels.
        prediction: of the candidate.
        target: the chip.
        config: None for a kernel without one.
        measured_us: None if it was not measured.
        counters: hardware counters of a dataset's row.
        compiled: the compiler's figures of that row.
        is_training_row: the learned part of `prediction` was trained on that row.
        names: those in each kernel; empty if they are not known.
    """
    requested = tuple(
        _requested(number, role, _registers(names, number, position))
        for number, kernel in enumerate(kernels)
        for position, role in enumerate(kernel.roles)
    )
    limited = limits(kernels, target, prediction.latency_us, compiled_figures(compiled or {}))
    facts = launch_facts(kernels, target)
    counted = tuple(compare_counters(prediction, target, counters)) if counters else ()
    made = CandidateView(
        config,
        prediction,
        measured_us,
        facts,
        requested,
        limited,
        counted,
        compiled or {},
        is_training_row=is_training_row,
        buffers=buffer_work(kernels, target, names),
    )
    return replace(
        made, findings=findings(made, kernels, target, names), caveats=caveats(made, kernels, target)
    )


def _registers(names: Sequence[KernelNames], number: int, position: int) -> Mapping[str, float]:
    """Registers by local buffer of a role of a kernel; those of a processor's kernels are not known."""
    known = names[number].registers if names else ()
    return known[position] if position < len(known) else {}


def launch_facts(kernels: Sequence[KernelProfile], target: Target) -> dict[str, float]:
    """Figures of the launch of the largest kernel, by name."""
    facts: dict[str, float] = {"kernels": len(kernels)}
    largest = max(kernels, key=lambda kernel: kernel.blocks)
    facts |= {
        "blocks": largest.blocks,
        "threads_per_block": largest.block_threads,
        "shared_bytes_per_block": largest.shared_bytes,
    }
    facts["pipeline_depth"] = max(
        (iterations_in_flight(p) for r in largest.roles for p in r.phases if p.is_loop), default=1
    )
    if target.is_gpu:
        found = occupancy(largest, target)
        facts["registers_per_thread"] = found.registers
        facts["blocks_per_core"] = found.blocks
        facts["waves"] = -(-largest.blocks // max(1, found.blocks * target.int("core.count")))
    return facts


def compare_counters(
    prediction: Prediction, target: Target, counters: Mapping[str, float]
) -> list[CounterComparison]:
    """The terms that both the model and the counters have (keys of `Prediction.expected`)."""
    shares = {"l2_hit": True, "occupancy": True}
    found = []
    # counters do not include the launch
    own_us = max(1e-3, prediction.latency_us - prediction.terms_us.get("launch", 0.0))
    if "duration_us" in counters:
        found.append(CounterComparison("time without launch, us", own_us, counters["duration_us"], False))
    for name, counter in (("matrix", "tensor_active"), ("issue", "issue_active")):
        if name in prediction.utilization and counter in counters:
            busy = min(1.0, prediction.utilization[name] * prediction.latency_us / own_us)
            found.append(CounterComparison(f"{name} busy", busy, counters[counter], True))
    if "dram" in prediction.terms_us and "dram_throughput" in counters:
        # the counter is a share of the data sheet's bandwidth, the term one of the sustained bandwidth
        rate = target.dram_gb_per_s / target.get("device.memory.dram.spec_gb_per_s", target.dram_gb_per_s)
        busy = min(1.0, prediction.terms_us["dram"] / own_us * rate)
        found.append(
            CounterComparison("dram busy (of the data sheet's rate)", busy, counters["dram_throughput"], True)
        )
    for name, amount in prediction.expected.items():
        counter = {"clock_mhz": "sm_clock_mhz"}.get(name, name)
        counted = counters.get(counter)
        if name == "local_bytes" and {"local_load_bytes", "local_store_bytes"} <= counters.keys():
            counted = counters["local_load_bytes"] + counters["local_store_bytes"]
        if counted is not None:
            found.append(CounterComparison(name.replace("_", " "), amount, counted, shares.get(name, False)))
    return found


def _requested(number: int, role: Role, registers: Mapping[str, float]) -> RequestedWork:
    total: dict[str, float] = defaultdict(float)
    instructions: dict[str, float] = defaultdict(float)
    unknown: dict[str, float] = defaultdict(float)
    for phase in role.phases:
        trips, work = phase.trips.mean, phase.work
        for matrix in work.matrix:
            instructions[matrix.instruction] += trips * matrix.count
            total["matrix_flops"] += trips * matrix.count * matrix.flops
            total["matrix_shared_bytes"] += trips * matrix.count * matrix.shared_bytes
        for access in work.accesses:
            way = "write" if access.write else "read"
            total[f"{access.space.value}_{way}_bytes"] += trips * access.bytes
            unit = {Space.GLOBAL: "global_sectors", Space.SHARED: "shared_wavefronts"}.get(access.space)
            if unit:
                total[unit] += trips * access.transactions
        for name in (
            "vector_ops",
            "integer_ops",
            "convert_ops",
            "special_ops",
            "shuffles",
            "block_syncs",
            "barrier_waits",
            "matrix_waits",
        ):
            total[name] += trips * getattr(work, name)
        for name, count in work.unknown.items():
            unknown[name] += trips * count
    return RequestedWork(
        number,
        role.name,
        role.threads,
        {n: float(v) for n, v in total.items() if v},
        dict(instructions),
        dict(unknown),
        registers,
    )
