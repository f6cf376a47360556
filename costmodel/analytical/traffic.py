"""The L2 and DRAM traffic of a launch, from the tiles that concurrent blocks share."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...profile.values import Access, KernelProfile, Phase, Role, Space, Trips
from ...target.spec import Target
from .constants import DEFAULT, Constants
from .demand import L2_UPDATES
from .first_level import LINE_BYTES, OUTGROWN, first_level_room
from .gathers import SECTOR_BYTES, first_share, hit_share
from .streams import Stream, known_bytes, streams_of
from .tiles import Tiles, Waves, trips_in_launch_order, wave_positions, waves_of

# Share of the room of the first-level cache up to which a block finds rows again that it read before, all of
# them; beyond 1.5 times that, none (`OUTGROWN`: the cache evicts the oldest lines first, too). Read off the
# bytes over the crossbar of 96 norm, softmax and quantize kernels that read their rows twice.
HELD_ROOM = 0.65
# of an L2 with two partitions, see `counted_hit_share`
MERGED_READS = 0.22  # share of hitting reads that are merged with another one
# share of lines that both partitions fetch, once each line is read more often than READ_OFTEN times
FETCHED_AGAIN, READ_OFTEN = 0.45, 2.5

# Units of L2 that execute atomics: read off the times of one kernel that adds 32 lanes to each address, in
# two sizes (H200: 2.1 and 5.3 ms, 1.9 and 5.3 by `_queues_us`).
ATOMIC_UNITS = 96.0
# Nanoseconds between atomics at one address, of integers and of floating-point numbers (experiments/atomics,
# an H200)
ATOMIC_NS, FLOAT_ATOMIC_NS = 0.75, 1.77


@dataclass(frozen=True, slots=True)
class TensorTraffic:
    """The bytes of one tensor that a launch reads, or those that it writes.

    Attributes:
        tensor: its label in the profile.
        write: they are written.
        l2: between cores and L2.
        dram: between L2 and device memory.
        distinct: of the part that is accessed at all, each byte once.
    """

    tensor: str
    write: bool
    l2: float
    dram: float
    distinct: float


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that one launch moves. `dram_read` is at least the accessed part of each tensor."""

    l2_read: float  # between cores and L2, after the cores' first-level caches
    l2_write: float
    dram_read: float
    dram_write: float
    llc: float = 0.0  # misses of the L2s, if there is a cache between them and device memory
    # By tensor, the share of its reads that wait for device memory. Blocks in step read common tiles at the
    # same time: one of them misses, and all wait.
    waiting: Mapping[str, float] = field(default_factory=dict)
    # time of these bytes at device memory, compared with bytes of long runs
    read_stretch: float = 1.0
    write_stretch: float = 1.0
    tensors: tuple[TensorTraffic, ...] = ()  # their sums are the bytes above

    @property
    def dram(self) -> float:
        return self.dram_read + self.dram_write

    @property
    def l2(self) -> float:
        return self.l2_read + self.l2_write

    @property
    def miss_share(self) -> float:
        """Share of L2 reads that device memory serves."""
        return min(1.0, self.dram_read / self.l2_read) if self.l2_read else 0.0

    @property
    def hit_share(self) -> float:
        """Share of all L2 traffic that L2 serves. It serves all writes."""
        return 1 - min(1.0, self.dram_read / self.l2) if self.l2 else 1.0

    @property
    def counted_hit_share(self) -> float:
        """The hit rate that counters of an L2 with two partitions show.

        Reads of the same line by neighbouring cores are merged on their way and looked up once. A line that
        is read often is fetched into both partitions and misses in each.

        Source: lts counters, bytes over the crossbar and of device memory of 671 kernels of an H200.
        """
        again = 1 + FETCHED_AGAIN * max(0.0, 1 - READ_OFTEN * self.miss_share)
        looked_up = self.l2_write + self.l2_read * (1 - MERGED_READS * (1 - self.miss_share))
        return max(0.0, 1 - self.dram_read * again / looked_up) if looked_up else 1.0


