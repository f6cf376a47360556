"""The global accesses of a kernel as streams: what equal statements of a block read or write of a tensor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ...profile.values import Access, KernelProfile, Space, Trips
from .demand import l2_bytes
from .gathers import SECTOR_BYTES, fetched_bytes
from .tiles import Grid, Tiles

# Runs of SHORT_RUN_BYTES and less take this much longer at device memory; longer ones less, by this exponent.
SHORT_RUN_COST, SHORT_RUN_BYTES, SHORT_RUN_SHARPNESS = 0.5, 64.0, 1.5
SHORTEST_RUN_BYTES = 16.0  # that were measured
# The same for runs of a block whose neighbours in launch order have the rest: of 64 bytes, and the exponent.
OWN_RUN_COST, OWN_RUN_SHARPNESS = 0.075, 2.2


@dataclass(frozen=True, slots=True)
class Stream:
    """The bytes of a tensor that equal statements of one block move."""

    tensor: str
    tiles: Tiles
    trips: Trips  # iterations that change the address
    bytes: float  # distinct bytes in one of these iterations
    requested: float  # all bytes of the block
    wanted: float  # bytes that the block asks for, without the rest of their sectors
    cached: bool  # whether the first-level cache of the core may serve them
    row_bytes: float = 0.0  # contiguous bytes at each place that loaded data chooses; 0 if none does
    stretch: float = 1.0  # time of its bytes at device memory, compared with whole rows
    near: float = 0.0  # part of `requested` that the iteration that requests it has requested before

    @property
    def largest_bytes(self) -> float:
        """Distinct bytes of a tile, for the block that reads most of those that share it."""
        whole = self._iterations_of_tile
        if whole:
            return self.bytes * whole
        return (
            self.bytes
            * (self.trips.mean if self.trips.axes & self.tiles.axes else self.trips.largest)
            / self.tiles.turns
        )

    @property
    def _iterations_of_tile(self) -> float:
        """Iterations of each tile of blocks that stay, if all tiles have equally many; else 0.

        The block with the most tiles then tells it: others have fewer tiles, not shorter ones.
        """
        whole = self.trips.largest / self.tiles.turns
        equal = self.tiles.turns > 1 and whole >= 1 and all(t % whole == 0 for t in self.trips.per_block)
        return whole if equal else 0.0


_ONCE = Trips((1.0,))


def streams_of(profile: KernelProfile) -> tuple[tuple[Stream, ...], tuple[Stream, ...]]:
    """(reads, writes) of whole blocks, with one stream for equal tensors, tiles and trips."""
    reads: dict[_Key, list[float]] = {}
    writes: dict[_Key, list[float]] = {}
    for role in profile.roles:
        for phase in role.phases:
            for access in phase.work.accesses:
                if access.space is Space.GLOBAL:
                    trips = phase.trips if access.loop_dependent else _ONCE
                    key = (access.tensor, Tiles.of(access), trips, _is_cached(access), access.row_bytes)
                    entry = (writes if access.write else reads).setdefault(key, [0.0, 0.0, 0.0, 0.0, 0.0])
                    moved = _transferred(access)
                    different = max(_footprint(access), 1.0)
                    entry[0] += different
                    entry[1] += max(1.0, moved * phase.trips.mean)
                    entry[2] += max(1.0, min(access.bytes, moved) * phase.trips.mean)
                    entry[3] += different * _stretch(access)
                    entry[4] += max(0.0, moved - different) * phase.trips.mean
    return _listed(reads), _listed(writes)


_Key = tuple[str, Tiles, Trips, bool, float]  # tensor, tiles, trips, whether cached, bytes of a row


def _listed(found: dict[_Key, list[float]]) -> tuple[Stream, ...]:
    return tuple(_stream(key, sums) for key, sums in found.items())


def _stream(key: _Key, sums: Sequence[float]) -> Stream:
    tensor, tiles, trips, cached, row = key
    different, requested, wanted, stretched, near = sums
    return Stream(
        tensor, tiles, trips, different, requested, wanted, cached, row, stretched / different, near
    )


def _stretch(access: Access) -> float:
    """Time of accesses to short runs of device memory, such as a stripe of a matrix, compared with long ones.

    The other part of a sector that a run has in part is accessed long before or after: it is fetched for each
    part, and a store fetches it before it writes it.

    Source: experiments/stripes, copies of runs of 32 to 1024 bytes on an H200 and an H100, and of 16 bytes on
    an H200, whose loads take 1.8 times as long as those of 32, and whose stores 2.4 to 4.7 times. Short runs
    whose neighbours are accessed at the same time are those across the columns there.
    """
    run = access.run_bytes
    if not run:
        return 1.0
    short: float = min(1.0, SHORT_RUN_BYTES / run) ** SHORT_RUN_SHARPNESS
    # of places that data chooses, `_footprint` has the whole sectors
    apart = 0.0 if access.row_bytes else access.transactions * SECTOR_BYTES / max(1.0, access.bytes)
    fetched = max(1.0, min(SECTOR_BYTES / max(run, SHORTEST_RUN_BYTES), apart))
    filled = 2.0 if access.write and fetched > 1 else 1.0
    own = (SHORT_RUN_BYTES / max(access.own_run_bytes, SECTOR_BYTES)) ** OWN_RUN_SHARPNESS
    beside = OWN_RUN_COST * own if access.own_run_bytes else 0.0
    return max(1 + SHORT_RUN_COST * short, 1 + beside) * fetched * filled


def _footprint(access: Access) -> float:
    """Distinct bytes of an access in one iteration. Rows that loaded data chooses take whole sectors."""
    if not access.row_bytes:
        return access.footprint_bytes
    return access.footprint_bytes * fetched_bytes(access.row_bytes, SECTOR_BYTES)


def known_bytes(streams: Sequence[Stream], grid: Grid) -> float:
    """Bytes of data at known addresses, each once; the rest is chosen by loaded data."""
    return sum(s.tiles.count(grid) * s.largest_bytes for s in streams if not s.row_bytes)


def _transferred(access: Access) -> float:
    """Bytes between a core and L2. A bulk load moves its whole box, including zeros outside the tensor.

    Source: crossbar counters of kernels whose boxes hang over the edges of tensors.
    """
    if access.mechanism == "tma" and not access.write and access.box_bytes:
        return access.instructions * access.box_bytes
    return l2_bytes(access)


def _is_cached(access: Access) -> bool:
    """Whether the first-level cache may serve an access. Copies and atomics bypass it."""
    return access.mechanism == "ld" and not access.asynchronous
