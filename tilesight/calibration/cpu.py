"""Measures one core of this machine: derives figures from the times of the loops in `cpu_probes.cpp`."""

from __future__ import annotations

import ctypes
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from ..builder.compiler import CompileError, compile_in
from ..builder.cpu import cpu_flags
from ..builder.loaded_kernel import LoadedKernel
from ..errors import ToolchainError
from ..machine.toolchain import find_cxx, missing_compiler
from ..runner.kernel_run import in_turn
from ..target.spec import Target
from .readings import Reading, reading

REPETITIONS = 40
INPUT_SETS = 4  # a small kernel is timed on this number of inputs in turn
SAMPLE_S = 0.01  # of one sample
CHAIN_LENGTH = 2048  # floats: half of the smallest first-level cache in use
CYCLES = 2**20  # of one repetition
WARM_UP_S = 0.5
# Of the samples of an undisturbed figure, this share is within this distance of the best one.
NEAR_BEST, LEAST_NEAR = 0.1, 0.25
MULTIPLY_ADDS = 8  # of an element of `multiply_add`
OPERANDS = 8  # of an element of `loads`
STREAM_BYTES = 8  # of an element of `stream`: one float is read, one written
# Working sets of the levels, as shares of a cache: well inside, or well beyond it.
INSIDE, BEYOND = 0.5, 2.0
LEAST_MEMORY = 256 * 2**20  # bytes of a working set that is in no cache
MOST_MEMORY_SHARE = 0.25  # of the free memory
CACHES = Path("/sys/devices/system/cpu/cpu0/cache")
Progress = Callable[[str], None]


@dataclass(frozen=True)
class CacheSizes:
    """Bytes of the data caches that one core can use; 0 where the system does not say."""

    l1: int
    l2: int
    llc: int

    @classmethod
    def of_this_machine(cls, folder: Path = CACHES) -> CacheSizes:
        """Read what the Linux kernel says of the first core."""
        sizes: dict[int, int] = {}
        for cache in folder.glob("index*"):
            try:
                kind, level, size = ((cache / name).read_text().strip() for name in ("type", "level", "size"))
                if kind in ("Data", "Unified"):
                    sizes[int(level)] = int(size.removesuffix("K")) * 1024
            except (OSError, ValueError):
                continue
        return cls(sizes.get(1, 0), sizes.get(2, 0), sizes.get(3, 0))


class CpuProbes:
    """The compiled loops, with their arrays of floats."""

    def __init__(self, folder: Path, floats: int) -> None:
        """Load the loops from `folder`, and make two arrays of `floats` elements."""
        library = folder / "probes.so"
        self._library = ctypes.CDLL(str(library))
        kernel = LoadedKernel(str(library), "tilesight_call")
        self.empty_call = in_turn([kernel.bind(()) for _ in range(INPUT_SETS)])
        self._input, self._output = (ctypes.c_float * floats)(), (ctypes.c_float * floats)()
        for array in (self._input, self._output):  # the system gives memory when it is written
            ctypes.memset(array, 0x3E, ctypes.sizeof(array))

    def seconds(self, name: str, count: int) -> float:
        """Seconds of one repetition of a loop over `count` elements."""
        function, size = self._library[name], ctypes.c_int64(count)
        return _sampled(lambda repeats: function(self._input, self._output, size, ctypes.c_int64(repeats)))

    def chain_seconds(self, count: int) -> float:
        """Seconds of `count` additions that wait for each other."""
        function, size = self._library["add_chain"], ctypes.c_int64(count)
        function.restype = ctypes.c_float
        return _sampled(lambda repeats: function(self._input, size, ctypes.c_int64(repeats)))

    def clock_mhz(self) -> float:
        """Cycles in a microsecond."""
        function = self._library["count_cycles"]
        return CYCLES / _sampled(lambda repeats: function(ctypes.c_int64(repeats * CYCLES))) / 1e6

    def warm_up(self) -> None:
        """Keep the core busy until its clock has risen."""
        end = time.perf_counter() + WARM_UP_S
        while time.perf_counter() < end:
            self.clock_mhz()

    def call_seconds(self) -> float:
        """Seconds of a call of an empty kernel, as a kernel is timed."""

        def calls(repeats: int) -> None:
            for _ in range(repeats):
                self.empty_call()

        return _sampled(calls)


def _fastest(path: str, method: str, once: Callable[[], float], *, highest: bool = True) -> Reading:
    """The best of `REPETITIONS` values of `once`: other work on a processor only makes loops slower."""
    found = reading(path, [once() for _ in range(REPETITIONS)], method)
    return replace(found, value=max(found.samples) if highest else min(found.samples))


def disturbed_notes(readings: Iterable[Reading]) -> list[str]:
    """A note on the figures that other work disturbed: few of their samples are near the best one."""
    found = [
        r.path
        for r in readings
        if r.samples
        and sum(abs(s - r.value) <= NEAR_BEST * r.value for s in r.samples) < LEAST_NEAR * len(r.samples)
    ]
    if not found:
        return []
    return [
        f"other work disturbed {', '.join(found)}: fewer than {LEAST_NEAR:.0%} of the samples are within "
        f"{NEAR_BEST:.0%} of the best; calibrate again when the machine is idle"
    ]