@dataclass(frozen=True)
class _Flow:
    """All streams of one direction, evaluated wave by wave."""

    streams: tuple[Stream, ...]
    profile: KernelProfile
    together: int
    clusters: int
    room: float  # bytes of one L2 that survive from one wave to the next
    capacity: float  # bytes of one L2
    streamed: float  # bytes of data at known addresses that pass through all L2s during the launch

    @cached_property
    def waves(self) -> list[Waves]:
        p = self.profile
        return [
            waves_of(s.tiles, p.grid, p.rasterization, self.together, self.clusters) for s in self.streams
        ]

    @cached_property
    def distinct(self) -> list[float]:
        """Distinct bytes of each stream over all blocks."""
        return [s.tiles.count(self.profile.grid) * s.largest_bytes for s in self.streams]

    @cached_property
    def unions(self) -> list[float]:
        """A factor for each stream that limits the distinct bytes of a tensor to its size."""
        return [self._first_share(s, self.sums[s.tensor]) for s in self.streams]

    @cached_property
    def sums(self) -> dict[str, float]:
        """Distinct bytes of the streams of each tensor, as far as is known without its size."""
        found: dict[str, float] = {}
        for stream, each in zip(self.streams, self.distinct, strict=True):
            found[stream.tensor] = found.get(stream.tensor, 0.0) + each
        return found

    def _first_share(self, stream: Stream, read: float) -> float:
        size = next((t.bytes for t in self.profile.tensors if t.label == stream.tensor), 0)
        return first_share(read, size, stream.row_bytes or SECTOR_BYTES, SECTOR_BYTES)

    def refetched(self, stream: Stream, union: float, lost: NDArray[Any]) -> Any:
        """Share of what a stream moves that its L2 does not have.

        Data at known addresses that a block moves again is still in L2 if the data of all concurrent blocks
        fits, of which `lost` is the share that does not. Places that loaded data chooses come back after a
        random time.
        """
        if not stream.row_bytes:
            return union + (1 - union) * lost
        read = self.sums[stream.tensor] / self.clusters
        first = self._first_share(stream, read)
        return first + (1 - first) * (
            1 - hit_share(read, read * first, self.streamed / self.clusters, self.capacity)
        )

    @property
    def touched(self) -> float:
        """Bytes of all tensors that are moved at least once."""
        return sum(each * union for each, union in zip(self.distinct, self.unions, strict=True))

    def tile_bytes(self, stream: Stream) -> NDArray[Any]:
        """Distinct bytes of a tile in each of the sampled waves; one value if all are equal."""
        if not stream.trips.axes or stream.tiles.turns > 1:
            return np.asarray(stream.largest_bytes)
        counts = _trips_in_waves(stream.trips, self.profile, self.together, self.clusters)
        each: NDArray[Any] = (
            counts.mean(axis=1) if stream.trips.axes & stream.tiles.axes else counts.max(axis=1)
        )
        return each * stream.bytes

    def moved(self, drift: float) -> list[float]:
        """Bytes of each stream that all waves fetch into the L2s or write back.

        `drift` is the share that blocks out of step refetch.
        """
        room = self.room
        longest = max(len(w.weight) for w in self.waves)
        size: Any = np.zeros(longest)
        for stream, waves, union in zip(self.streams, self.waves, self.unions, strict=True):
            size = size + _resampled(waves.tiles * self.tile_bytes(stream) * union, longest)
        kept_all = min(1.0, room / max(1.0, self.touched))
        kept = np.clip(1 - (size / room - 1) / OUTGROWN, 0.0, 1.0)
        total = []
        for stream, waves, union, distinct in zip(
            self.streams, self.waves, self.unions, self.distinct, strict=True
        ):
            here = _resampled(kept, len(waves.weight))
            each = self.tile_bytes(stream)
            # From the second wave on, blocks that share a tile but started at different times fetch it again
            # once it has left L2. The window is the part of the lifetime of a block for which its tiles stay.
            window = _resampled(room / np.maximum(1.0, size), len(waves.weight))
            missed = (
                np.minimum(1.0, (drift * waves.apart / window) ** 2)
                * (np.arange(len(here)) > 0)
                * (window < 1)
            )
            fetched = waves.tiles - waves.again * here + (waves.blocks - waves.tiles) * missed
            # tiles that earlier waves than the previous one had
            older = max(0.0, float((waves.weight * (waves.tiles - waves.again) * each).sum()) - distinct)
            again = self.refetched(stream, union, 1 - here)
            moved = float((waves.weight * fetched * each * again).sum()) - older * kept_all * union
            total.append(max(0.0, moved) * self.clusters)
        return total

    def stretch(self, moved: Sequence[float]) -> float:
        """The mean `stretch` of the streams, which move `moved` each."""
        total = sum(each * s.stretch for each, s in zip(moved, self.streams, strict=True))
        return total / sum(moved) if sum(moved) else 1.0

    def by_tensor(
        self, moved: Sequence[float], l2: float, dram: float, *, write: bool
    ) -> Iterator[TensorTraffic]:
        """The traffic of each tensor.

        Args:
            moved: bytes of each stream at device memory, in proportion.
            l2, dram: bytes of all tensors.
            write: they are written.
        """
        requested = [s.requested for s in self.streams]
        touched = [each * union for each, union in zip(self.distinct, self.unions, strict=True)]
        l2_share, dram_share = l2 / (sum(requested) or 1.0), dram / (sum(moved) or 1.0)
        for tensor in dict.fromkeys(s.tensor for s in self.streams):
            own = [i for i, s in enumerate(self.streams) if s.tensor == tensor]
            yield TensorTraffic(
                tensor,
                write,
                l2_share * sum(requested[i] for i in own),
                dram_share * sum(moved[i] for i in own),
                sum(touched[i] for i in own),
            )

    def waiting(self, moved: Sequence[float]) -> dict[str, float]:
        """By tensor, the share of its reads that wait for device memory, which moves `moved` a stream."""
        late: dict[str, float] = {}
        wanted: dict[str, float] = {}
        for stream, each, w in zip(self.streams, moved, self.waves, strict=True):
            readers = float((w.weight * w.blocks).sum() / (w.weight * w.tiles).sum())
            late[stream.tensor] = late.get(stream.tensor, 0.0) + each * readers
            wanted[stream.tensor] = wanted.get(stream.tensor, 0.0) + stream.wanted * self.profile.blocks
        return {tensor: min(1.0, read / wanted[tensor]) for tensor, read in late.items()}


