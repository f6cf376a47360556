"""The gain of a kernel if one resource or waste cost nothing, predicted with a changed target or profile.

The busy share of a resource does not tell whether the kernel waits for it. These predictions do: without the
first limit the kernel takes the time that the next limit allows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise

from ...profile.values import Access, KernelProfile, Phase, Space, Work
from ...target.spec import Figure, Target
from .analytical_model import AnalyticalModel
from .constants import Constants
from .occupancy import live_share, occupancy

FREE = 1e6  # factor of a rate that removes its limit
MANY_SLOTS = 64  # buffers enough to hide any latency
LEAST_LOADED = 0.5  # share of the stored bytes that a copy to shared memory loads; the rest is zeros
LIMIT, WASTE = "limit", "waste"
WAVEFRONT_BYTES, SECTOR_BYTES = 128, 32


@dataclass(frozen=True, slots=True)
class Headroom:
    """The gain if `name` cost nothing.

    `without_us` is the predicted time without it, and `gain` the saved share of the time, 0 .. 1. A limit is
    a resource of the hardware. A waste is work that the kernel does not need; it is part of some limit.
    """

    name: str
    kind: str  # limit | waste
    without_us: float
    gain: float


@dataclass(frozen=True, slots=True)
class Limits:
    """Limits and wastes, largest gain first.

    `next_limit` has the largest gain once the first limit is removed. The cost of launching, which adds to
    everything else, is the next limit only if nothing else gains.
    """

    limits: tuple[Headroom, ...]
    wastes: tuple[Headroom, ...]
    next_limit: Headroom | None


@dataclass(frozen=True, slots=True)
class HeadroomCase:
    """The arguments of one prediction. `built` are the compiler's figures if the kernels were built."""

    kernels: tuple[KernelProfile, ...]
    target: Target
    constants: Constants
    built: Mapping[str, int] | None


Change = Callable[[HeadroomCase], HeadroomCase]


def limits(
    kernels: Sequence[KernelProfile],
    target: Target,
    latency_us: float,
    built: Mapping[str, int] | None = None,
) -> Limits:
    """Find the limits and wastes of a function with the analytical model.

    Args:
        kernels: the profiles of its kernels, in launch order.
        target: the target to predict for.
        latency_us: times are scaled so that the unchanged function takes this long.
        built: the compiler's figures, as in `CostModel.predict`.

    Returns:
        The limits and wastes; none if the kernels do not fit the target.
    """
    start = HeadroomCase(tuple(kernels), target, AnalyticalModel().constants, built)
    whole = _time(start)
    if whole is None:
        return Limits((), (), None)
    scale = latency_us / whole
    changes = GPU_LIMITS if target.is_gpu else CPU_LIMITS
    if any(kernel.communicates for kernel in kernels):
        changes = {**changes, "network": _without_network}
    found = sorted(_gains(start, changes, LIMIT, scale), key=lambda h: -h.gain)
    wastes = sorted(
        _gains(start, GPU_WASTES if target.is_gpu else CPU_WASTES, WASTE, scale), key=lambda h: -h.gain
    )
    following = None
    if found and found[0].gain > 0:
        relaxed = changes[found[0].name](start)
        others = {name: change for name, change in changes.items() if name != found[0].name}
        following = max(
            _gains(relaxed, others, LIMIT, scale),
            key=lambda h: (h.gain > 0 and h.name != "launch", h.gain),
            default=None,
        )
    return Limits(tuple(found), tuple(wastes), following)


def _gains(case: HeadroomCase, changes: dict[str, Change], kind: str, scale: float) -> Iterator[Headroom]:
    whole = _time(case)
    for name, change in changes.items():
        without = _time(change(case))
        if whole is not None and without is not None:
            # a p-norm may rise slightly when a rate is raised: the gain is then 0
            yield Headroom(name, kind, min(whole, without) * scale, max(0.0, 1 - without / whole))


def _time(case: HeadroomCase) -> float | None:
    try:
        return AnalyticalModel(case.constants).predict(case.kernels, case.target, case.built).latency_us
    except (ValueError, ZeroDivisionError, OverflowError):
        return None


# --- changes of the target and of the constants ---