def _sampled(run: Callable[[int], object]) -> float:
    """Seconds of one repetition, from a run of about `SAMPLE_S`. `run` takes the number of repetitions."""

    def each(repeats: int) -> float:
        begin = time.perf_counter()
        run(repeats)
        return (time.perf_counter() - begin) / repeats

    rough = each(1)
    repeats = max(1, int(SAMPLE_S / max(rough, 1e-8)))
    while rough * repeats < SAMPLE_S and repeats < 2**24:  # the first run was slower than those that follow
        rough = each(repeats)
        repeats = max(repeats * 2, int(SAMPLE_S / max(rough, 1e-9)))
    return each(repeats)


def compile_probes(target: Target, folder: Path) -> None:
    """Compile the loops into `folder`, with the flags of kernels. Raises `ToolchainError`."""
    if missing := missing_compiler(target):
        raise ToolchainError(missing)
    source = Path(__file__).with_name("cpu_probes.cpp")
    try:
        compile_in(folder, [str(find_cxx()), *cpu_flags(()), source, "-lm", "-o", "probes.so"])
    except CompileError as error:
        raise ToolchainError(f"calibration: the probes cannot be built: {error}") from error


def measure_core(base: Target, report_step: Progress) -> list[Reading]:
    """Measure one core of this machine, in some ten seconds. Raises `ToolchainError`."""
    caches = CacheSizes.of_this_machine()
    free = psutil.virtual_memory().available
    sizes = {
        "l1": caches.l1 or base.int("core.memory.l1.bytes"),
        "l2": caches.l2 or base.int("core.memory.l2.bytes"),
        "llc": caches.llc or base.int("device.memory.llc.bytes"),
    }
    most = int(min(max(LEAST_MEMORY, BEYOND * sizes["llc"]), MOST_MEMORY_SHARE * free))
    with tempfile.TemporaryDirectory(prefix="tilesight-probes-") as name:
        report_step("building the probes")
        compile_probes(base, Path(name))
        return [
            *_counted(caches),
            *_timed(CpuProbes(Path(name), most // STREAM_BYTES), sizes, most, report_step),
        ]


def _counted(caches: CacheSizes) -> Iterator[Reading]:
    """Sizes that the system reports."""
    counted = {
        "core.memory.l1.bytes": caches.l1,
        "core.memory.l2.bytes": caches.l2,
        "device.memory.llc.bytes": caches.llc,
        "device.memory.dram.bytes": psutil.virtual_memory().total,
    }
    for path, size in counted.items():
        if size:
            yield Reading(path, float(size), 0.0, f"as the system reports it: {size}")


def _timed(probes: CpuProbes, sizes: dict[str, int], most: int, report_step: Progress) -> Iterator[Reading]:
    report_step("clock and arithmetic")
    probes.warm_up()
    clock = _fastest(
        "core.clock_mhz", "integer additions that wait for each other, one a cycle", probes.clock_mhz
    )
    yield clock
    cycles_per_s = clock.value * 1e6
    yield _fastest(
        "core.unit.vector.fp32_lanes",
        "multiply-adds of vectors, 8 for each element",
        lambda: MULTIPLY_ADDS * CHAIN_LENGTH / (probes.seconds("multiply_add", CHAIN_LENGTH) * cycles_per_s),
    )
    yield _fastest(
        "core.unit.vector.latency_cycles",
        "a sum of floats in order",
        lambda: probes.chain_seconds(CHAIN_LENGTH) * cycles_per_s / CHAIN_LENGTH,
        highest=False,
    )
    yield _fastest(
        "core.unit.special.lanes",
        "expf of the C library, one call for each element",
        lambda: CHAIN_LENGTH / (probes.seconds("exponentials", CHAIN_LENGTH) * cycles_per_s),
    )
    yield _fastest(
        "device.launch_us", "call of an empty kernel", lambda: 1e6 * probes.call_seconds(), highest=False
    )
    report_step("caches and memory")
    operand = int(INSIDE * sizes["l1"]) // (4 * (OPERANDS + 1)) // 16 * 16
    yield _fastest(
        "core.memory.l1.bytes_per_cycle",
        "eight operands for each result in the first-level cache; loads counted",
        lambda: 4 * OPERANDS * operand / (probes.seconds("loads", operand) * cycles_per_s),
    )

    def streamed(level: str, path: str, size: float, unit: float) -> Reading:
        count = int(min(size, most)) // STREAM_BYTES
        return _fastest(
            path,
            f"y = 2 x + 1 over {count * STREAM_BYTES} bytes, in {level}; bytes read and written",
            lambda: STREAM_BYTES * count / (probes.seconds("stream", count) * unit),
        )

    yield streamed(
        "the second-level cache", "core.memory.l2.bytes_per_cycle", INSIDE * sizes["l2"], cycles_per_s
    )
    # Several cores may share the last level: a size near that of the second level is this core's in any case.
    inside_llc = min(INSIDE * sizes["llc"], 4 * sizes["l2"])
    cache = streamed("the last-level cache", "device.memory.llc.gb_per_s", inside_llc, 1e9)
    memory = streamed("memory", "device.memory.dram.gb_per_s", float(most), 1e9)
    # what comes from memory comes through the cache: a slower cache was measured beside other work
    yield replace(cache, value=max(cache.value, memory.value))
    yield memory
