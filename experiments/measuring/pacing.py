"""Which bursts and rests make a product's time repeatable: medians of repeated measurements, alone and nine
in turn.

cuBLAS' product of three shapes under several loads, five times over, the loads one after the other each time.
Needs an
NVIDIA GPU, and about a minute of it: python experiments/measuring/pacing.py > pacing.txt
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from statistics import median

import torch

from tilesight.records.protocol import MeasurementProtocol
from tilesight.runner.conditions import Conditions, sensor_for
from tilesight.runner.timers import GpuTimer
from tilesight.runner.turns import collect_samples

# m, n, k of bfloat16 products, and how many calls take turns
SHAPES: Mapping[str, tuple[int, int, int]] = {
    "M0": (4096, 1024, 8192),
    "M1": (4096, 8192, 8192),
    "M7": (8192, 8192, 28672),
}
CALLS: Mapping[str, tuple[int, ...]] = {"M0": (1, 9), "M1": (1, 9), "M7": (1,)}
PAUSE_S = 0.06  # between two measurements


@dataclass(frozen=True)
class Load:
    """After `burst_ms` of work the device rests for `rest` times as long; with 0 for both it is sustained."""

    burst_ms: float
    rest: float
    warmup_ms: float

    @property
    def name(self) -> str:
        return f"{self.burst_ms:g} x{self.rest:g}" if self.rest else f"held, {self.warmup_ms:g} ms warm-up"

    def protocol(self, calls: int) -> MeasurementProtocol:
        found = MeasurementProtocol(burst_ms=self.burst_ms, rest=self.rest, warmup_ms=self.warmup_ms)
        return found if calls == 1 else replace(found, min_samples=40, max_samples=200)


LOADS = (
    *(Load(0.0, 0.0, 20.0), Load(0.0, 0.0, 150.0), Load(8.0, 2.0, 5.0), Load(4.0, 2.0, 4.0)),
    *(Load(8.0, 4.0, 5.0), Load(15.0, 3.0, 5.0), Load(8.0, 1.0, 5.0)),
)


@dataclass
class Found:
    """Results of one load: medians in us, their durations, and the driver's figures during the last one."""

    medians_us: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    observed: dict[str, float] = field(default_factory=dict)

    @property
    def text(self) -> str:
        spread = 100 * (max(self.medians_us) / min(self.medians_us) - 1)
        medians = " ".join(f"{time_us:8.2f}" for time_us in self.medians_us)
        clock, capped, power = (
            self.observed.get(name) for name in ("sm_clock_mhz", "power_capped", "power_w")
        )
        shown = f"medians {medians}  spread {spread:5.2f} %  {median(self.seconds):.3f} s"
        return f"{shown}  MHz {clock} capped {capped} W {power}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shape", nargs="+", default=list(SHAPES), choices=list(SHAPES))
    parser.add_argument("--repeats", type=int, default=5)
    options = parser.parse_args()
    torch.cuda.init()
    properties = torch.cuda.get_device_properties(0)
    uuid = str(getattr(properties, "uuid", ""))
    timers = {load: GpuTimer(2 * properties.L2_cache_size, load.burst_ms, load.rest) for load in LOADS}
    for shape in options.shape:
        call = product(*SHAPES[shape])
        for calls in CALLS[shape]:
            for load, found in repeated(call, calls, timers, uuid, options.repeats).items():
                print(f"{shape} x{calls} {load.name:22s} {found.text}", flush=True)


def product(m: int, n: int, k: int) -> Callable[[], object]:
    a = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    b = torch.randn(k, n, device="cuda", dtype=torch.bfloat16)
    call = partial(torch.mm, a, b, out=torch.empty(m, n, device="cuda", dtype=torch.bfloat16))
    call()
    torch.cuda.synchronize()
    return call


def repeated(
    call: Callable[[], object], calls: int, timers: Mapping[Load, GpuTimer], uuid: str, repeats: int
) -> dict[Load, Found]:
    """The same measurement of `calls` calls in turn, `repeats` times for each load."""
    found = {load: Found() for load in timers}
    for _ in range(repeats):
        for load, timer in timers.items():
            conditions = Conditions(sensor_for(uuid))
            conditions.begin()
            time.sleep(PAUSE_S)
            begin = time.perf_counter()
            taken = collect_samples(timer, [call] * calls, load.protocol(calls), conditions)
            found[load].seconds.append(time.perf_counter() - begin)
            found[load].medians_us.append(
                median(time_us for samples in taken.samples_us for time_us in samples)
            )
            found[load].observed = conditions.observed()
    return found


if __name__ == "__main__":
    main()
