"""The analytical model: time of a kernel from its profile and the target's description, term by term.

    latency = launch + prologue of the first block + makespan of all blocks + epilogue of the last

The makespan follows from the period of each phase (pipeline.py), the blocks that a core holds (occupancy.py), waves and
tails (schedule.py), and is bounded below by device memory (traffic.py). The clock falls with the matrix load.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..profile import KernelProfile, Phase, Role, Space, Work
from ..target import Target
from ..trial import Prediction
from . import cpu
from .clocks import sustained_mhz, under_load
from .constants import DEFAULT, Constants
from .demand import RESOURCES, Demand, l2_gb_per_s, rate_is_known
from .occupancy import Occupancy, misfit, occupancy
from .pipeline import CorePipeline, PhaseTime, p_norm
from .schedule import list_makespan, uniform_makespan
from .traffic import Traffic, atomic_cycles, tile_coordinates, traffic

CODE_VERSION = 3  # raise it with every change of this package that moves a prediction
BASE_UNCERTAINTY = 0.15
UNKNOWN_CALL_UNCERTAINTY = 0.5
SPILL_UNCERTAINTY = 0.25
# Of L2, what the last lines that a kernel moved can fill when it ends, and how sharply it fills up: read off the counters of
# bytes written of kernels that write 1 MB to 2 GB on an H200.
LAST_KEPT_SHARE = 0.75
LAST_KEPT_SHARPNESS = 4.0


class AnalyticalModel:
    """Needs no training. Predictions are explained by `terms_us`; see docs/model.md for each term's source."""

    def __init__(self, constants: Constants = DEFAULT) -> None:
        self.constants = constants
        digest = hashlib.sha256(repr(constants).encode()).hexdigest()[:6]
        self.version = f"analytical-{CODE_VERSION}.{digest}"

    def predict(self, kernels: Sequence[KernelProfile], target: Target, built: Mapping[str, int] | None = None) -> Prediction:
        """Time of launching `kernels` one after the other. Raises `ValueError` where one does not fit the target.

        `built`, the compiler's figures, are of the whole function: of several kernels none is known apart.
        """
        parts = [self._one(kernel, target, built if len(kernels) == 1 else None) for kernel in kernels]
        if len(parts) == 1:
            return parts[0]
        total = sum(p.latency_us for p in parts)
        longest = max(parts, key=lambda p: p.latency_us)
        return Prediction(
            latency_us=total,
            utilization={r: sum(p.utilization.get(r, 0.0) * p.latency_us for p in parts) / total for r in longest.utilization},
            limiting=longest.limiting,
            terms_us={t: sum(p.terms_us.get(t, 0.0) for p in parts) for t in longest.terms_us},
            uncertainty=max(p.uncertainty for p in parts),
            notes=tuple(dict.fromkeys(n for p in parts for n in p.notes)),
            model=self.version,
            expected=_together([(p.expected, p.latency_us) for p in parts]),
        )

    def _one(self, profile: KernelProfile, target: Target, built: Mapping[str, int] | None) -> Prediction:
        if profile.kind == "cpu":
            return cpu.predict(profile, target, self.version)
        reason = misfit(profile, target)
        if reason is not None:
            raise ValueError(f"kernel {reason}")
        return _Evaluation(profile, under_load(profile, target), self.constants, built).prediction(self.version)


