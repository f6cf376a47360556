"""Findings and caveats: sentences on what limits a candidate, and on why its prediction may be wrong.

Each follows from the profile, the target, or the predicted time without a limit.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..costmodel.analytical.headroom import Headroom
from ..costmodel.analytical.network import copies_us
from ..costmodel.analytical.occupancy import ALLOCATION_UNIT, occupancy
from ..costmodel.analytical.spills import stack_bytes
from ..costmodel.learned.hybrid import CORRECTION
from ..profile.names import KernelNames
from ..profile.values import Access, KernelProfile, Phase, Space
from ..reports.numbers import rounded
from ..target.spec import Target
from ..tuner.rerank import FIGURES
from .buffers import (
    dram_by_tensor,
    excess,
    excess_by_buffer,
    l2_by_tensor,
    loops_with_copies,
    megabytes,
    registers_by_buffer,
    synchronous_loops,
)
from .view_values import CandidateView, CounterComparison
from .wide_sigma import why_wide

WORTH = 0.02  # least share of the time for a sentence
IDLE = 0.05  # least idle share of block slots, or share of bytes outside of tensors, for a sentence
FAR_POINTS = 0.15  # least difference of a predicted share from the counted one for a sentence
REGISTERS_OFF = ALLOCATION_UNIT  # smaller differences change no allocation
SCALAR_BYTES = 8  # most bytes of one element in a CPU kernel

MEANING: Mapping[str, str] = {
    "matrix": "the matrix units",
    "dram": "device memory",
    "l2": "L2",
    "llc": "the last-level cache",
    "l1": "load and store ports",
    "shared": "shared memory and the load/store pipe",
    "vector": "arithmetic",
    "special": "special functions",
    "issue": "instruction issue",
    "copy": "the bulk copy engine",
    "cluster": "the network to the shared memory of neighbours in a cluster",
    "network": "the network between devices",
    "load latency": "waiting for loads",
    "waits": "barriers, waits and lane exchanges",
    "spills": "register spills",
    "atomics": "atomics on one address",
    "launch": "launching the kernel and its blocks",
}
CHAIN = "dependency chain"  # limits the pace without being a resource
# figures that scale all times of the model
LEVEL_FIGURES = ("core.clock_mhz", "device.memory.dram.gb_per_s", "device.launch_us")


def compiled_figures(compiled: Mapping[str, float]) -> dict[str, int]:
    """The compiler's figures that a cost model takes, as integers."""
    return {name: round(value) for name, value in compiled.items() if name in FIGURES}


def findings(
    view: CandidateView,
    kernels: Sequence[KernelProfile],
    target: Target,
    names: Sequence[KernelNames] = (),
) -> tuple[str, ...]:
    """Sentences on what costs the candidate time; the limit comes first.

    `names` are those in each kernel, if they are known.
    """
    largest = max(kernels, key=lambda kernel: kernel.blocks)
    found = [*_limits(view), *_spills(view, kernels, target), *_wastes(view, kernels, names)]
    if target.is_gpu:
        found += [*_traffic(view), *_local_arrays(kernels, names), *_grid(view, kernels, largest, target)]
        found += [*_outside(kernels), *_engine_copies(kernels, target)]
    return (*found, *_counters(view.counters), *_compiled(view, kernels, target))


def caveats(view: CandidateView, kernels: Sequence[KernelProfile], target: Target) -> tuple[str, ...]:
    """Sentences on why the prediction may be wrong: its spread, the reasons of it, and the measured time."""
    prediction = view.prediction
    low, high = (
        prediction.latency_us / (1 + prediction.uncertainty),
        prediction.latency_us * (1 + prediction.uncertainty),
    )
    found = (
        [f"One sigma is a factor of {1 + prediction.uncertainty:.2f}: {_us(low)} to {_us(high)}."]
        if prediction.uncertainty
        else []
    )
    if reason := why_wide(prediction, kernels, target):
        found.append(reason)
    if view.measured_us:
        ratio = prediction.latency_us / view.measured_us
        way = "higher" if ratio > 1 else "lower"
        within = "within" if max(ratio, 1 / ratio) <= 1 + prediction.uncertainty else "beyond"
        off = f"{abs(ratio - 1):.0%} {way}" if abs(ratio - 1) >= 0.005 else "the same within 1%"
        found.append(f"Measured {_us(view.measured_us)}. The predicted time is {off}, {within} one sigma.")
        if view.is_training_row and CORRECTION in prediction.terms_us:
            alone_us = prediction.latency_us - prediction.terms_us[CORRECTION]
            found.append(
                "The learned model was trained on this measurement, so this agreement proves nothing about "
                "other kernels. "
                f"The analytical model alone predicts {_us(alone_us)} "
                f"({alone_us / view.measured_us - 1:+.0%})."
            )
    found += [f"Less sure: {note}." for note in prediction.notes]
    guessed = [
        path
        for path in LEVEL_FIGURES
        if path in target.figures and target.figures[path].provenance != "measured"
    ]
    if guessed and target.is_gpu:
        one = len(guessed) == 1
        were, them = ("was", "it") if one else ("were", "them")
        found.append(
            f"Less sure: {', '.join(guessed)} of {target.name} {were} not measured. An error in {them} "
            "changes all predicted times by the same factor."
        )
    return tuple(found)


