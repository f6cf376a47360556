"""Probes whose result depends on the load: clocks and launches as in benchmarks, and sustained rates."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from statistics import median

from ..records.protocol import MeasurementProtocol
from .gpu import Timing, u32, u64
from .probes import CHAIN_STEPS, THREADS, WORD, Probe, ProbedGpu
from .readings import INFORMATIVE, REPETITIONS, Reading, reading

LOAD_S = 1.0
MATRIX_LOAD_S = 4.0
WARM_UP_S, SAMPLES = (
    MeasurementProtocol().warmup_ms / 1e3,
    MeasurementProtocol().min_samples,
)  # of a candidate
PAUSE_S = 0.1  # between candidates, for building and checking them
LAUNCH_SAMPLES, LAUNCH_TURNS = 100, 7
LAUNCH_THREADS = 128  # the fewest threads in a block of a kernel
SUSTAINED_PRODUCTS = 20  # between two readings of the wall clock


def clocks(probed: ProbedGpu) -> Iterator[Reading]:
    """Clocks during single launches as in benchmarks.

    Under a sustained load the power limit lowers them further.
    """
    gpu = probed.gpu
    wide, full = gpu.product(64, 32768, 8192), gpu.product(4096, 4096, 8192)
    count = 128 * 250_000 // (THREADS * CHAIN_STEPS)  # some 130 us

    def vector() -> float:
        gpu.flush()
        return gpu.run("fp32_fma", gpu.cores, THREADS, u32(count), u32(12345), gpu.sink()).clock_mhz

    def clock(path: str, samples: Callable[[int], list[float]], kernels: str) -> Reading:
        turns = [_turn(samples) for _ in range(REPETITIONS)]
        return reading(path, turns, f"SM clock of single launches, each after a flush of L2: {kernels}")

    products = "bf16 products of random numbers"
    yield clock(
        "core.clock_mhz",
        lambda count: [vector() for _ in range(count)],
        "multiply-adds, no matrix instructions",
    )
    yield clock(
        "core.clock_mixed_mhz",
        lambda count: [mhz for _, mhz in wide.times(count, cold=True)],
        f"{products}, 64 x 32768 x 8192, in which matrix pipes wait for device memory",
    )
    yield clock(
        "core.clock_matrix_mhz",
        lambda count: [mhz for _, mhz in full.times(count, cold=True)],
        f"{products}, 4096 x 4096 x 8192, in which matrix pipes are busy",
    )


def _turn(samples: Callable[[int], list[float]]) -> float:
    """The median that a benchmark would measure of one candidate."""
    time.sleep(PAUSE_S)
    begin = time.perf_counter()
    while time.perf_counter() - begin < WARM_UP_S:
        samples(3)
    return median(samples(SAMPLES))


def launches(probed: ProbedGpu) -> Iterator[Reading]:
    """The duration of an empty kernel, which the model predicts as `launch_us + block_start_us`.

    The shares of the two cannot be measured; they stay those of the base.
    """
    gpu, base = probed.gpu, probed.base
    gpu.launch_us("empty", gpu.cores, LAUNCH_THREADS, SAMPLES)
    turns = []
    for _ in range(LAUNCH_TURNS):
        time.sleep(PAUSE_S)
        turns.append(median(gpu.launch_us("empty", gpu.cores, LAUNCH_THREADS, LAUNCH_SAMPLES)))
    # other work on the machine only makes launches longer, for whole turns
    shortest = min(turns)
    method = (
        "events around an empty kernel of a block a core after a flush of L2, "
        f"the quietest of {LAUNCH_TURNS} turns: {shortest:.3g} us"
    )
    before = {path: base[path] for path in ("device.launch_us", "device.block_start_us")}
    for path, value in before.items():
        share = value / sum(before.values())
        how = f"{method}, of which {100 * share:.0f} % as in target {base.name}"
        yield Reading(
            path,
            shortest * share,
            (max(turns) - shortest) / shortest,
            how,
            samples=tuple(share * turn for turn in turns),
        )


def _sustain(once: Callable[[], Timing]) -> list[Timing]:
    """Run `once` for LOAD_S, at least six times. Returns the second half of the timings."""
    begin = time.perf_counter()
    found: list[Timing] = []
    while len(found) < 6 or time.perf_counter() - begin < LOAD_S:
        found.append(once())
    return found[len(found) // 2 :]


def memory_load(probed: ProbedGpu) -> Iterator[Reading]:
    gpu = probed.gpu
    size = min(4 << 30, gpu.memory_bytes // 8) // (1 << 20) * (1 << 20)
    source, copy = gpu.random(size), gpu.random(size)
    words, blocks = size // WORD, 2 * gpu.cores
    copies = _sustain(lambda: gpu.run("dram_copy", blocks, THREADS, source, copy, u64(words)))
    reads = _sustain(lambda: gpu.run("dram_read", blocks, THREADS, source, u64(words), gpu.sink()))
    kernel = [2 * size / t.wall_us / 1e3 for t in copies]
    driver = [2 * size / gpu.copy_us(source, copy) / 1e3 for _ in range(21)][1:]
    gib = f"{size / 2**30:g} GiB, read and write counted"
    yield max(
        reading("device.memory.dram.gb_per_s", kernel, f"copy of {gib}"),
        reading("device.memory.dram.gb_per_s", driver, f"the driver's copy of {gib}"),
        key=lambda found: found.value,
    )
    yield reading(
        "device.memory.dram.read_gb_per_s",
        [size / t.wall_us / 1e3 for t in reads],
        f"reading {size / 2**30:g} GiB",
    )


def matrix_load(probed: ProbedGpu) -> Iterator[Reading]:
    product = probed.gpu.product(8192, 8192, 8192)
    begin = time.perf_counter()
    found: list[tuple[float, float]] = []
    while not found or time.perf_counter() - begin < MATRIX_LOAD_S:
        found += product.times(SUSTAINED_PRODUCTS, cold=False)
    settled = found[len(found) // 2 :]
    clock_mhz = median(clock for _, clock in settled)
    yield reading(
        "device.sustained_matrix_tflops",
        [product.flops / us / 1e6 for us, _ in settled],
        f"bf16 products of random numbers, 8192 x 8192 x 8192, for {MATRIX_LOAD_S:.0f} s, "
        f"at {clock_mhz:.0f} MHz; {INFORMATIVE}",
    )


# Probes that need the state of the chip as in benchmarks come first; the probe that heats it is last.
LOADS: Sequence[Probe] = (
    Probe("clocks", ("clock_rate", "fp32_fma"), clocks),
    Probe("launches", ("empty",), launches),
    Probe("memory load", ("dram_copy", "dram_read"), memory_load),
)
SUSTAINED: Sequence[Probe] = (Probe("sustained matrix load", ("clock_rate",), matrix_load),)
