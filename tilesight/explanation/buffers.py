"""The work of a kernel by tensor and buffer, and what sentences say of it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from ..costmodel.analytical.analytical_model import AnalyticalModel
from ..costmodel.analytical.headroom import is_synchronous, least_transactions
from ..costmodel.analytical.traffic import Traffic
from ..profile.names import KernelNames
from ..profile.values import KernelProfile, Space
from ..target.spec import Target
from .view_values import BufferWork

MOST_NAMED = 4  # buffers in a sentence
LEAST_SHARE = 0.05  # of the bytes or transactions that a sentence is about, for a buffer in it
LEAST_REGISTERS = 8  # per thread, for a local buffer in a sentence
TWICE = 1.5  # times that a byte is moved from which a sentence says how often


def buffer_work(
    kernels: Sequence[KernelProfile], target: Target, names: Sequence[KernelNames]
) -> tuple[BufferWork, ...]:
    """The work of each tensor and shared buffer of each kernel, reads and writes apart."""
    found: dict[tuple[int, str, Space, bool], BufferWork] = {}
    for number, kernel in enumerate(kernels):
        known = names[number].buffers if names else {}

        def of(
            label: str,
            space: Space,
            write: bool,
            number: int = number,
            known: Mapping[str, str] = known,
        ) -> BufferWork:
            empty = BufferWork(number, known.get(label, ""), space.value, write)
            return found.setdefault((number, label, space, write), empty)

        for role in kernel.roles:
            for phase in role.phases:
                times = phase.trips.mean * kernel.blocks
                for a in phase.work.accesses:
                    work = of(a.tensor, a.space, a.write)
                    if a.mechanism != "tma":
                        found[number, a.tensor, a.space, a.write] = replace(
                            work,
                            transactions=work.transactions + times * a.transactions,
                            least_transactions=work.least_transactions + times * least_transactions(a),
                        )
    for number, traffic in enumerate(_traffic(kernels, target)):
        for tensor in traffic.tensors if traffic is not None else ():
            key = number, tensor.tensor, Space.GLOBAL, tensor.write
            if key in found:
                found[key] = replace(
                    found[key],
                    l2_bytes=tensor.l2,
                    dram_bytes=tensor.dram,
                    distinct_bytes=tensor.distinct,
                )
    return tuple(found.values())


def _traffic(kernels: Sequence[KernelProfile], target: Target) -> list[Traffic | None]:
    if not target.is_gpu:
        return []
    try:
        return AnalyticalModel().traffic(kernels, target)
    except (ValueError, ZeroDivisionError, OverflowError):  # the profile may be anything
        return []


def excess(buffers: Iterable[BufferWork], space: Space) -> float:
    """Times of the necessary transactions that threads take in a memory space."""
    own = [b for b in buffers if b.space == space.value]
    least = sum(b.least_transactions for b in own)
    return sum(b.transactions for b in own) / least if least else 1.0


def excess_by_buffer(buffers: Iterable[BufferWork], space: Space) -> str:
    """The buffers whose accesses take more transactions than necessary, the worst first; "" without names."""
    own = [b for b in buffers if b.space == space.value and b.name]
    beyond = {i: b.transactions - b.least_transactions for i, b in enumerate(own)}
    whole = sum(beyond.values())
    chosen = [i for i in sorted(beyond, key=lambda i: -beyond[i]) if beyond[i] > LEAST_SHARE * whole]
    parts = [
        f"{_way(own[i])} {own[i].name} {own[i].transactions / own[i].least_transactions:.1f} times "
        f"({beyond[i] / whole:.0%} of the excess)"
        for i in chosen[:MOST_NAMED]
        if own[i].least_transactions
    ]
    return ", ".join(parts)


def dram_by_tensor(buffers: Iterable[BufferWork]) -> str:
    """The tensors whose bytes device memory moves, the largest first; "" without names."""
    own = [b for b in buffers if b.name and b.dram_bytes]
    return _moved([(b, b.dram_bytes) for b in own])


def l2_by_tensor(buffers: Iterable[BufferWork]) -> str:
    """The tensors whose bytes move between cores and L2, the largest first; "" without names."""
    own = [b for b in buffers if b.name and b.l2_bytes]
    return _moved([(b, b.l2_bytes) for b in own])


def _moved(found: list[tuple[BufferWork, float]]) -> str:
    whole = sum(moved for _, moved in found)
    parts = []
    for b, moved in sorted(found, key=lambda item: -item[1])[:MOST_NAMED]:
        if moved < LEAST_SHARE * whole:
            continue
        times = moved / b.distinct_bytes if b.distinct_bytes else 1.0
        often = f", {times:.1f} times its {megabytes(b.distinct_bytes)}" if times >= TWICE else ""
        parts.append(f"{_way(b)} {b.name} {megabytes(moved)} ({moved / whole:.0%}{often})")
    return ", ".join(parts)


def registers_by_buffer(registers: Mapping[str, float]) -> str:
    """The local buffers that take registers of a thread, the largest first; "" if none is known."""
    parts = [
        f"{name} {count:.0f}"
        for name, count in sorted(registers.items(), key=lambda item: -item[1])[:MOST_NAMED]
        if count >= LEAST_REGISTERS
    ]
    return ", ".join(parts)


def synchronous_loops(kernels: Sequence[KernelProfile], names: Sequence[KernelNames]) -> list[str]:
    """Loops whose copies to shared memory and products take turns, with what they copy."""
    found: dict[str, None] = {}
    for kernel, known in zip(kernels, names, strict=False):
        trips = {p.trips.mean for r in kernel.roles for p in r.phases if is_synchronous(p)}
        for loop in known.loops:
            if loop.copied and (loop.trips in trips or (loop.trips is None and trips)):
                count = "" if loop.trips is None else f" ({loop.trips:g} iterations)"
                found[f"The loop over {loop.variable}{count} copies {_listed(loop.copied)}"] = None
    return list(found)


def loops_with_copies(kernels: Sequence[KernelProfile], names: Sequence[KernelNames]) -> list[str]:
    """The variables of the loops that copy asynchronously."""
    found: dict[str, None] = {}
    for kernel, known in zip(kernels, names, strict=False):
        for phase in (p for r in kernel.roles for p in r.phases if p.is_loop):
            if any(a.asynchronous and not a.write for a in phase.work.accesses):
                found[known.loop(phase.trips.mean)] = None
    return [name for name in found if name]


def megabytes(count: float) -> str:
    return f"{count / 1e6:,.1f} MB" if count >= 1e5 else f"{count / 1e3:,.1f} kB"


def _way(buffer: BufferWork) -> str:
    return "writes of" if buffer.is_write else "reads of"


def _listed(names: Sequence[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