@dataclass(frozen=True)
class _Evaluation:
    profile: KernelProfile
    target: Target
    constants: Constants
    built: Mapping[str, int] | None = None

    @cached_property
    def occupancy(self) -> Occupancy:
        found = occupancy(self.profile, self.target, self.built)
        # registers that do not fit even once are spilled, never a reason not to run
        return found if found.blocks else replace(found, blocks=1)

    @property
    def cores(self) -> int:
        return self.target.int("core.count")

    @cached_property
    def resident(self) -> int:
        """Blocks that a core really holds at once: no more than the grid gives it."""
        return max(1, min(self.occupancy.blocks, -(-self.profile.blocks // self.cores)))

    @cached_property
    def traffic(self) -> Traffic:
        return traffic(self.profile, self.target, min(self.profile.blocks, self.cores * self.resident), self.constants)

    @cached_property
    def pipeline(self) -> CorePipeline:
        busy = min(self.cores, self.profile.blocks)
        return CorePipeline(self.profile, self.target, self.constants, self.occupancy, self.traffic.miss_share, busy, 1 / self._waves())

    @cached_property
    def _known(self) -> dict[float, list[tuple[Role, Phase, PhaseTime]]]:
        return {}

    def _timed(self, resident: float) -> list[tuple[Role, Phase, PhaseTime]]:
        if resident not in self._known:
            times = [(r, p, self.pipeline.phase_time(r, p, resident)) for r in self._timed_roles() for p in r.phases]
            self._known[resident] = times
        return self._known[resident]

    def _timed_roles(self) -> list[Role]:
        """Roles whose time passes one after another: producers run beside their consumers and are part of their period."""
        consumers = [r for r in self.profile.roles if r.name != "producer"]
        return consumers or list(self.profile.roles)

    @property
    def _alone(self) -> list[tuple[Role, Phase, PhaseTime]]:
        return self._timed(1)

    @property
    def _together(self) -> list[tuple[Role, Phase, PhaseTime]]:
        return self._timed(self.resident)

    def block_cycles(self, resident: float) -> float:
        """Cycles from start to end of `resident` blocks of mean length that share a core."""
        timed = self._timed(resident)
        return sum(time.period * phase.trips.mean for _, phase, time in timed) + self._overhead_cycles(timed, resident)

    def _overhead_cycles(self, timed: list[tuple[Role, Phase, PhaseTime]], resident: float) -> float:
        """Start and end of a block and the fill of its pipelines: other resident blocks work meanwhile."""
        return (self.constants.block_cycles + sum(time.fill for _, _, time in timed)) / max(1.0, resident)

    def _makespan_cycles(self) -> float:
        axes: frozenset[str] = frozenset().union(*(p.trips.axes for r in self.profile.roles for p in r.phases))
        if not axes:
            return uniform_makespan(self.profile.blocks, self.cores, self.resident, self.block_cycles)
        timed = self._together
        tiles = tile_coordinates(self.profile.grid, self.profile.rasterization)
        durations = np.full(self.profile.blocks, self._overhead_cycles(timed, self.resident))
        for _, phase, time in timed:
            durations = durations + time.period * _trips_of(phase, tiles, self.profile.grid)
        return list_makespan(durations.tolist(), self.cores * self.resident)

    def prediction(self, version: str) -> Prediction:
        makespan = self._makespan_cycles()
        total = self._total_demand()
        matrix_share = min(1.0, total.matrix / self.cores / makespan) if makespan else 0.0
        clock_mhz = sustained_mhz(self.target, matrix_share)
        core_us = makespan / clock_mhz
        dram_us = self._dram_us()
        llc = self.target.get("device.memory.llc.gb_per_s")
        l2_us = self.traffic.l2 / (l2_gb_per_s(self.target) * 1e3)
        atomic_us = atomic_cycles(self.profile) / clock_mhz
        dispatch_us = self.profile.blocks * self.constants.dispatch_cycles / clock_mhz
        norm = self.constants.memory_norm if total.matrix else self.constants.streaming_norm
        busy_us = p_norm([core_us, dram_us, l2_us, atomic_us, dispatch_us, self.traffic.llc / (llc * 1e3) if llc else 0.0], norm)
        fill_us = self.target["device.block_start_us"]
        launch_us = self.target["device.launch_us"]
        latency = launch_us + fill_us + busy_us
        terms = {
            "launch": launch_us,
            "fill": fill_us,
            "dram": dram_us,
            **{r: getattr(total, r) / self.cores / clock_mhz for r in RESOURCES},
            "dependency chain": sum(t.chain * p.trips.mean for _, p, t in self._alone) * self._waves() / clock_mhz,
            "load latency": sum(t.waiting * p.trips.mean for _, p, t in self._alone) * self._waves() / clock_mhz,
            "atomics": atomic_us,
            "makespan": core_us,
        }
        utilization = {r: min(1.0, terms[r] / latency) for r in (*RESOURCES, "dram")}
        return Prediction(
            latency_us=latency,
            utilization=utilization,
            limiting=self._limiting(terms, dram_us),
            terms_us=terms,
            uncertainty=self._uncertainty(),
            notes=self._notes(),
            model=version,
            expected=self._expected(clock_mhz),
        )

    def _dram_us(self) -> float:
        """Time of device memory: reads, writes, and what earlier kernels left modified in L2, which must make room."""
        copy = self.target.dram_gb_per_s
        read = self.target.get("device.memory.dram.read_gb_per_s", copy)
        write = 1 / max(0.5 / copy, 2 / copy - 1 / read)  # a copy reads and writes a byte each
        capacity = self.target["device.memory.l2.bytes"]
        evicted = self.constants.modified_share * min(capacity, self.traffic.dram)
        ramp_us = self.constants.dram_ramp * self.target["device.memory.dram.latency_ns"] / 1e3
        busy_us = (self.traffic.dram_read / read + (self._written_back + evicted) / write) / 1e3
        # a kernel that moves less than the memory takes in that time never fills it
        return busy_us + ramp_us * busy_us / max(1e-9, busy_us + ramp_us)

    @property
    def _written_back(self) -> float:
        """Bytes that reach device memory before the kernel ends. What it moved last stays in L2, reads and writes alike: of
        all that it moves, as much as L2 keeps at most, but already less before it is full."""
        moved = self.traffic.dram
        if not moved:
            return 0.0
        room = LAST_KEPT_SHARE * self.target["device.memory.l2.bytes"]
        kept = float((1 + (moved / room) ** LAST_KEPT_SHARPNESS) ** (-1 / LAST_KEPT_SHARPNESS))
        return self.traffic.dram_write * (1 - kept)

    def _expected(self, clock_mhz: float) -> dict[str, float]:
        """What hardware counters would show of one launch."""
        work = [(p.work, p.trips.mean * self.profile.blocks) for r in self.profile.roles for p in r.phases]
        resident_threads = self.resident * self.profile.block_threads
        return {
            "dram_read_bytes": self.traffic.dram_read,
            "dram_write_bytes": self._written_back,
            "l2_bytes": self.traffic.l2,
            "l2_hit": self.traffic.counted_hit_share if self.profile.kind == "cuda" else self.traffic.hit_share,
            "shared_wavefronts": sum(times * self._wavefronts(w) for w, times in work),
            "special_instructions": sum(times * w.special_ops for w, times in work) / self.target["warp.threads"],
            "occupancy": min(1.0, resident_threads / self.target["core.max_threads"]),
            "clock_mhz": clock_mhz,
            "local_bytes": sum(
                self.pipeline.spilled_bytes(r, p) * p.trips.mean * self.profile.blocks for r in self._timed_roles() for p in r.phases
            ),
        }

    def _wavefronts(self, work: Work) -> float:
        """Of the pipe of shared memory: lanes' accesses, operands that the matrix unit reads itself, and lane exchanges."""
        lanes = sum(a.transactions for a in work.accesses if a.space is Space.SHARED and a.mechanism != "tma")
        operands = sum(m.count * m.shared_bytes for m in work.matrix) / self.target["core.memory.shared.bytes_per_cycle"]
        return lanes + operands + work.shuffles / self.target["warp.threads"]

    def _waves(self) -> float:
        return -(-self.profile.blocks // (self.cores * self.resident))

    def _total_demand(self) -> Demand:
        total = Demand()
        for _, phase, time in self._alone:
            total = total + time.demand.scaled(phase.trips.mean * self.profile.blocks)
        return total

    def _limiting(self, terms: dict[str, float], dram_us: float) -> str:
        resource = max(RESOURCES, key=lambda r: terms[r])
        if terms["atomics"] > max(terms["makespan"], dram_us):
            return "atomics"
        if terms["launch"] + terms["fill"] > max(terms["makespan"], dram_us):
            return "launch"  # and the way to the first instruction: nothing on the cores matters as much
        if dram_us >= max(terms[resource], 0.7 * terms["makespan"]):
            return "dram"
        if terms[resource] >= 0.7 * terms["makespan"]:
            return resource
        timed = self._together
        longest = max(timed, key=lambda item: item[2].period * item[1].trips.mean)
        return longest[2].bound

    def _uncertainty(self) -> float:
        total = BASE_UNCERTAINTY**2
        total += UNKNOWN_CALL_UNCERTAINTY**2 if set(self._notes()) - set(self._spill_notes()) else 0.0
        total += SPILL_UNCERTAINTY**2 if self.occupancy.spilled else 0.0
        return float(total**0.5)

    def _spill_notes(self) -> list[str]:
        return [f"{role}: about {short:.0f} registers a thread do not fit and spill" for role, short in self.occupancy.spilled.items()]

    def _notes(self) -> tuple[str, ...]:
        spills = self._spill_notes()
        unknown = [f"{name} is not understood: charged as a long function" for name in self.profile.unknown_calls]
        matrix = [m for r in self.profile.roles for p in r.phases for m in p.work.matrix if not rate_is_known(m, self.target)]
        rates = dict.fromkeys(
            f"{self.target.name} gives no matrix rate for {m.dtype}: charged as fp16, which may be too fast" for m in matrix
        )
        return (*self.profile.notes, *unknown, *spills, *rates)


def _together(parts: Sequence[tuple[Mapping[str, float], float]]) -> dict[str, float]:
    """Counts of several kernels: bytes and instructions add up, shares and clocks are means over the time."""
    means, total = ("l2_hit", "occupancy", "clock_mhz"), sum(us for _, us in parts)
    names = dict.fromkeys(name for counts, _ in parts for name in counts)
    return {name: sum(c.get(name, 0.0) * (us / total if name in means else 1.0) for c, us in parts) for name in names}


def _trips_of(phase: Phase, tiles: Mapping[str, NDArray[Any]], grid: tuple[int, int, int]) -> NDArray[Any]:
    """Iterations of `phase` for each block in launch order."""
    index, stride = np.zeros(len(tiles["x"]), dtype=np.int64), 1
    for axis, extent in zip("xyz", grid, strict=True):
        if axis in phase.trips.axes:
            index += tiles[axis] * stride
            stride *= extent
    return np.asarray(phase.trips.per_block)[index]


__all__ = ["AnalyticalModel"]
