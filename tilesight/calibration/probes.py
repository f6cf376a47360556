"""Probes that load one unit at a time: rates and latencies of a core and of the memories."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from ..target.spec import Target
from .gpu import Gpu, u32, u64
from .readings import INFORMATIVE, Reading, repeat

THREADS = 1024
CHAIN_STEPS = 256  # operations of one thread in one loop of a throughput probe
SPAN_CYCLES = 1_000_000  # rough duration of a throughput probe
WORD = 16  # bytes of one lane's access
MMA_FLOPS = 2 * 16 * 8 * 16
SHARED_READS = 41


@dataclass(frozen=True)
class ProbedGpu:
    """A GPU and its target."""

    gpu: Gpu
    base: Target


@dataclass(frozen=True)
class Probe:
    """A probe: the kernels that it needs, and the function that yields its readings."""

    title: str
    kernels: tuple[str, ...]
    read: Callable[[ProbedGpu], Iterator[Reading]]


def _lanes(gpu: Gpu, kernel: str, path: str, method: str, expected: float) -> Reading:
    """Operations per cycle and core, on a core full of threads with eight independent chains each."""
    count = max(1, int(SPAN_CYCLES * expected / (THREADS * CHAIN_STEPS)))

    def once() -> float:
        timing = gpu.run(kernel, gpu.cores, THREADS, u32(count), u32(12345), gpu.sink())
        return THREADS * CHAIN_STEPS * count / timing.cycles

    return replace(repeat(path, method, once), nominal=True)


def vector_rates(probed: ProbedGpu) -> Iterator[Reading]:
    gpu = probed.gpu
    yield _lanes(gpu, "fp32_fma", "core.unit.vector.fp32_lanes", "fused multiply-adds", 128)
    yield _lanes(gpu, "int32_mad", "core.unit.vector.int32_lanes", "32-bit multiply-adds", 64)
    yield _lanes(
        gpu,
        "convert_pair",
        "core.unit.vector.convert_lanes",
        "cvt.rn.bf16x2.f32: instructions, each makes two conversions",
        64,
    )
    yield _lanes(gpu, "special_ex2", "core.unit.special.lanes", "ex2.approx.ftz.f32", 16)


def _chain(gpu: Gpu, kernel: str, threads: int, count: int, path: str, method: str, *more: object) -> Reading:
    """Cycles per step of a chain of dependent steps."""
    return repeat(path, method, lambda: gpu.run(kernel, 1, threads, u32(count), *more).cycles / count)


def latencies(probed: ProbedGpu) -> Iterator[Reading]:
    gpu = probed.gpu
    yield _chain(
        gpu,
        "shared_latency",
        32,
        50_000,
        "core.memory.shared.latency_cycles",
        f"pointer chase, 4 bytes; {INFORMATIVE}",
        gpu.sink(),
    )
    yield _chain(
        gpu,
        "barrier_block",
        256,
        50_000,
        "core.sync_cycles",
        "barriers of a block of 256 threads, one after the other",
    )


def shared_rate(probed: ProbedGpu) -> Iterator[Reading]:
    gpu = probed.gpu
    count = SPAN_CYCLES // THREADS

    def once() -> float:
        timing = gpu.run("shared_read", gpu.cores, THREADS, u32(count), gpu.sink(), shared=2048 * WORD)
        return THREADS * 8 * WORD * count / timing.cycles

    yield replace(
        repeat("core.memory.shared.bytes_per_cycle", "16 bytes a lane, no bank conflicts", once), nominal=True
    )


def warp_matrix(probed: ProbedGpu) -> Iterator[Reading]:
    """The rate of mma.sync as a share of the target's fp16 rate, which on Hopper only wgmma reaches."""
    gpu = probed.gpu
    warps, in_flight, count = 16, 4, 20_000
    rate = probed.base["core.unit.matrix.fp16_flops_per_cycle"]

    def share() -> float:
        timing = gpu.run("mma_rate", gpu.cores, 32 * warps, u32(count), u32(0), gpu.sink())
        return warps * in_flight * count * MMA_FLOPS / timing.cycles / rate

    yield repeat(
        "core.unit.matrix.mma_sync_share",
        f"mma.sync m16n8k16 bf16, 64 in flight a core, of {rate:.0f} FLOP/cycle",
        share,
    )
    path = "core.unit.matrix.warp_issue_cycles"
    yield _chain(
        gpu,
        "mma_latency",
        32,
        50_000,
        path,
        "mma.sync m16n8k16 bf16, each adding to the last one's result",
        u32(0),
        gpu.sink(),
    )


def l2(probed: ProbedGpu) -> Iterator[Reading]:
    gpu = probed.gpu
    words = 1 << ((gpu.l2_bytes // 4 // WORD).bit_length() - 1)
    data, blocks = gpu.random(words * WORD), 2 * gpu.cores
    size = f"{words * WORD >> 20} MiB, past L1"

    def together(apart: int) -> Callable[[], float]:
        passes = 16

        def once() -> float:
            timing = gpu.run(
                "l2_read", blocks, THREADS, data, u32(words), u32(apart), u32(passes), gpu.sink()
            )
            return blocks * words * WORD * passes / timing.wall_us / 1e3

        return once

    spaced = words // blocks // 64 * 64
    yield repeat(
        "device.memory.l2.gb_per_s", f"all cores read {size}, each at another place", together(spaced)
    )
    # the drift between blocks differs from launch to launch
    method = f"all cores read {size}, the same lines at the same time"
    yield repeat("device.memory.l2.shared_gb_per_s", method, together(0), times=SHARED_READS)
    memory, start = gpu.ring(4 << 20, 128)

    def hop_ns() -> float:
        count = 50_000
        return gpu.run("chase", 1, 1, u64(start), u32(32_768), u32(count), gpu.sink()).ns / count

    yield repeat("device.memory.l2.latency_ns", "pointer chase in 4 MiB, past L1", hop_ns)
    del memory


def dram_latency(probed: ProbedGpu) -> Iterator[Reading]:
    gpu = probed.gpu
    memory, start = gpu.ring(256 << 20, 512)

    def hop_ns() -> float:
        gpu.flush()
        count = 20_000
        return gpu.run("chase", 1, 1, u64(start), u32(0), u32(count), gpu.sink()).ns / count

    yield repeat("device.memory.dram.latency_ns", "pointer chase in 256 MiB after L2 was flushed", hop_ns)
    del memory


PROBES: Sequence[Probe] = (
    Probe("vector rates", ("fp32_fma", "int32_mad", "convert_pair", "special_ex2"), vector_rates),
    Probe("latencies of a core", ("shared_latency", "barrier_block"), latencies),
    Probe("shared memory", ("shared_read",), shared_rate),
    Probe("warp-level matrix instructions", ("mma_rate", "mma_latency"), warp_matrix),
    Probe("L2", ("l2_read", "chase"), l2),
    Probe("latency of device memory", ("chase",), dram_latency),
)
