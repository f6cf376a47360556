"""A GPU that answers as arithmetic says: what the probes make of it must be the figures that it was given."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilesight.calibration.gpu import MatrixLoad, Timing

FIGURES = {
    "core.unit.vector.fp32_lanes": 127.0,
    "core.unit.vector.int32_lanes": 63.0,
    "core.unit.vector.convert_lanes": 62.0,
    "core.unit.vector.int_convert_lanes": 61.0,
    "core.unit.special.lanes": 15.9,
    "core.memory.shared.latency_cycles": 29.0,
    "core.shuffle_cycles": 24.0,
    "core.sync_cycles": 28.0,
    "core.memory.shared.bytes_per_cycle": 126.0,
    "core.unit.matrix.mma_sync_share": 0.625,
    "core.unit.matrix.warp_issue_cycles": 33.0,
    "core.barrier_wait_cycles": 90.0,
    "core.bulk_copy_cycles": 640.0,
    "device.memory.l2.gb_per_s": 6800.0,
    "device.memory.l2.shared_gb_per_s": 9900.0,
    "core.l2_bytes_per_cycle": 60.0,
    "device.memory.l2.latency_ns": 151.0,
    "device.memory.dram.latency_ns": 380.0,
    "device.block_turnover_us": 0.8,
    "core.clock_mhz": 1905.0,
    "device.memory.dram.gb_per_s": 4310.0,
    "device.memory.dram.read_gb_per_s": 4450.0,
    "core.clock_memory_mhz": 1960.0,
    "core.clock_matrix_mhz": 1590.0,
    "device.sustained_matrix_tflops": 781.0,
    "device.launch_us": 3.1,
    "device.graph_launch_us": 1.25,
}
CLOCK_MHZ = 1905.0


@dataclass(frozen=True)
class Memory:
    size: int


@dataclass
class FakeGpu:
    cores: int = 132
    l2_bytes: int = 60 << 20
    memory_bytes: int = 141 << 30
    absent: tuple[str, ...] = ()
    figures: dict[str, float] = field(default_factory=lambda: dict(FIGURES))
    ran: set[str] = field(default_factory=set)
    flushed: int = 0

    def has(self, kernel: str) -> bool:
        return kernel not in self.absent

    def run(self, kernel: str, blocks: int, threads: int, *arguments: Any, shared: int = 0) -> Timing:
        assert threads <= 1024
        assert blocks >= 1
        self.ran.add(kernel)
        numbers = [a.value for a in arguments if not isinstance(a, Memory)]
        memories = [a.size for a in arguments if isinstance(a, Memory)]
        f = self.figures
        lanes = {
            "fp32_fma": "vector.fp32_lanes",
            "int32_mad": "vector.int32_lanes",
            "convert_pair": "vector.convert_lanes",
            "convert_int": "vector.int_convert_lanes",
            "special_ex2": "special.lanes",
        }
        chains = {
            "shared_latency": "core.memory.shared.latency_cycles",
            "shuffle_latency": "core.shuffle_cycles",
            "barrier_block": "core.sync_cycles",
            "mma_latency": "core.unit.matrix.warp_issue_cycles",
            "barrier_wait": "core.barrier_wait_cycles",
        }
        if kernel in lanes:
            return _cycles(threads * 64 * numbers[0] / f[f"core.unit.{lanes[kernel]}"])
        if kernel in chains:
            return _cycles(numbers[0] * f[chains[kernel]])
        if kernel == "shared_read":
            assert shared == 32768
            return _cycles(threads * 8 * 16 * numbers[0] / f["core.memory.shared.bytes_per_cycle"])
        if kernel == "mma_rate":
            return _cycles(threads // 32 * 4 * numbers[0] * 4096 / (4096 * f["core.unit.matrix.mma_sync_share"]))
        if kernel == "bulk_copy":
            size, places, count = numbers
            assert size * places <= memories[0]
            return _cycles(count * f["core.bulk_copy_cycles"])
        if kernel == "l2_read":
            words, apart, passes = numbers
            assert words & (words - 1) == 0, "a power of two"
            assert words * 16 == memories[0] <= self.l2_bytes // 4
            name = "shared_gb_per_s" if apart == 0 else "gb_per_s"
            wall_us = blocks * words * 16 * passes / f[f"device.memory.l2.{name}"] / 1e3
            return Timing(words * 16 * passes / f["core.l2_bytes_per_cycle"], wall_us * 1e3, CLOCK_MHZ, wall_us)
        if kernel == "chase":
            near = numbers[0] == 4 << 20  # a ring's address is its size here
            assert near or self.flushed, "pointers that L2 still has tell nothing of device memory"
            latency = f["device.memory.l2.latency_ns" if near else "device.memory.dram.latency_ns"]
            return Timing(0.0, numbers[2] * latency, CLOCK_MHZ, 0.0)
        if kernel in ("dram_copy", "dram_read"):
            moved = 2 * memories[0] if kernel == "dram_copy" else memories[0]
            rate = f["device.memory.dram.gb_per_s" if kernel == "dram_copy" else "device.memory.dram.read_gb_per_s"]
            return Timing(1.0, 1.0, f["core.clock_memory_mhz"], moved / rate / 1e3)
        assert kernel == "empty", kernel
        return Timing(0.0, 0.0, 0.0, 3.0 + blocks / self.cores * f["device.block_turnover_us"])

    def random(self, size: int) -> Memory:
        assert size <= self.memory_bytes // 8
        return Memory(size)

    def sink(self) -> Memory:
        return Memory(8)

    def ring(self, size: int, stride: int) -> tuple[Memory, int]:
        return Memory(size), size

    def flush(self) -> None:
        self.flushed += 1

    def copy_us(self, source: Memory, copy: Memory) -> float:
        return 2 * source.size / 4000.0 / 1e3

    def matrix_load(self, seconds: float) -> MatrixLoad:
        clock = self.figures["core.clock_matrix_mhz"]
        return MatrixLoad(self.figures["device.sustained_matrix_tflops"], (clock - 5, clock, clock + 5))

    def launch_us(self, kernel: str | None, samples: int) -> list[float]:
        return [self.figures["device.launch_us"] if kernel else 1.6] * samples

    def graph_us(self, kernel: str, launches: int, samples: int) -> list[float]:
        return [2.0 + launches * self.figures["device.graph_launch_us"]] * samples


def _cycles(cycles: float) -> Timing:
    return Timing(cycles, cycles * 1e3 / CLOCK_MHZ, CLOCK_MHZ, cycles / CLOCK_MHZ)