def _figures(prefix: str, suffix: str, factor: float) -> Change:
    def change(case: HeadroomCase) -> HeadroomCase:
        figures = case.target.figures
        chosen = {
            p: f
            for p, f in figures.items()
            if p.startswith(prefix) and p.endswith(suffix) and "spec_" not in p
        }
        changed = {path: Figure(figure.value * factor, "derived") for path, figure in chosen.items()}
        return replace(case, target=replace(case.target, figures={**figures, **changed}))

    return change


def _constants(factor: float, *names: str) -> Change:
    """Scale those of the constants `names` that the model has."""

    def change(case: HeadroomCase) -> HeadroomCase:
        known = {f.name for f in fields(case.constants)} & set(names)
        changed = {name: getattr(case.constants, name) * factor for name in known}
        return replace(case, constants=replace(case.constants, **changed))

    return change


def _all(*changes: Change) -> Change:
    def change(case: HeadroomCase) -> HeadroomCase:
        for one in changes:
            case = one(case)
        return case

    return change


# --- changes of the profile ---


def _work(of: Callable[[Work], Work]) -> Change:
    return _phases(lambda phase: replace(phase, work=of(phase.work)))


def _accesses(of: Callable[[Access], Access]) -> Change:
    return _phases(lambda phase: phase.with_accesses(of))


def _phases(of: Callable[[Phase], Phase]) -> Change:
    def change(case: HeadroomCase) -> HeadroomCase:
        return replace(case, kernels=tuple(kernel.with_phases(of) for kernel in case.kernels))

    return change


def _without_wavefronts(access: Access) -> Access:
    return replace(access, transactions=0.0) if access.space is Space.SHARED else access


def least_transactions(access: Access) -> float:
    """Transactions that an access needs at most: one an instruction and one for each full width of its bytes.

    Lanes that request the same bytes may need fewer transactions, so only real conflicts count as waste.
    """
    width = WAVEFRONT_BYTES if access.space is Space.SHARED else SECTOR_BYTES
    return min(access.transactions, max(access.instructions, access.bytes / width))


def _at_full_width(space: Space) -> Change:
    def widened(access: Access) -> Access:
        if access.space is not space or access.mechanism == "tma":
            return access
        own = access.own_run_bytes  # less than a sector of a row is a part of one, too
        return replace(
            access,
            transactions=least_transactions(access),
            own_run_bytes=own if own >= SECTOR_BYTES else 0.0,
        )

    return _accesses(widened)


def _without_spills(case: HeadroomCase) -> HeadroomCase:
    if (
        len(case.kernels) == 1 and case.built and "spill_bytes" in case.built
    ):  # the compiler's count replaces the estimate
        return replace(case, built={**case.built, "spill_bytes": 0})

    def fitting(kernel: KernelProfile) -> KernelProfile:
        if kernel.is_exchange:
            return kernel
        lacking, share = occupancy(kernel, case.target).spilled, live_share(kernel)
        roles = (
            replace(r, local_registers=max(0.0, r.local_registers - lacking.get(r.name, 0.0) / share))
            for r in kernel.roles
        )
        return replace(kernel, roles=tuple(roles))

    return replace(case, kernels=tuple(map(fitting, case.kernels)))


def _without_network(case: HeadroomCase) -> HeadroomCase:
    """Stores to peers are local ones, nothing is copied to them, and nothing waits for peers or for the
    library's collectives.
    """
    computing = tuple(
        replace(kernel, waits=0, copies=None) for kernel in case.kernels if not kernel.is_exchange
    )
    return _accesses(lambda access: replace(access, peer=""))(replace(case, kernels=computing))


def _deep(phase: Phase) -> Phase:
    """The phase with enough buffers for its copies.

    Loads that the loop waits for directly stay as they are.
    """
    accesses = tuple(replace(a, slots=MANY_SLOTS) if a.asynchronous else a for a in phase.work.accesses)
    if accesses == phase.work.accesses:
        return phase
    work = replace(phase.work, accesses=accesses)
    return replace(phase, work=work, pipeline_depth=MANY_SLOTS, copies_ahead=None)


def is_synchronous(phase: Phase) -> bool:
    """Whether a loop with matrix instructions copies to shared memory by plain loads and stores alone."""
    copies = any(a.asynchronous and a.space is Space.GLOBAL and not a.write for a in phase.work.accesses)
    return bool(phase.is_loop and phase.work.matrix and not copies and _staged(phase))