def _limits(view: CandidateView) -> Iterator[str]:
    if not view.limits.limits:
        return
    first, following = view.limits.limits[0], view.limits.next_limit
    if first.gain <= 0:
        return
    share = view.prediction.utilization.get(first.name)
    busy = f" (busy {share:.0%} of the time)" if share else ""
    named = MEANING.get(first.name, first.name)
    if first.gain < 2 * IDLE:
        yield (f"No single cost is large. The largest cost is {named}{busy}. Without it, {_left(first)}.")
    else:
        yield f"The largest cost is {named}{busy}. Without it, {_left(first)}."
    pace = view.prediction.limiting
    if pace != first.name:
        what_limits = (
            "what each block must do in turn (the dependency chain)"
            if pace == CHAIN
            else MEANING.get(pace, pace)
        )
        yield (
            f"Limiting is {what_limits}, which is busy longest and sets the pace. Removing the largest cost "
            "would save more."
        )
    if following is not None and following.gain > WORTH:
        what = MEANING.get(following.name, following.name)
        yield (
            f"Next cost: {what}. Without both costs, {_us(following.without_us)} would remain "
            f"(another -{following.gain:.0%})."
        )
    others = [h for h in view.limits.limits[1:] if h.gain > 2 * WORTH][:3]
    if others:
        yield (
            "Savings without one other cost: "
            + ", ".join(f"{MEANING.get(h.name, h.name)} -{h.gain:.0%}" for h in others)
            + "."
        )


def _wastes(
    view: CandidateView, kernels: Sequence[KernelProfile], names: Sequence[KernelNames]
) -> Iterator[str]:
    for waste in view.limits.wastes:
        if waste.name == "synchronous copies":  # whatever it gains: nothing else tells that it is so
            for loop in synchronous_loops(kernels, names):
                yield (
                    f"{loop} to shared memory and computes products in turn: its copies are not overlapped "
                    f"with its products. If they were, {_left(waste)}."
                )
        if waste.gain < WORTH:
            continue
        if waste.name == "shallow pipeline":
            depth = view.launch["pipeline_depth"]
            deep = f"{depth:g} iteration{'s' if depth > 1 else ''} in flight"
            if loops := loops_with_copies(kernels, names):
                deep += f" in the loop{'s' if len(loops) > 1 else ''} over {', '.join(loops)}"
            if depth == 1:
                deep += ", whose copies are not overlapped with what uses them"
            yield f"Pipeline: {deep}. If copies were issued early enough, {_left(waste)}."
        elif waste.name == "bank conflicts":
            yield (
                f"Bank conflicts: shared-memory accesses take {excess(view.buffers, Space.SHARED):.1f} times "
                f"the necessary wavefronts{_of_buffers(view, Space.SHARED)}. Without conflicts, "
                f"{_left(waste)}."
            )
        elif waste.name == "partial sectors":
            yield (
                f"Global accesses touch {excess(view.buffers, Space.GLOBAL):.1f} times the necessary "
                f"sectors{_of_buffers(view, Space.GLOBAL)}. If all sectors were used fully, {_left(waste)}."
            )
        elif waste.name == "scalar loops":
            yield (
                f"Scalar loops: {_scalar_share(kernels):.0%} of the arithmetic is in innermost loops that "
                "the compiler runs one element at a time, since they have at most 16 iterations or are not "
                f"contiguous in memory. In vectors, {_left(waste)}."
            )


def _of_buffers(view: CandidateView, space: Space) -> str:
    named = excess_by_buffer(view.buffers, space)
    return f": {named}" if named else ""


