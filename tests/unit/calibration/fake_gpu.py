"""A simulated GPU with given figures, which the probes must find."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tilesight.calibration.gpu import Timing

FIGURES = {
    "core.unit.vector.fp32_lanes": 120.0,
    "core.unit.vector.int32_lanes": 60.0,
    "core.unit.vector.convert_lanes": 61.0,
    "core.unit.special.lanes": 15.0,
    "core.memory.shared.latency_cycles": 29.0,
    "core.sync_cycles": 28.0,
    "core.memory.shared.bytes_per_cycle": 120.0,
    "core.unit.matrix.mma_sync_share": 0.625,
    "core.unit.matrix.warp_issue_cycles": 33.0,
    "device.memory.l2.gb_per_s": 6800.0,
    "device.memory.l2.shared_gb_per_s": 9900.0,
    "device.memory.l2.latency_ns": 151.0,
    "device.memory.dram.latency_ns": 380.0,
    "core.clock_mhz": 1905.0,
    "core.clock_mixed_mhz": 1770.0,
    "device.memory.dram.gb_per_s": 4310.0,
    "device.memory.dram.read_gb_per_s": 4450.0,
    "core.clock_matrix_mhz": 1590.0,
    "device.sustained_matrix_tflops": 781.0,
    "device.launch_us": 1.7426,
    "device.block_start_us": 2.4574,
}
# measured on an H200 (experiments/calibration/calibrate.json, `measured`)
H200_FIGURES = {
    **FIGURES,
    "core.unit.vector.fp32_lanes": 126.45,
    "core.unit.vector.int32_lanes": 63.974,
    "core.unit.vector.convert_lanes": 63.725,
    "core.unit.special.lanes": 15.994,
    "core.memory.shared.latency_cycles": 23.005,
    "core.sync_cycles": 28.631,
    "core.memory.shared.bytes_per_cycle": 126.99,
    "core.unit.matrix.mma_sync_share": 0.6665,
    "core.unit.matrix.warp_issue_cycles": 24.004,
    "device.memory.l2.gb_per_s": 9635.3,
    "device.memory.l2.shared_gb_per_s": 13168.0,
    "device.memory.l2.latency_ns": 142.19,
    "device.memory.dram.latency_ns": 332.48,
    "device.memory.dram.gb_per_s": 4287.6,
    "device.memory.dram.read_gb_per_s": 4462.5,
    "core.clock_mhz": 1979.2,
    "core.clock_mixed_mhz": 1771.2,
    "core.clock_matrix_mhz": 1610.9,
    "device.sustained_matrix_tflops": 666.43,
    "device.launch_us": 1.4976,
    "device.block_start_us": 1.8304,
}
HELD_MHZ = 1310.0  # that products which are not cold find the chip at


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
            "special_ex2": "special.lanes",
        }
        chains = {
            "shared_latency": "core.memory.shared.latency_cycles",
            "barrier_block": "core.sync_cycles",
            "mma_latency": "core.unit.matrix.warp_issue_cycles",
        }
        if kernel in lanes:
            return self._cycles(threads * 256 * numbers[0] / f[f"core.unit.{lanes[kernel]}"])
        if kernel in chains:
            return self._cycles(numbers[0] * f[chains[kernel]])
        if kernel == "shared_read":
            assert shared == 32768
            return self._cycles(threads * 8 * 16 * numbers[0] / f["core.memory.shared.bytes_per_cycle"])
        if kernel == "mma_rate":
            return self._cycles(
                threads // 32 * 4 * numbers[0] * 4096 / (4096 * f["core.unit.matrix.mma_sync_share"])
            )
        if kernel == "l2_read":
            words, apart, passes = numbers
            assert words & (words - 1) == 0, "a power of two"
            assert words * 16 == memories[0] <= self.l2_bytes // 4
            name = "shared_gb_per_s" if apart == 0 else "gb_per_s"
            wall_us = blocks * words * 16 * passes / f[f"device.memory.l2.{name}"] / 1e3
            return Timing(1.0, wall_us * 1e3, f["core.clock_mhz"], wall_us)
        if kernel == "chase":
            near = numbers[0] == 4 << 20  # a ring's address is its size here
            assert near or self.flushed, "pointers in L2 do not measure device memory"
            latency = f["device.memory.l2.latency_ns" if near else "device.memory.dram.latency_ns"]
            return Timing(0.0, numbers[2] * latency, f["core.clock_mhz"], 0.0)
        assert kernel in ("dram_copy", "dram_read"), kernel
        moved = 2 * memories[0] if kernel == "dram_copy" else memories[0]
        rate = f[
            "device.memory.dram.gb_per_s" if kernel == "dram_copy" else "device.memory.dram.read_gb_per_s"
        ]
        return Timing(1.0, 1.0, f["core.clock_mhz"], moved / rate / 1e3)

    def _cycles(self, cycles: float) -> Timing:
        mhz = self.figures["core.clock_mhz"]
        return Timing(cycles, cycles * 1e3 / mhz, mhz, cycles / mhz)

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

    def product(self, rows: int, columns: int, depth: int) -> FakeProduct:
        # the narrow one waits for device memory
        name = "mixed" if rows < 128 else "matrix"
        return FakeProduct(2.0 * rows * columns * depth, self.figures, self.figures[f"core.clock_{name}_mhz"])

    def launch_us(self, kernel: str, blocks: int, threads: int, samples: int) -> list[float]:
        assert (kernel, blocks) == ("empty", self.cores)
        self.ran.add(kernel)
        return [self.figures["device.launch_us"] + self.figures["device.block_start_us"]] * samples


@dataclass
class FakeProduct:
    flops: float
    figures: dict[str, float]
    clock_mhz: float

    def times(self, count: int, cold: bool) -> list[tuple[float, float]]:
        us = self.flops / self.figures["device.sustained_matrix_tflops"] / 1e6
        return [(us, self.clock_mhz if cold else HELD_MHZ)] * count