def _staged(phase: Phase) -> frozenset[int]:
    """Positions of the loads and stores that copy to shared memory.

    One statement loads what it stores, so the store follows its load. At the edge of a tensor less is loaded.
    """
    found: set[int] = set()
    accesses = phase.work.accesses
    for position, (load, store) in enumerate(pairwise(accesses)):
        if _is_plain_load(load) and _is_plain_store(store) and LEAST_LOADED <= load.bytes / store.bytes <= 1:
            found |= {position, position + 1}
    return frozenset(found)


def _overlapped(phase: Phase) -> Phase:
    """A synchronous loop with copies in groups instead, issued early enough."""
    if not is_synchronous(phase):
        return phase
    staged = _staged(phase)
    accesses = tuple(
        replace(access, mechanism="cp_async", asynchronous=True, slots=MANY_SLOTS)
        if position in staged
        else access
        for position, access in enumerate(phase.work.accesses)
    )
    work = replace(phase.work, accesses=accesses, barrier_waits=phase.work.barrier_waits + 1)
    return replace(phase, work=work, pipeline_depth=MANY_SLOTS)


def _is_plain_load(access: Access) -> bool:
    return access.space is Space.GLOBAL and access.mechanism == "ld" and not access.write


def _is_plain_store(access: Access) -> bool:
    return access.space is Space.SHARED and access.mechanism == "st" and access.bytes > 0


def _in_vectors(case: HeadroomCase) -> HeadroomCase:
    native = round(case.target["core.unit.vector.fp32_lanes"] * 4)
    return _accesses(lambda a: replace(a, vector_bytes=max(a.vector_bytes, native)))(case)


def _no_waits(work: Work) -> Work:
    return replace(work, block_syncs=0.0, barrier_waits=0.0, matrix_waits=0.0, shuffles=0.0)


GPU_LIMITS: dict[str, Change] = {
    "matrix": _figures("core.unit.matrix.", "flops_per_cycle", FREE),
    "dram": _figures("device.memory.dram.", "gb_per_s", FREE),
    "l2": _all(_figures("device.memory.l2.", "gb_per_s", FREE), _constants(FREE, "core_l2_bytes_per_cycle")),
    "shared": _all(_figures("core.memory.shared.", "bytes_per_cycle", FREE), _accesses(_without_wavefronts)),
    # including the issue slots of the operations: on most chips lanes and issue slots are exhausted together
    "vector": _work(lambda work: replace(work, vector_ops=0.0, integer_ops=0.0, convert_ops=0.0)),
    "special": _work(lambda work: replace(work, special_ops=0.0)),
    "issue": _figures("core.", "issue_per_cycle", FREE),
    "copy": _constants(0.0, "copy_row_cycles", "outside_row_cycles"),
    "cluster": _figures("cluster.network.", "bytes_per_cycle", FREE),
    "load latency": _all(
        _figures("device.memory.", "latency_ns", 0.0), _constants(0.0, "copy_start_cycles"), _phases(_deep)
    ),
    "waits": _work(_no_waits),
    "spills": _without_spills,
    "atomics": _accesses(lambda a: replace(a, mechanism="st") if a.mechanism == "atomic" else a),
    "launch": _all(_figures("device.", "launch_us", 0.0), _figures("device.", "block_start_us", 0.0)),
}
GPU_WASTES: dict[str, Change] = {
    "shallow pipeline": _phases(_deep),
    "synchronous copies": _phases(_overlapped),
    "bank conflicts": _at_full_width(Space.SHARED),
    "partial sectors": _at_full_width(Space.GLOBAL),
}
CPU_LIMITS: dict[str, Change] = {
    "vector": _work(lambda work: replace(work, vector_ops=0.0, special_ops=0.0, chained_ops=0.0)),
    "l1": _accesses(lambda a: replace(a, instructions=0.0)),
    "l2": _figures("core.memory.l2.", "bytes_per_cycle", FREE),
    "llc": _figures("device.memory.llc.", "gb_per_s", FREE),
    "dram": _figures("device.memory.dram.", "gb_per_s", FREE),
    "launch": _figures("device.", "launch_us", 0.0),
}
CPU_WASTES: dict[str, Change] = {"scalar loops": _in_vectors}

__all__ = ["Headroom", "Limits", "is_synchronous", "least_transactions", "limits"]
