"""The figures of a target: meaning, unit and accepted values of each.

The range of a figure includes every chip that TileLang generates code for. A value in a wrong unit (a clock
in GHz, a bandwidth in TB/s) lies outside.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

KINDS = ("cuda", "hip", "cpu")
GPU = ("cuda", "hip")
LEVELS = ("thread", "warp", "core", "cluster", "device", "node")
PROVENANCES = ("spec", "measured", "derived", "public", "predicted")

KIB, MIB, PIB = 1 << 10, 1 << 20, 1 << 50


@dataclass(frozen=True, slots=True)
class Figure:
    """A value of a target with its provenance."""

    value: float
    provenance: str  # one of PROVENANCES
    source: str = ""


@dataclass(frozen=True, slots=True)
class FigureRule:
    """Unit, meaning and accepted values of a figure.

    Attributes:
        required: kinds of target whose files must give the figure.
        may_be_zero: 0 is accepted besides the range.
        least, most: range, both ends included; on a CPU from `cpu_least` if it is given.
        whole: the figure is a count.
        choices: if given, only these values are accepted.
    """

    unit: str
    meaning: str
    required: tuple[str, ...] = GPU
    may_be_zero: bool = False
    least: float = 0.01
    most: float = 1e6
    whole: bool = False
    choices: tuple[int, ...] = ()
    cpu_least: float | None = None


def _count(
    unit: str, meaning: str, required: tuple[str, ...] = GPU, *, least: int = 1, most: int
) -> FigureRule:
    return FigureRule(unit, meaning, required, least=least, most=most, whole=True)


def _bytes(meaning: str, required: tuple[str, ...] = GPU, *, least: int, most: int = PIB) -> FigureRule:
    return FigureRule("bytes", meaning, required, least=least, most=most, whole=True)


def _clock(meaning: str, required: tuple[str, ...]) -> FigureRule:
    return FigureRule("MHz", meaning, required, least=100, most=10_000)


def _flops(meaning: str, *, may_be_zero: bool = False) -> FigureRule:
    return FigureRule("FLOP/cycle/core", meaning, may_be_zero=may_be_zero, least=8, most=1 << 17)


def _lanes(meaning: str, required: tuple[str, ...] = GPU, *, least: float = 1) -> FigureRule:
    return FigureRule("lanes/cycle/core", meaning, required, least=least, most=4096)


def _width(meaning: str, required: tuple[str, ...]) -> FigureRule:
    return FigureRule("bytes/cycle/core", meaning, required, least=1, most=4096)


def _cycles(meaning: str, required: tuple[str, ...] = GPU) -> FigureRule:
    return FigureRule("cycles", meaning, required, least=1, most=100_000)


def _rate(
    meaning: str, required: tuple[str, ...] = GPU, *, least: float = 10, cpu_least: float | None = None
) -> FigureRule:
    return FigureRule("GB/s", meaning, required, least=least, most=1e6, cpu_least=cpu_least)


FIGURES: Mapping[str, FigureRule] = MappingProxyType(
    {
        "thread.max_registers": _count(
            "32-bit registers", "most registers that one thread may hold", least=16, most=4096
        ),
        "warp.threads": FigureRule(
            "threads", "threads that execute one instruction together", whole=True, choices=(32, 64)
        ),
        "core.count": _count("cores", "SMs, CUs or CPU cores on the device", KINDS, most=2048),
        "core.clock_mhz": _clock("clock of single launches without matrix instructions", KINDS),
        "core.clock_matrix_mhz": _clock("clock of single launches with busy matrix pipes", GPU),
        "core.clock_mixed_mhz": _clock("clock of single launches with matrix instructions", ()),
        "core.max_threads": _count("threads", "resident threads per core", least=32, most=16384),
        "core.max_blocks": _count("blocks", "resident blocks per core", most=1024),
        "core.max_block_threads": _count("threads", "threads in one block", least=32, most=16384),
        "core.issue_per_cycle": FigureRule(
            "warp instructions/cycle",
            "instructions issued by all schedulers of a core",
            KINDS,
            least=0.25,
            most=64,
        ),
        "core.unit.matrix.fp16_flops_per_cycle": _flops("dense fp16 and bf16 matrix rate, fp32 accumulate"),
        "core.unit.matrix.fp32_flops_per_cycle": _flops(
            "dense tf32 (AMD: xf32) matrix rate", may_be_zero=True
        ),
        "core.unit.matrix.fp8_flops_per_cycle": _flops("dense fp8 matrix rate", may_be_zero=True),
        "core.unit.matrix.int8_flops_per_cycle": FigureRule(
            "FLOP/cycle/core",
            "dense int8 matrix rate, if it is not that of fp8",
            (),
            may_be_zero=True,
            least=8,
            most=1 << 17,
        ),
        "core.unit.matrix.mma_sync_share": FigureRule(
            "share", "share of the matrix rate that warp-level instructions reach", (), most=1
        ),
        "core.unit.matrix.barrier_overlap": FigureRule(
            "share",
            "share of the warps of a block that overlap matrix work and operand loads between two barriers",
            (),
            may_be_zero=True,
            most=1,
        ),
        "core.unit.matrix.warp_issue_cycles": _cycles(
            "from a matrix instruction to the next one that depends on it"
        ),
        "core.unit.vector.fp32_lanes": _lanes("fp32 multiply-adds started per cycle", KINDS),
        "core.unit.vector.int32_lanes": _lanes("32-bit integer operations per cycle"),
        "core.unit.vector.convert_lanes": _lanes("type conversions per cycle"),
        "core.unit.vector.least_float_bits": _count(
            "bits",
            "narrowest float format that instructions convert; narrower ones take a function",
            (),
            most=64,
        ),
        "core.unit.vector.latency_cycles": _cycles(
            "from an addition to the next that needs its sum", ("cpu",)
        ),
        "core.unit.special.lanes": _lanes(
            "special functions (exp2, rcp, rsqrt, ...) per cycle", KINDS, least=0.01
        ),
        "core.memory.registers.bytes": _bytes("register file", least=16 * KIB, most=64 * MIB),
        "core.memory.shared.bytes": _bytes("shared memory (LDS) of a core", least=KIB, most=64 * MIB),
        "core.memory.shared.block_bytes": _bytes("most shared memory of one block", least=KIB, most=64 * MIB),
        "core.memory.shared.reserved_bytes": FigureRule(
            "bytes",
            "taken from each resident block by the system",
            may_be_zero=True,
            least=1,
            most=64 * KIB,
            whole=True,
        ),
        "core.memory.shared.bytes_per_cycle": _width("32 banks of 4 bytes: 128", GPU),
        "core.memory.shared.latency_cycles": _cycles("from load to use"),
        "core.memory.l1.bytes": _bytes("first-level data cache", ("cpu",), least=KIB, most=64 * MIB),
        "core.memory.l1.bytes_per_cycle": _width("loads from the first-level cache", ("cpu",)),
        "core.memory.l2.bytes": _bytes("second-level cache private to a core", ("cpu",), least=16 * KIB),
        "core.memory.l2.bytes_per_cycle": _width("loads from the private second level", ("cpu",)),
        "core.sync_cycles": _cycles("one barrier among the threads of a block"),
        "cluster.count": _count(
            "clusters", "dies or partitions with an L2 of their own (1: one L2 for all)", most=1024
        ),
        "cluster.cores": _count(
            "cores",
            "most cores of one die (XCD), or of one cluster of blocks (GPC)",
            (),
            most=2048,
        ),
        "cluster.max_blocks": _count(
            "blocks",
            "most blocks that run together on one cluster and read each other's shared memory",
            (),
            most=1024,
        ),
        "cluster.large_cores": _count(
            "cores",
            "cores that clusters of more than two blocks can use at once: some parts of a GPC are too small",
            (),
            most=1 << 20,
        ),
        "cluster.memory.l2.bytes": _bytes("L2 of one cluster", (), least=64 * KIB),
        "cluster.network.latency_cycles": _cycles("from load of another core's shared memory to use", ()),
        "cluster.network.bytes_per_cycle": _width("loads of one core from other cores' shared memory", ()),
        "device.memory.l2.bytes": _bytes("L2, all clusters together", least=64 * KIB),
        "device.memory.l2.gb_per_s": _rate("L2 to cores, all together", least=50),
        "device.memory.l2.shared_gb_per_s": _rate(
            "L2 to cores, if all cores read the same lines together", (), least=50
        ),
        "device.memory.l2.write_gb_per_s": _rate(
            "stores of whole sectors to L2, all cores together", (), least=50
        ),
        "device.memory.l2.update_gb_per_s": _rate(
            "atomics, and stores of parts of a sector, to L2, all cores together", (), least=50
        ),
        "device.memory.l2.latency_ns": FigureRule(
            "ns", "from load to use on an L2 hit", least=1, most=100_000
        ),
        "device.memory.llc.bytes": _bytes(
            "cache behind L2 (Infinity Cache, CPU L3)", ("cpu",), least=64 * KIB
        ),
        "device.memory.llc.gb_per_s": _rate("bandwidth of that cache", ("cpu",), least=50, cpu_least=1),
        "device.memory.dram.bytes": _bytes("device memory", KINDS, least=16 * MIB),
        "device.memory.dram.gb_per_s": _rate(
            "bandwidth of a long copy, reads and writes counted", KINDS, cpu_least=0.1
        ),
        "device.memory.dram.read_gb_per_s": _rate("bandwidth of long reads", (), cpu_least=0.1),
        "device.memory.dram.spec_gb_per_s": _rate("bandwidth of the data sheet", (), cpu_least=0.1),
        "device.memory.dram.latency_ns": FigureRule(
            "ns", "from load to use on an L2 miss", least=1, most=100_000
        ),
        "device.launch_us": FigureRule(
            "us",
            "plus block_start_us: an empty kernel under the timing protocol; on a CPU the call",
            KINDS,
            least=0.01,
            most=1000,
        ),
        "device.block_start_us": FigureRule(
            "us", "part of an empty kernel within its own duration; see launch_us", least=0.01, most=1000
        ),
        "device.spec_matrix_tflops": FigureRule(
            "TFLOP/s", "matrix rate of the data sheet, dense fp16", (), most=100_000
        ),
        "device.sustained_matrix_tflops": FigureRule(
            "TFLOP/s", "dense bf16 of the vendor's library over seconds", (), most=100_000
        ),
        "device.network.gb_per_s": _rate("all clusters to the memory behind them, each way", (), least=50),
        "node.devices": _count("devices", "in one node of the usual kind", (), most=1 << 16),
        "node.network.link_gb_per_s": _rate("to a peer device, each way", (), least=1),
        "node.network.host_gb_per_s": _rate("to the host's memory, each way", (), least=1),
    }
)

# Figures of earlier versions, which no prediction reads. A file may still give them; they are ignored.
RETIRED = frozenset(
    {
        "core.clock_memory_mhz",
        "core.unit.vector.int_convert_lanes",
        "core.barrier_wait_cycles",
        "core.shuffle_cycles",
        "core.bulk_copy_cycles",
        "core.l2_bytes_per_cycle",
        "device.graph_launch_us",
        "device.block_turnover_us",
    }
)
