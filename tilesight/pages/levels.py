"""Levels of memory of a roofline: the bandwidth of each, and the operations per byte of a candidate there."""

from __future__ import annotations

from dataclasses import dataclass

from ..costmodel.analytical.demand import l2_gb_per_s
from ..records.trial import Prediction
from ..target.spec import Target


@dataclass(frozen=True, slots=True)
class MemoryLevel:
    """A level of memory. `key` is the model's term of it, `gb_per_s` the bandwidth that the term counts."""

    key: str
    name: str
    gb_per_s: float

    def intensity(self, prediction: Prediction, flops: int) -> float | None:
        """Operations per byte that the model counts at this level; None if it counts none."""
        us = prediction.terms_us.get(self.key, 0.0)
        return flops / (us * self.gb_per_s * 1e3) if us > 0 else None


def levels(target: Target) -> tuple[MemoryLevel, ...]:
    """The levels of a target whose times are terms of its predictions, the largest memory first."""
    if not target.is_gpu:
        # a kernel runs on one core
        l2 = target["core.memory.l2.bytes_per_cycle"] * target["core.clock_mhz"] / 1e3
        return (
            MemoryLevel("dram", "device memory", target.dram_gb_per_s),
            MemoryLevel("llc", "last-level cache", target["device.memory.llc.gb_per_s"]),
            MemoryLevel("l2", "L2", l2),
        )
    cycles_per_ns = target["core.clock_mhz"] * target["core.count"] / 1e3
    return (
        MemoryLevel("dram", "device memory", target.dram_gb_per_s),
        MemoryLevel("l2", "L2", l2_gb_per_s(target)),
        MemoryLevel("shared", "shared memory", target["core.memory.shared.bytes_per_cycle"] * cycles_per_ns),
    )
