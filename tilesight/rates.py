"""Rates: how fast a time is, against the least that the hardware allows."""

from __future__ import annotations

from dataclasses import dataclass

from .target import Target


@dataclass(frozen=True, slots=True)
class Limit:
    """The roofline of a workload on a target: no kernel is faster than its matrix work at the matrix peak, nor than its
    least traffic at the bandwidth of device memory, that of reads where it is the higher one. The figures are those of the
    target file."""

    flops: int
    min_bytes: int
    compute_us: float
    memory_us: float

    @property
    def latency_us(self) -> float:
        return max(self.compute_us, self.memory_us)

    @property
    def is_compute(self) -> bool:
        return self.compute_us >= self.memory_us

    def tflops(self, latency_us: float) -> float:
        return self.flops / latency_us / 1e6

    def gb_per_s(self, latency_us: float) -> float:
        return self.min_bytes / latency_us / 1e3

    def share(self, latency_us: float) -> float:
        """How much of the hardware's limit a kernel of that time reaches: 1 is all of it."""
        return self.latency_us / latency_us


def limit(target: Target, dtype: str, flops: int, min_bytes: int) -> Limit:
    gb_per_s = max(target.dram_gb_per_s, target.get("device.memory.dram.read_gb_per_s"))
    return Limit(flops, min_bytes, flops / target.matrix_tflops(dtype) / 1e6, min_bytes / gb_per_s / 1e3)
