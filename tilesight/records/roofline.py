"""Roofline: the least time that the hardware allows for a workload, and rates as shares of it."""

from __future__ import annotations

from dataclasses import dataclass

from ..target.spec import Target


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least time of a workload on a target.

    No kernel is faster than its matrix work at the matrix peak, nor than its least traffic at the bandwidth
    of device memory (that of reads, if it is higher). The peaks are figures of the target file.
    """

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
        """Share of the hardware limit that a kernel of that time reaches, 0 .. 1."""
        return self.latency_us / latency_us


def roofline(target: Target, dtype: str, flops: int, min_bytes: int) -> Roofline:
    """The roofline of work of `flops` operations in `dtype` and `min_bytes` bytes on `target`.

    Without operations, or where their number is not known (0), the traffic alone sets it, for any dtype.
    """
    gb_per_s = max(target.dram_gb_per_s, target.get("device.memory.dram.read_gb_per_s"))
    compute_us = flops / target.matrix_tflops(dtype) / 1e6 if flops else 0.0
    return Roofline(flops, min_bytes, compute_us, min_bytes / gb_per_s / 1e3)
