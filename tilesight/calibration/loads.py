"""Figures that need a load held for seconds, so that the clock is the one which the power limit leaves; and launches."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence

from .gpu import Timing, u32, u64
from .probes import CHAIN_STEPS, THREADS, WORD, Probe, Subject
from .reading import Reading, reading

LOAD_S = 2.0
MATRIX_LOAD_S = 4.0
LAUNCH_SAMPLES = 200
GRAPH_LAUNCHES = 101


def _hold(once: Callable[[], Timing]) -> list[Timing]:
    """Run for LOAD_S, at least six times; what came in the second half."""
    begin = time.perf_counter()
    found: list[Timing] = []
    while len(found) < 6 or time.perf_counter() - begin < LOAD_S:
        found.append(once())
    return found[len(found) // 2 :]


def vector_load(subject: Subject) -> Iterator[Reading]:
    gpu = subject.gpu
    count = 20 * 1_000_000 * 128 // (THREADS * CHAIN_STEPS)  # some 10 ms
    held = _hold(lambda: gpu.run("fp32_fma", gpu.cores, THREADS, u32(count), u32(12345), gpu.sink()))
    yield reading("core.clock_mhz", [t.clock_mhz for t in held], f"SM clock while all cores multiply and add, {LOAD_S:.0f} s")


def memory_load(subject: Subject) -> Iterator[Reading]:
    gpu = subject.gpu
    size = min(4 << 30, gpu.memory_bytes // 8) // (1 << 20) * (1 << 20)
    source, copy = gpu.random(size), gpu.random(size)
    words, blocks = size // WORD, 2 * gpu.cores
    copies = _hold(lambda: gpu.run("dram_copy", blocks, THREADS, source, copy, u64(words)))
    reads = _hold(lambda: gpu.run("dram_read", blocks, THREADS, source, u64(words), gpu.sink()))
    kernel = [2 * size / t.wall_us / 1e3 for t in copies]
    driver = [2 * size / gpu.copy_us(source, copy) / 1e3 for _ in range(20)]
    gib = f"{size / 2**30:g} GiB, read and write counted"
    yield max(
        reading("device.memory.dram.gb_per_s", kernel, f"copy of {gib}"),
        reading("device.memory.dram.gb_per_s", driver, f"the driver's copy of {gib}"),
        key=lambda found: found.value,
    )
    yield reading("device.memory.dram.read_gb_per_s", [size / t.wall_us / 1e3 for t in reads], f"reading {size / 2**30:g} GiB")
    yield reading("core.clock_memory_mhz", [t.clock_mhz for t in copies], "SM clock during that copy")


def matrix_load(subject: Subject) -> Iterator[Reading]:
    gpu = subject.gpu
    load = gpu.matrix_load(MATRIX_LOAD_S)
    yield reading(
        "core.clock_matrix_mhz",
        load.clocks_mhz or (0.0,),
        f"SM clock during bf16 products of 8192 x 8192 random numbers, {MATRIX_LOAD_S:.0f} s",
    )
    yield reading("device.sustained_matrix_tflops", [load.tflops], "the same products, by the vendor's library")


def launches(subject: Subject) -> Iterator[Reading]:
    gpu = subject.gpu
    gpu.launch_us("empty", 20)
    samples, nothing = gpu.launch_us("empty", LAUNCH_SAMPLES), gpu.launch_us(None, LAUNCH_SAMPLES)
    idle = reading("", nothing, "").value
    method = f"events around an empty kernel after a flush of L2, {LAUNCH_SAMPLES} samples; around nothing {idle:.2f} us"
    yield _inner(reading("device.launch_us", samples, method), samples)
    one = reading("", gpu.graph_us("empty", 1, LAUNCH_SAMPLES), "").value
    many = [(t - one) / (GRAPH_LAUNCHES - 1) for t in gpu.graph_us("empty", GRAPH_LAUNCHES, LAUNCH_SAMPLES)]
    yield _inner(reading("device.graph_launch_us", many, "a further empty kernel in a graph"), many)


def _inner(found: Reading, samples: Sequence[float]) -> Reading:
    """With the spread of the inner half: single samples of a launch are disturbed now and then."""
    ordered = sorted(samples)
    quarter = len(ordered) // 4
    return Reading(found.path, found.value, (ordered[-1 - quarter] - ordered[quarter]) / found.value, found.method)


LOADS: Sequence[Probe] = (
    Probe("vector load", ("fp32_fma",), vector_load),
    Probe("memory load", ("dram_copy", "dram_read"), memory_load),
    Probe("matrix load", ("clock_rate",), matrix_load),
    Probe("launches", ("empty",), launches),
)