def _traffic(view: CandidateView) -> Iterator[str]:
    """The tensors behind the bytes of device memory and of L2, if these cost time."""
    terms, latency_us = view.prediction.terms_us, view.prediction.latency_us
    of_dram, of_l2 = dram_by_tensor(view.buffers), l2_by_tensor(view.buffers)
    if of_dram and terms.get("dram", 0.0) > WORTH * latency_us:
        moved = sum(b.dram_bytes for b in view.buffers)
        yield f"Device memory moves {megabytes(moved)}: {of_dram}."
    if of_l2 and terms.get("l2", 0.0) > WORTH * latency_us:
        moved = sum(b.l2_bytes for b in view.buffers)
        yield f"Between the cores and L2 move {megabytes(moved)}: {of_l2}."


def _spills(view: CandidateView, kernels: Sequence[KernelProfile], target: Target) -> Iterator[str]:
    gain = next((h for h in view.limits.limits if h.name == "spills"), None)
    worth = f". Without spills, {_left(gain)}" if gain is not None and gain.gain > WORTH else ""
    moved = view.prediction.expected.get("local_bytes", 0.0)
    cost = (
        f": {moved / 1e6:,.1f} MB go to local memory and back, for {_us(view.prediction.terms_us['spills'])}"
        if moved and view.prediction.terms_us.get("spills")
        else ""
    )
    compiled = view.compiled.get("spill_bytes")
    if target.is_gpu and compiled is not None and len(kernels) == 1:
        if compiled:
            holders = _holders(view, 0, max(kernels[0].roles, key=lambda role: role.local_registers).name)
            yield f"Spills: the compiler spills {compiled:.0f} bytes a thread{holders}{cost}{worth}."
        return
    for number, kernel in enumerate(kernels if target.is_gpu else ()):
        if kernel.is_exchange:
            continue
        for role, short in occupancy(kernel, target).spilled.items():
            who = "threads" if role == "all" else f"{role} threads"
            holders = _holders(view, number, role)
            yield f"Spills: about {short:.0f} registers of the {who} do not fit{holders}{cost}{worth}."


def _holders(view: CandidateView, kernel: int, role: str) -> str:
    """The local buffers that take the registers of a role's threads."""
    own = (work.registers for work in view.requested if (work.kernel, work.role) == (kernel, role))
    named = registers_by_buffer(next(own, {}))
    return f" (registers a thread: {named})" if named else ""


def _local_arrays(kernels: Sequence[KernelProfile], names: Sequence[KernelNames]) -> Iterator[str]:
    for number, kernel in enumerate(kernels):
        size = max((stack_bytes(role) for role in kernel.roles), default=0.0)
        known = names[number].buffers if names else {}
        labels = {access.tensor for _, access in _accesses([kernel]) if access.space is Space.LOCAL}
        named = ", ".join(sorted(known[label] for label in labels if label in known))
        if size:
            yield (
                f"Local memory: arrays of {size:,.0f} bytes a thread{f' ({named})' if named else ''} are "
                "indexed in a loop that the compiler does not unroll, so their elements are not in "
                "registers. Use shared memory, or a loop that is short enough to unroll."
            )


