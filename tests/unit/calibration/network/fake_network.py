"""A simulated network with given figures, which the calibration must find."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tilesight.calibration.network.ranks import Collected, RankLimits
from tilesight.calibration.network.steps import Kind, NetworkStep, Times

RATES = {"store": 300.0, "load": 290.0, "tma_store": 295.0, "tma_load": 280.0, "tma_add": 270.0}
CORES = {"store": 45.0, "load": 46.0, "tma_store": 30.0, "tma_load": 24.0, "tma_add": 16.0}
PEER_SHARE = {"load": 0.8}  # of the rate with all peers; others reach the same with one
FLAG_US, BARRIER_US, LAUNCH_US, END_US, COPY_RATE = 0.7, 1.1, 4.0, 1.5, 355.0
PRODUCT_US = {(0, "idle"): 800.0, (8, "idle"): 850.0, (8, "push"): 855.0, (20, "idle"): 940.0}
PRODUCT_US[20, "push"] = 1000.0


@dataclass(frozen=True)
class FakeNetwork:
    """Runs steps in no time. Rank 1 is slower than the others by `lag_us`, and they scatter by 1 %."""

    world: int = 4
    lag_us: float = 0.0

    def run(
        self, steps: tuple[NetworkStep, ...], limits: RankLimits, on_row: Callable[[tuple[Times, ...]], None]
    ) -> Collected:
        found = Collected()
        for row in [(Times(library="NCCL 2.28.9"),) * self.world, *map(self.row, steps)]:
            found.rows.append(row)
            on_row(row)
        return found

    def row(self, step: NetworkStep) -> tuple[Times, ...]:
        pushed = (250.0,) * step.samples if step.kind is Kind.PRODUCT and step.name == "push" else ()
        return tuple(
            Times((step_us(step) + (self.lag_us if rank == 1 else 0.0),) * step.samples, pushed)
            for rank in range(self.world)
        )


def step_us(step: NetworkStep) -> float:
    if step.kind is Kind.FLAG:
        return 6 + 2 * FLAG_US * step.rounds
    if step.kind is Kind.BARRIER:
        return 6 + BARRIER_US * step.rounds
    if step.kind is Kind.COPY:
        return 9 + step.moved_bytes / COPY_RATE / 1e3
    if step.kind is Kind.LIBRARY:
        return library_us(step.size_bytes)
    if step.kind is Kind.PRODUCT:
        return PRODUCT_US[step.blocks, step.name]
    if not step.rounds:
        return LAUNCH_US
    share = PEER_SHARE.get(step.name, 1.0) if step.peers == 1 else 1.0
    rate = min(step.blocks * CORES[step.name], RATES[step.name] * share)
    return LAUNCH_US + END_US + step.moved_bytes / rate / 1e3


def library_us(size_bytes: int) -> float:
    """A protocol of low latency for few bytes, another one for many."""
    return min(10 + size_bytes / 40e3, 25 + size_bytes / 160e3)
