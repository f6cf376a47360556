"""Roofline: the least time that the hardware allows for a workload, and rates as shares of it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..target.spec import Target


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least time of a workload on a target.

    No kernel is faster than its matrix work at the matrix peak, nor than its least traffic at the bandwidth
    of device memory (that of reads, if it is higher). On a CPU, whose caches stay warm between launches, only
    what does not fit a cache must come from the level behind it. The peaks are figures of the target file.

    Attributes:
        flops: operations of the workload.
        min_bytes: bytes that it must read and write.
        compute_us: time of the operations at the peak.
        memory_us: time of the bytes that must move.
        streamed_us: time of all bytes from device memory, by which `is_compute` classifies the workload.
        is_known: the figures are those of the chip; False for the `cpu` target until it is calibrated.
    """

    flops: int
    min_bytes: int
    compute_us: float
    memory_us: float
    streamed_us: float
    is_known: bool = True

    @property
    def latency_us(self) -> float:
        return max(self.compute_us, self.memory_us)

    @property
    def is_compute(self) -> bool:
        return self.compute_us >= self.streamed_us

    def tflops(self, latency_us: float) -> float:
        return self.flops / latency_us / 1e6

    def gb_per_s(self, latency_us: float) -> float:
        return self.min_bytes / latency_us / 1e3

    def share(self, latency_us: float) -> float:
        """Share of the hardware limit that a kernel of that time reaches, 0 .. 1; NaN if it is not known."""
        return self.latency_us / latency_us if self.is_known else math.nan


def roofline(target: Target, dtype: str, flops: int, min_bytes: int) -> Roofline:
    """The roofline of work of `flops` operations in `dtype` and `min_bytes` bytes on `target`.

    Without operations, or where their number is not known (0), the traffic alone sets it, for any dtype.
    """
    compute_us = flops / target.matrix_tflops(dtype) / 1e6 if flops else 0.0
    streamed_us = _device_memory_us(target, min_bytes)
    memory_us = streamed_us if target.is_gpu else _warm_caches_us(target, min_bytes)
    is_known = target.is_gpu or target.figures["core.clock_mhz"].provenance != "derived"
    return Roofline(flops, min_bytes, compute_us, memory_us, streamed_us, is_known)


def _device_memory_us(target: Target, min_bytes: int) -> float:
    return min_bytes / max(target.dram_gb_per_s, target.get("device.memory.dram.read_gb_per_s")) / 1e3


def _warm_caches_us(target: Target, min_bytes: int) -> float:
    """Microseconds of the slowest level of a CPU: it serves at least the bytes that do not fit the level
    before."""
    bytes_per_us = {
        "core.memory.l1.bytes": target["core.memory.l2.bytes_per_cycle"] * target["core.clock_mhz"],
        "core.memory.l2.bytes": target["device.memory.llc.gb_per_s"] * 1e3,
        "device.memory.llc.bytes": target.dram_gb_per_s * 1e3,
    }
    return max(max(0.0, min_bytes - target[cache]) / rate for cache, rate in bytes_per_us.items())