def traffic(
    profile: KernelProfile, target: Target, blocks_together: int, constants: Constants = DEFAULT
) -> Traffic:
    """Compute the traffic of a launch.

    Within a wave, a tile that several blocks read comes from device memory once. It stays in L2 for the next
    wave if the data of a wave fits. Blocks go in turn to the clusters of the target that have an L2 each, and
    each cluster reads the data of its blocks.

    Args:
        profile: the kernel.
        target: the capacities of the caches.
        blocks_together: blocks in flight on the whole device, assumed to advance in step.
        constants: the fitted shares.
    """
    reads, writes = streams_of(profile)
    clusters = min(max(1, target.int("cluster.count")), profile.blocks)
    capacity = target["device.memory.l2.bytes"] / clusters
    room = constants.kept_share * target["device.memory.l2.bytes"] / clusters
    together = max(1, -(-blocks_together // clusters))
    written = sum(s.requested for s in writes) * profile.blocks
    streamed = known_bytes((*reads, *writes), profile.grid)
    dram_write, write_stretch = 0.0, 1.0
    tensors: tuple[TensorTraffic, ...] = ()
    if writes:
        # L2 merges parts of a sector, and writes back a tile once if it is written again before its eviction
        flow = _Flow(writes, profile, together, clusters, room, capacity, streamed)
        stored = flow.moved(0.0)
        dram_write = min(written, max(flow.touched, sum(stored)))
        write_stretch = flow.stretch(stored)
        tensors = tuple(flow.by_tensor(stored, written, dram_write, write=True))
    if not reads:
        return Traffic(0.0, written, 0.0, dram_write, write_stretch=write_stretch, tensors=tensors)
    flow = _Flow(reads, profile, together, clusters, room, capacity, streamed)
    requested = sum(s.requested for s in reads) * profile.blocks
    l2_read = max(1.0, requested - _first_level(flow, target, blocks_together))
    moved = flow.moved(constants.drift_share)
    touched = min(flow.touched, requested)
    missed = min(max(touched, sum(moved)), l2_read if l2_read > touched else requested)
    llc = target.get("device.memory.llc.bytes")
    dram_read = missed
    if llc:
        # data that several clusters read comes from device memory once, through the cache behind the L2s
        dram_read = (
            max(touched, missed / clusters)
            if touched < llc
            else max(touched, missed * (1 - constants.kept_share * llc / touched))
        )
    scale = missed / max(1.0, sum(moved))
    dram_read = min(dram_read, missed)
    return Traffic(
        l2_read,
        written,
        dram_read,
        dram_write,
        missed + dram_write if llc else 0.0,
        flow.waiting([each * scale for each in moved]),
        flow.stretch(moved),
        write_stretch,
        (*flow.by_tensor(moved, l2_read, dram_read, write=False), *tensors),
    )


def _first_level(flow: _Flow, target: Target, blocks_together: int) -> float:
    """Bytes of plain loads that the first-level caches of the cores serve.

    These are repeated loads of a block and common loads of the blocks of a core, as far as they fit beside
    shared memory.
    """
    profile, cores = flow.profile, target.int("core.count")
    resident = max(1, -(-blocks_together // cores))
    room = first_level_room(profile, target, resident)
    per_core = max(1.0, profile.blocks / cores)
    cached = [
        (
            s,
            s.bytes * s.trips.mean * (1.0 if s.row_bytes else union),  # distinct bytes of a block
            max(1.0, per_core / s.tiles.count(profile.grid)),  # blocks of a core that share them
        )
        for s, union in zip(flow.streams, flow.unions, strict=True)
        if s.cached
    ]
    if room <= 0 or not cached:
        return 0.0
    shared = sum(own for _, own, alike in cached if alike > 1)
    private = sum(own for _, own, alike in cached if alike == 1) * resident
    held = 1 - (max(1.0, shared + private) / (HELD_ROOM * room) - 1) / OUTGROWN
    saved = 0.0
    for stream, own, alike in cached:
        fits = min(1.0, room / max(1.0, shared if alike > 1 else shared + private))
        again = max(0.0, stream.requested - own / alike)
        near = again if alike > 1 else min(again, stream.near)
        saved += (near * fits + (again - near) * min(1.0, max(0.0, held))) * profile.blocks
    return saved


def atomic_us(profile: KernelProfile, target: Target) -> float:
    """Microseconds of atomics that wait for each other: a lower bound.

    Lanes that add to one address follow each other. All lanes of a block that share the address count, times
    all blocks that share it. Addresses that loaded data chooses are taken as spread evenly over the tensor.
    Lanes of one instruction also queue at the unit of L2 that has the line.
    """
    return max(_most_contended(profile) / 1e3, _queues_us(profile, target))


def _atomics(profile: KernelProfile) -> Iterator[tuple[Access, Phase, Role]]:
    for role in profile.roles:
        for phase in role.phases:
            for access in phase.work.accesses:
                if access.mechanism == "atomic" and access.space is Space.GLOBAL:
                    yield access, phase, role


def _most_contended(profile: KernelProfile) -> float:
    """Nanoseconds of the lanes that use one address, at the atomic that this takes longest."""
    longest = 0.0
    sizes = {t.label: t.bytes for t in profile.tensors}
    for access, phase, _ in _atomics(profile):
        tiles = Tiles.of(access)
        lanes = (
            access.bytes
            / max(access.footprint_bytes, 1.0)
            * (1.0 if access.loop_dependent else phase.trips.mean)
        )
        sharing = profile.blocks * tiles.turns / tiles.count(profile.grid)
        each = FLOAT_ATOMIC_NS if access.is_float else ATOMIC_NS
        longest = max(longest, lanes * sharing * each)
        if access.row_bytes and sizes.get(access.tensor):
            moved = access.bytes * phase.trips.mean * profile.blocks
            longest = max(longest, moved / sizes[access.tensor] * each)
    return longest


def _queues_us(profile: KernelProfile, target: Target) -> float:
    """Microseconds of atomics at the busiest unit of L2, beyond those of sectors that spread evenly.

    Each unit has the lines that a hash gives to it, so the busiest one has more than the mean, and of a
    tensor of few lines most units have none. It adds the lanes of one address one by one, at the pace at
    which it adds whole sectors otherwise. All of this is work that the rate of updates
    (`demand.L2_UPDATES`) does not contain.
    """
    rate = target.get(L2_UPDATES)
    if not rate:
        return 0.0
    step_us = SECTOR_BYTES / (rate * 1e3)  # of all units together
    sizes = {t.label: t.bytes for t in profile.tensors}
    total = 0.0
    for access, phase, role in _atomics(profile):
        sectors = access.transactions * phase.trips.mean * profile.blocks
        if access.row_bytes:
            sectors *= _different_sectors(access, sizes.get(access.tensor, 0.0))
        touched = Tiles.of(access).count(profile.grid) * max(1.0, access.footprint_bytes)
        touched *= phase.trips.mean if access.loop_dependent else 1.0
        lines = max(1.0, min(touched, sizes.get(access.tensor) or touched) / LINE_BYTES)
        each = lines / ATOMIC_UNITS
        busiest = max(1.0, each + math.sqrt(2 * each * math.log(ATOMIC_UNITS)))
        lanes = _lanes_of_address(access, max(1.0, role.threads / target["warp.threads"]))
        total += sectors * (lanes * busiest / each - 1) * step_us
    return total


def _different_sectors(access: Access, size: float) -> float:
    """Share of the sectors of an instruction that are different ones, in a tensor of `size` bytes, 0 if that
    is not known: N places fall on n (1 - (1 - 1/n)^N) of n sectors by chance.
    """
    each = access.transactions / max(1.0, access.instructions)
    count = size / SECTOR_BYTES
    if not count or each <= 1:
        return 1.0
    return min(1.0, count * (1 - (1 - 1 / max(1.0, count)) ** each) / each) if count > 1 else 1 / each


def _lanes_of_address(access: Access, warps: float) -> float:
    """Lanes of one instruction that add to the same address; 1 if they fit beside each other in sectors."""
    in_sector = access.bytes / max(1.0, access.transactions)
    if in_sector <= SECTOR_BYTES * (1 + 1e-6):
        return 1.0
    alike, most = access.bytes / max(1.0, access.footprint_bytes), in_sector / access.vector_bytes
    if alike > most:  # the warps of the block add to the same addresses
        alike = min(most, alike / warps)
    return max(in_sector / SECTOR_BYTES, alike)


def _trips_in_waves(trips: Trips, profile: KernelProfile, together: int, clusters: int) -> NDArray[Any]:
    """Iterations of each block of the sampled waves, shape (waves, blocks)."""
    positions = wave_positions(profile.grid, together, clusters)
    counts: NDArray[Any] = trips_in_launch_order(trips, profile.grid, profile.rasterization)[positions]
    return counts


def _resampled(values: Any, count: int) -> NDArray[Any]:
    """`values` of sampled waves, at the number of samples of another stream."""
    found: NDArray[Any] = np.atleast_1d(np.asarray(values, dtype=float))
    if len(found) == count:
        return found
    chosen: NDArray[Any] = found[np.minimum(np.arange(count) * len(found) // max(1, count), len(found) - 1)]
    return chosen


__all__ = ["TensorTraffic", "Traffic", "atomic_us", "traffic"]