def _grid(
    view: CandidateView, kernels: Sequence[KernelProfile], kernel: KernelProfile, target: Target
) -> Iterator[str]:
    cores, word = target.int("core.count"), target.core_word
    if kernel.blocks < cores:
        yield (
            f"The grid has {kernel.blocks} blocks for {cores} {word}s: {cores - kernel.blocks} have nothing "
            "to do."
        )
        return
    fit, by = _resident(view, kernel, target)
    resident = max(1, min(fit, -(-kernel.blocks // cores)))
    waves = kernel.blocks / (cores * resident)
    blocks = f"{resident} block{'s' if resident > 1 else ''}"
    if fit <= resident:
        allow = "allows" if by == "shared memory" else "allow"
        number = next(i for i, profile in enumerate(kernels) if profile is kernel)
        holder = max(kernel.roles, key=lambda role: role.local_registers).name
        held = _holders(view, number, holder) if "registers" in by else ""
        yield f"Each {word} holds {blocks} at a time: {by} {allow} no more{held}."
    else:
        yield f"Each {word} holds {blocks} at a time: the grid has no more ({fit} would fit)."
    trips = [phase.trips for role in kernel.roles for phase in role.phases if phase.trips.axes]
    if trips:
        longest = max(trips, key=lambda t: t.largest)
        yield (
            f"Blocks differ in length: {longest.smallest:g} to {longest.largest:g} iterations of the longest "
            "loop."
        )
        return
    idle = 1 - waves / -(-kernel.blocks // (cores * resident))
    if idle > IDLE:
        whole = int(waves)
        after = f"after {whole} full wave{'s' if whole > 1 else ''} " if whole else ""
        yield f"{kernel.blocks} blocks: {after}the last wave fills {waves - whole:.0%} of the block slots."


def _resident(view: CandidateView, kernel: KernelProfile, target: Target) -> tuple[int, str]:
    """Blocks that fit on a core, and their bound; from the compiler's registers if they are known."""
    compiled = view.compiled.get("registers", 0.0)
    if not compiled or view.launch["kernels"] > 1:
        held = occupancy(kernel, target)
        return held.blocks, held.limited_by
    roles = tuple(replace(role, local_registers=0.0, registers_limit=None) for role in kernel.roles)
    others = occupancy(replace(kernel, roles=roles), target)
    allocated = -(-compiled // ALLOCATION_UNIT) * ALLOCATION_UNIT
    by_registers = int(target["core.memory.registers.bytes"] // (4 * allocated * kernel.block_threads))
    if by_registers < others.blocks:
        return by_registers, f"the {compiled:.0f} registers a thread that it was compiled to"
    return others.blocks, others.limited_by


def _outside(kernels: Sequence[KernelProfile]) -> Iterator[str]:
    box = inside = 0.0
    for phase, access in _accesses(kernels):
        if access.mechanism == "tma" and access.box_bytes:
            box += access.box_bytes * access.instructions * phase.trips.mean
            inside += access.bytes * phase.trips.mean
    if box and 1 - inside / box > IDLE:
        yield (
            f"{1 - inside / box:.0%} of the bytes of bulk copies lie outside the tensors: tiles extend "
            "beyond the edge."
        )


def _engine_copies(kernels: Sequence[KernelProfile], target: Target) -> Iterator[str]:
    """What copy engines move beside a kernel."""
    for copies in (kernel.copies for kernel in kernels if kernel.copies):
        size = megabytes(copies.chunks * copies.chunk_bytes)
        peers = "a peer" if copies.peers == 1 else f"each of {copies.peers} peers"
        chunks = "1 chunk" if copies.chunks == 1 else f"{copies.chunks} chunks"
        yield (
            f"The copy engines bring {size} to {peers} in {chunks} while the kernel runs, in "
            f"{_us(copies_us(copies, target))}; they take no cores."
        )


def _counters(counters: Sequence[CounterComparison]) -> Iterator[str]:
    """Shares alone, which confirm a limit or not; the table of counters has the amounts."""
    for c in counters:
        if c.is_share and abs(c.predicted - c.counted) > FAR_POINTS:
            yield f"Counters disagree: {c.name} {c.counted:.0%}, predicted {c.predicted:.0%}."


def _compiled(view: CandidateView, kernels: Sequence[KernelProfile], target: Target) -> Iterator[str]:
    """Figures of the compiler that differ from those of the model."""
    registers, spilled = view.compiled.get("registers"), view.compiled.get("spill_bytes")
    if not target.is_gpu or len(kernels) != 1:
        return
    held = occupancy(kernels[0], target)
    if spilled is not None and bool(spilled) != bool(held.spilled):
        yield (
            f"The compiler spills {spilled:.0f} bytes a thread where the model expects "
            f"{'some' if held.spilled else 'none'}."
        )
    if registers is not None and abs(registers - held.registers) > REGISTERS_OFF:
        yield f"The compiler takes {registers:.0f} registers a thread, the model {held.registers}."


def _scalar_share(kernels: Sequence[KernelProfile]) -> float:
    """Share of the operations whose result is stored one element at a time."""
    scalar = total = 0.0
    for kernel in kernels:
        for phase in (phase for role in kernel.roles for phase in role.phases):
            operations = (phase.work.vector_ops + phase.work.special_ops) * phase.trips.mean
            store = next((a for a in phase.work.accesses if a.write), None)
            total += operations
            if store is not None and store.vector_bytes <= SCALAR_BYTES:
                scalar += operations
    return scalar / total if total else 0.0


def _accesses(kernels: Sequence[KernelProfile]) -> Iterator[tuple[Phase, Access]]:
    for kernel in kernels:
        for role in kernel.roles:
            for phase in role.phases:
                for access in phase.work.accesses:
                    yield phase, access


def _left(headroom: Headroom) -> str:
    return f"{_us(headroom.without_us)} would remain (-{headroom.gain:.0%})"


def _us(value: float) -> str:
    return f"{rounded(value)} us"
