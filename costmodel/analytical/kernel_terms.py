"""The terms of one GPU kernel in the analytical model, and the prediction that they add up to.

The makespan follows from the period of each phase (pipeline.py), the resident blocks of a core
(occupancy.py), and waves and tails (schedule.py). The traffic of device memory (traffic.py) bounds it from
below. The clock falls with the load of the matrix units (clocks.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from ...profile.values import KernelProfile, Phase, Role, Space, Work
from ...records.trial import Prediction
from ...target.spec import Target
from .clocks import sustained_mhz
from .constants import FITTED_ARCHS, UNMEASURED_UNCERTAINTY, Constants
from .demand import RESOURCES, Demand, l2_bytes_per_cycle, l2_gb_per_s, rate_is_known
from .first_loads import first_bytes, first_loads_us
from .network import NETWORK, NetworkUse, network_uncertainty, network_use, sends
from .norms import p_norm
from .occupancy import Occupancy, occupancy
from .pipeline import CorePipeline, PhaseTime
from .schedule import last_wave, list_makespan, uniform_makespan
from .spills import loaded_beyond_l2, local_footprint, local_moves, written_beyond_l2
from .tiles import trips_in_launch_order
from .traffic import Traffic, atomic_us, traffic

BASE_UNCERTAINTY = 0.15
UNKNOWN_CALL_UNCERTAINTY = 0.5
SPILL_UNCERTAINTY = 0.30
# Share of `device.block_start_us` that grows with the cores that get a block: 1.7 us for a few blocks and 2.2
# for a block a core, read off 230 kernels of an H200 that take less than 6 us (experiments/outside).
SMALL_GRID_SHARE = 0.22
# Share of L2 that the last lines of a kernel can fill when it ends, and how sharply it fills up: read off the
# counters of written bytes of kernels that write 1 MB to 2 GB on an H200.
LAST_KEPT_SHARE = 0.75
LAST_KEPT_SHARPNESS = 4.0
# How consumers with programs of their own add up: between one after another (1) and independent (large).
# Seven kernels of others that were measured on an H200 take 1 to 16. Of 127 kernels of chunk_scan with four
# consumers and 42 of mla_decode with three the mean error is least from 1.6 to 1.8.
CONSUMER_NORM = 1.7

# Cycles between two blocks at one place, and further ones for each warp of a block. Source: 104 kernels of
# others on an H200 (experiments/outside), whose blocks of 128 to 1,024 threads load once or twice and store.
# Blocks of 256 and 512 threads last 1,450 cycles or more, 700 of which are the load.
TURNOVER_CYCLES, TURNOVER_WARP_CYCLES = 450.0, 6.0


@dataclass(frozen=True, slots=True)
class LaunchTimes:
    """The times of one launch in microseconds. Its latency is the sum of all but `core`, `tail` and `shared`.

    Attributes:
        clock_mhz: of the cores, under the load of the kernel.
        launch: from the call to the first block that may start.
        fill: until the first blocks run.
        core: makespan of all blocks, if nothing that all cores share held them up.
        tail: part of `core`: a last wave of blocks after full ones; 0 without one.
        shared: by name, the least time of what all cores share. Of L2 that is the requested bytes at the rate
            of all cores together; the term `l2` of a prediction counts whole sectors at the rate of a core.
        body: all blocks but those of the last wave, with what all cores share.
        last_wave: the same for the last wave.
        sending: additional time of what is sent to other devices beside that.
        arrival: of the last bytes sent to other devices.
    """

    clock_mhz: float
    launch: float
    fill: float
    core: float
    tail: float
    shared: Mapping[str, float]
    body: float
    last_wave: float
    sending: float
    arrival: float

    @property
    def latency(self) -> float:
        return self.launch + self.fill + (self.body + self.last_wave + self.sending) + self.arrival


@dataclass(frozen=True)
class KernelTerms:
    """Computes the terms of one kernel. `target` has the clock of the kernel's load (`clocks.under_load`)."""

    profile: KernelProfile
    target: Target
    constants: Constants
    built: Mapping[str, int] | None = None

    @cached_property
    def occupancy(self) -> Occupancy:
        found = occupancy(self.profile, self.target, self.built)
        # a block whose registers do not fit spills them, but it runs
        return found if found.blocks else replace(found, blocks=1)

    @property
    def cores(self) -> int:
        """Cores that blocks of this kernel can run on at once: clusters leave parts of a GPC empty."""
        count = self.target.int("core.count")
        return round(self.target.get("cluster.large_cores", count)) if self.profile.cluster > 2 else count

    @cached_property
    def resident(self) -> int:
        """Number of blocks that a core holds at once, at most its share of the grid."""
        return max(1, min(self.occupancy.blocks, -(-self.profile.blocks // self.cores)))

    @cached_property
    def traffic(self) -> Traffic:
        return traffic(
            self.profile, self.target, min(self.profile.blocks, self.cores * self.resident), self.constants
        )

    @cached_property
    def network(self) -> NetworkUse:
        return network_use(self.profile, self.target)

    @cached_property
    def pipeline(self) -> CorePipeline:
        busy = min(self.cores, self.profile.blocks)
        return CorePipeline(
            self.profile,
            self.target,
            self.constants,
            self.occupancy,
            self.traffic.waiting,
            busy,
            1 / self._waves(),
        )

    @cached_property
    def _known(self) -> dict[float, list[tuple[Role, Phase, PhaseTime]]]:
        return {}

    def timed(self, resident: float) -> list[tuple[Role, Phase, PhaseTime]]:
        """The phases that add up to a block, with their times if `resident` blocks share a core."""
        if resident not in self._known:
            # blocks that send for others to wait take the time that the network gives
            times = [
                (r, p, self.pipeline.phase_time(r, p, resident))
                for r in self._timed_roles()
                for p in r.phases
                if not (self.profile.waits and sends(p))
            ]
            self._known[resident] = self._side_by_side(times, resident)
        return self._known[resident]

    def _side_by_side(
        self, times: list[tuple[Role, Phase, PhaseTime]], resident: float
    ) -> list[tuple[Role, Phase, PhaseTime]]:
        """The same times, with those of several consumers shortened, which run beside each other.

        Each consumer of a block has a program of its own. They share the units of the core, so they last as
        long as the busiest unit at least. How far they wait for each other's results, the profile does not
        tell: `CONSUMER_NORM` stands for that. All of them wait for the first copies together.
        """
        spent: dict[int, float] = {}
        fills: dict[int, float] = {}
        need: dict[int, Demand] = {}
        for role, phase, time in times:
            if role.name == "consumer":
                fills[id(role)] = fills.get(id(role), 0.0) + time.fill
                spent[id(role)] = spent.get(id(role), 0.0) + time.period * phase.trips.mean
                whole = time.demand.scaled(phase.trips.mean * resident)
                need[id(role)] = need.get(id(role), Demand()) + whole
        if len(spent) < 2:
            return times
        busiest = sum(need.values(), Demand()).largest[1]
        together = max(p_norm(list(spent.values()), CONSUMER_NORM), busiest)
        share = min(1.0, together / sum(spent.values()))
        filled = max(fills.values()) / (sum(fills.values()) or 1.0)
        return [
            (r, p, replace(t, period=t.period * share, spills=t.spills * share, fill=t.fill * filled))
            if r.name == "consumer"
            else (r, p, t)
            for r, p, t in times
        ]

    def _timed_roles(self) -> list[Role]:
        """Roles whose times add up.

        Producers run beside their consumers and are part of the consumers' periods.
        """
        consumers = [r for r in self.profile.roles if r.name != "producer"]
        return consumers or list(self.profile.roles)

    @property
    def _alone(self) -> list[tuple[Role, Phase, PhaseTime]]:
        return self.timed(1)

    @property
    def together(self) -> list[tuple[Role, Phase, PhaseTime]]:
        return self.timed(self.resident)

    def block_cycles(self, resident: float) -> float:
        """Cycles from start to end of `resident` blocks of mean length that share a core."""
        timed = self.timed(resident)
        shared = sum(time.period * phase.trips.mean for _, phase, time in timed)
        together = shared + self.overhead_cycles(timed, resident)
        if len(self._timed_roles()) > 1:
            return together  # their chains run beside each other
        # a block that waits for most of its life takes no less than its own start, chains and end
        chains = sum(time.chain * phase.trips.mean for _, phase, time in timed)
        return max(together, chains + self.overhead_cycles(timed, 1.0) + self._turnover_cycles())

    def _turnover_cycles(self) -> float:
        """Cycles from the last store of a block until the next one at its place computes, of the mean block.

        They come beside the start and end that `Constants.block_cycles` counts. Other blocks of the core hide
        them only if they have work to do; those that wait for a load or two do not.
        """
        places = self.cores * self.resident
        if self.profile.blocks <= places:
            return 0.0
        warps = max(r.threads for r in self.profile.roles) / self.target["warp.threads"]
        return (TURNOVER_CYCLES + TURNOVER_WARP_CYCLES * warps) * (1 - places / self.profile.blocks)

    def overhead_cycles(self, timed: list[tuple[Role, Phase, PhaseTime]], resident: float) -> float:
        """Cycles of block start and end, of fills and drains of loops, which the resident blocks overlap."""
        loops = sum(time.fill + time.drain for _, _, time in timed)
        return (self.constants.block_cycles + loops) / max(1.0, resident)

    def tail(self) -> tuple[int, float]:
        """Blocks and cycles of a last wave after full ones, of blocks of equal length; else nothing."""
        if not self.is_uniform or self.profile.blocks < self.cores * self.resident:
            return 0, 0.0
        return last_wave(self.profile.blocks, self.cores, self.resident, self.block_cycles)

    @property
    def is_uniform(self) -> bool:
        return not any(p.trips.axes for r in self.profile.roles for p in r.phases)

    def _makespan_cycles(self) -> float:
        if self.is_uniform:
            return uniform_makespan(self.profile.blocks, self.cores, self.resident, self.block_cycles)
        return list_makespan(self.durations(), self.cores * self.resident)

    def durations(self) -> list[float]:
        """Cycles of each block in launch order, for blocks of different length."""
        timed = self.together
        durations = np.full(self.profile.blocks, self.overhead_cycles(timed, self.resident))
        for _, phase, time in timed:
            durations = durations + time.period * trips_in_launch_order(
                phase.trips, self.profile.grid, self.profile.rasterization
            )
        found: list[float] = durations.tolist()
        return found

    @cached_property
    def times(self) -> LaunchTimes:
        makespan = self._makespan_cycles()
        total = self._total_demand
        matrix_share = min(1.0, total.matrix / self.cores / makespan) if makespan else 0.0
        clock_mhz = sustained_mhz(self.target, matrix_share)
        core_us = makespan / clock_mhz
        llc = self.target.get("device.memory.llc.gb_per_s")
        shared = {
            "dram": self._dram_us(),
            "l2": self.traffic.l2 / (l2_gb_per_s(self.target) * 1e3),
            "atomics": atomic_us(self.profile, self.target),
            "dispatch": self.profile.blocks * self.constants.dispatch_cycles / clock_mhz,
            "llc": self.traffic.llc / (llc * 1e3) if llc else 0.0,
        }
        norm = self.constants.memory_norm if total.matrix else self.constants.streaming_norm
        tail_blocks, tail_cycles = self.tail()
        tail, tail_share = tail_cycles / clock_mhz, tail_blocks / self.profile.blocks
        # while the last blocks run on a part of the cores, what all cores share is used by them alone
        waiting = core_us - tail + self._first_loads_us(clock_mhz)
        body = p_norm([waiting, *(us * (1 - tail_share) for us in shared.values())], norm)
        last_wave = p_norm([tail, *(us * tail_share for us in shared.values())], norm)
        busy_us = self.network.beside(body + last_wave)
        return LaunchTimes(
            clock_mhz,
            self.target["device.launch_us"],
            self._fill_us(shared["dram"] / busy_us if busy_us else 0.0),
            core_us,
            tail,
            shared,
            body,
            last_wave,
            busy_us - (body + last_wave),
            self.network.end_us,
        )

    def prediction(self, version: str) -> Prediction:
        times, total = self.times, self._total_demand
        clock_mhz, dram_us, latency = times.clock_mhz, times.shared["dram"], times.latency
        sent_us = self.network.sent_us
        terms = {
            "launch": times.launch,
            "fill": times.fill,
            "dram": dram_us,
            **{r: getattr(total, r) / self.cores / clock_mhz for r in RESOURCES},
            "dependency chain": sum(t.chain * p.trips.mean for _, p, t in self._alone)
            * self._waves()
            / clock_mhz,
            "load latency": sum(t.waiting * p.trips.mean for _, p, t in self._alone)
            * self._waves()
            / clock_mhz,
            "spills": sum(t.spills * p.trips.mean for _, p, t in self.together) * self._waves() / clock_mhz,
            "atomics": times.shared["atomics"],
            "makespan": times.core,
            **({NETWORK: sent_us} if sent_us else {}),
        }
        resources = (*RESOURCES, "dram", *((NETWORK,) if sent_us else ()))
        utilization = {r: min(1.0, terms[r] / latency) for r in resources}
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

    def _first_loads_us(self, clock_mhz: float) -> float:
        """Microseconds in which device memory moves the first data of all blocks, see first_loads.py."""
        port = l2_bytes_per_cycle(self.target, self.constants, min(self.cores, self.profile.blocks))
        port_us = first_bytes(self.profile, self.target) * self.resident / port / clock_mhz
        waves = self.profile.blocks / (self.cores * self.resident)
        return first_loads_us(self.profile, self.target, self.traffic, waves, port_us)

    def _fill_us(self, memory_share: float) -> float:
        """Microseconds until the first blocks run; fewer if not every core gets a block.

        A kernel that waits for device memory (`memory_share`) gains nothing from that: while its last blocks
        start, the first ones use the bandwidth.
        """
        idle = (1 - min(1.0, self.profile.blocks / self.cores)) * (1 - min(1.0, memory_share))
        return self.target["device.block_start_us"] * (1 - SMALL_GRID_SHARE * idle)

    def _dram_us(self) -> float:
        """Microseconds of device memory: reads, writes, and evictions of lines of earlier kernels."""
        copy = self.target.dram_gb_per_s
        read = self.target.get("device.memory.dram.read_gb_per_s", copy)
        write = 1 / max(0.5 / copy, 2 / copy - 1 / read)  # a copy reads one byte and writes one
        capacity = self.target["device.memory.l2.bytes"]
        evicted = self.constants.modified_share * min(capacity, self.traffic.dram)
        ramp_us = self.constants.dram_ramp * self.target["device.memory.dram.latency_ns"] / 1e3
        busy_us = self.traffic.dram_read * self.traffic.read_stretch / read
        busy_us += (self._written_back * self.traffic.write_stretch + evicted) / write
        busy_us /= 1e3
        busy_us += self._local_beyond_l2() / copy / 1e3
        # a kernel that moves less than the memory moves during the ramp never reaches the full rate
        return busy_us + ramp_us * busy_us / max(1e-9, busy_us + ramp_us)

    @property
    def _written_back(self) -> float:
        """Written bytes that reach device memory before the kernel ends.

        The last lines that a kernel moves, read or written, stay in L2. Their number approaches what L2 keeps
        at most.
        """
        moved = self.traffic.dram
        if not moved:
            return 0.0
        room = LAST_KEPT_SHARE * self.target["device.memory.l2.bytes"]
        kept = float((1 + (moved / room) ** LAST_KEPT_SHARPNESS) ** (-1 / LAST_KEPT_SHARPNESS))
        return self.traffic.dram_write * (1 - kept)

    def _expected(self, clock_mhz: float) -> dict[str, float]:
        """Values that hardware counters should show for one launch."""
        work = [(p.work, p.trips.mean * self.profile.blocks) for r in self.profile.roles for p in r.phases]
        resident_threads = self.resident * self.profile.block_threads
        return {
            "dram_read_bytes": self.traffic.dram_read,
            "dram_write_bytes": self._written_back,
            "l2_bytes": self.traffic.l2,
            "l2_hit": self.traffic.counted_hit_share
            if self.profile.kind == "cuda"
            else self.traffic.hit_share,
            "shared_wavefronts": sum(times * self._wavefronts(w) for w, times in work),
            "special_instructions": sum(times * w.special_ops for w, times in work)
            / self.target["warp.threads"],
            "occupancy": min(1.0, resident_threads / self.target["core.max_threads"]),
            "clock_mhz": clock_mhz,
            "local_bytes": sum(self._local_traffic(r, p) for r in self._timed_roles() for p in r.phases),
        }

    def _local_traffic(self, role: Role, phase: Phase) -> float:
        """Bytes of local memory that all blocks load and store in `phase`."""
        return self.pipeline.local_bytes(role, phase) * phase.trips.mean * self.profile.blocks

    def _local_beyond_l2(self) -> float:
        """Bytes of local memory that all blocks move to and from device memory.

        If the kernel is not built, its spilled registers are left out: their number is a rough estimate, and
        in public kernels that seem to spill more than L2 holds it is too large.
        """
        capacity = LAST_KEPT_SHARE * self.target["device.memory.l2.bytes"]
        cores = min(self.cores, self.profile.blocks)
        known = replace(self.occupancy, spilled={}) if self.occupancy.spill_bytes is None else self.occupancy
        beside = self.traffic.dram * min(1.0, self.resident * cores / self.profile.blocks)
        loaded = written = 0.0
        for role in self._timed_roles():
            for phase in role.phases:
                footprint = local_footprint(role, phase, known) * self.resident * cores
                moved = local_moves(self.profile, role, phase, known)
                times = phase.trips.mean * self.profile.blocks
                loaded += loaded_beyond_l2(moved.fresh_loaded * times, footprint, capacity)
                # an iteration stores to the addresses of the one before it
                written += written_beyond_l2(
                    moved.fresh_stored * times,
                    footprint,
                    beside / max(1.0, phase.trips.mean),
                    capacity,
                )
        return loaded + max(0.0, written - capacity)  # the last stores stay in L2 when the kernel ends

    def _wavefronts(self, work: Work) -> float:
        """Wavefronts of shared memory: accesses of lanes, operands of matrix units, and lane exchanges."""
        lanes = sum(a.transactions for a in work.accesses if a.space is Space.SHARED and a.mechanism != "tma")
        operands = (
            sum(m.count * m.shared_bytes for m in work.matrix)
            / self.target["core.memory.shared.bytes_per_cycle"]
        )
        return lanes + operands + work.shuffles / self.target["warp.threads"]

    def _waves(self) -> float:
        return -(-self.profile.blocks // (self.cores * self.resident))

    @cached_property
    def _total_demand(self) -> Demand:
        total = Demand()
        for _, phase, time in self._alone:
            total = total + time.demand.scaled(phase.trips.mean * self.profile.blocks)
        return total

    def _limiting(self, terms: dict[str, float], dram_us: float) -> str:
        resource = max(RESOURCES, key=lambda r: terms[r])
        if terms.get(NETWORK, 0.0) > max(terms["makespan"], dram_us):
            return NETWORK
        if terms["atomics"] > max(terms["makespan"], dram_us):
            return "atomics"
        if terms["launch"] + terms["fill"] > max(terms["makespan"], dram_us):
            return "launch"  # together with the fill it takes longer than the work itself
        if dram_us >= max(terms[resource], 0.7 * terms["makespan"]):
            return "dram"
        if terms[resource] >= 0.7 * terms["makespan"]:
            return resource
        timed = self.together
        longest = max(timed, key=lambda item: item[2].period * item[1].trips.mean)
        return longest[2].bound

    def _uncertainty(self) -> float:
        total = BASE_UNCERTAINTY**2
        understood = {*self._spill_notes(), *self._target_notes(), *self.network.notes}
        total += UNKNOWN_CALL_UNCERTAINTY**2 if set(self._notes()) - understood else 0.0
        total += SPILL_UNCERTAINTY**2 if self.occupancy.spilled else 0.0
        total += UNMEASURED_UNCERTAINTY**2 if self._target_notes() else 0.0
        total += network_uncertainty(self.network.notes) ** 2 if self.profile.communicates else 0.0
        return float(total**0.5)

    def _spill_notes(self) -> list[str]:
        return [
            f"{role}: about {short:.0f} registers a thread do not fit and spill"
            for role, short in self.occupancy.spilled.items()
        ]

    def _target_notes(self) -> list[str]:
        figures = self.target.figures.values()
        if self.target.arch in FITTED_ARCHS or any(f.provenance == "measured" for f in figures):
            return []
        return [
            f"not measured on this target: the figures of {self.target.name} are those of data sheets and of "
            f"others, and the model was fitted to kernels of {', '.join(FITTED_ARCHS)}; one sigma is wider "
            f"by {UNMEASURED_UNCERTAINTY:.0%} (added as squares), and the order of similar candidates is not "
            "reliable"
        ]

    def _notes(self) -> tuple[str, ...]:
        spills = self._spill_notes()
        unknown = [
            f"{name} is not understood: charged as a long function" for name in self.profile.unknown_calls
        ]
        matrix = [
            m
            for r in self.profile.roles
            for p in r.phases
            for m in p.work.matrix
            if not rate_is_known(m, self.target)
        ]
        rates = dict.fromkeys(
            f"{self.target.name} gives no matrix rate for {m.dtype}: charged as fp16, which may be too fast"
            for m in matrix
        )
        return (*self.profile.notes, *unknown, *spills, *rates, *self._target_notes(), *self.network.notes)
