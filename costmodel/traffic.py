"""L2 and DRAM traffic of a launch: which blocks run together, in what order, and what they share."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..profile import KernelProfile, Rasterization, Space
from ..target import Target
from .constants import DEFAULT, Constants
from .demand import sector_bytes

WAVES_LOOKED_AT = 24  # waves repeat their pattern: a sample of them stands for all


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes of one launch. `dram_read` is at least the part of each tensor that is touched at all."""

    l2_read: float
    l2_write: float
    dram_read: float
    dram_write: float

    @property
    def dram(self) -> float:
        return self.dram_read + self.dram_write

    @property
    def l2(self) -> float:
        return self.l2_read + self.l2_write

    @property
    def miss_share(self) -> float:
        """Share of L2 reads that go on to device memory."""
        return min(1.0, self.dram_read / self.l2_read) if self.l2_read else 0.0


@dataclass(frozen=True, slots=True)
class _Stream:
    """A tensor's reads by one statement over a whole block: `bytes` different ones, of those blocks that agree on `axes`."""

    tensor: str
    axes: frozenset[str]
    bytes: float
    asked: float


def traffic(profile: KernelProfile, target: Target, blocks_together: int, constants: Constants = DEFAULT) -> Traffic:
    """Traffic with `blocks_together` blocks in flight on the whole device, taken to advance in step.

    Within a wave a tile that several blocks read comes from device memory once; from one wave to the next it stays in
    L2 if what a wave reads fits. Each of the target's clusters with an L2 of its own reads for itself: blocks go to
    clusters in turn.
    """
    streams, writes = _streams(profile)
    sizes = {t.label: t.bytes for t in profile.tensors}
    written = sum(writes.values()) * profile.blocks
    # what is written again and again (atomics on a small tensor) stays in L2 and leaves it once
    small = constants.kept_share * target["device.memory.l2.bytes"]
    dram_write = sum(
        sizes[t] if 0 < sizes.get(t, 0) <= min(small, each * profile.blocks) else each * profile.blocks for t, each in writes.items()
    )
    if not streams:
        return Traffic(0.0, written, 0.0, dram_write)
    coordinates = tile_coordinates(profile.grid, profile.rasterization)
    clusters = max(1, target.int("cluster.count"))
    missed, asked = 0.0, sum(s.asked for s in streams) * profile.blocks
    llc = target.get("device.memory.llc.bytes")
    capacity = target["device.memory.l2.bytes"] / clusters
    for cluster in range(clusters):
        own = {axis: values[cluster::clusters] for axis, values in coordinates.items()}
        missed += _misses(streams, own, max(1, -(-blocks_together // clusters)), capacity, constants)
    touched = _compulsory(streams, profile)
    dram_read = max(touched, missed)
    if llc:
        # what several clusters read each for themselves comes from the cache behind them once
        dram_read = max(touched, missed / clusters) if touched < llc else max(touched, missed * (1 - constants.kept_share * llc / touched))
    return Traffic(asked, written, min(dram_read, asked), dram_write)


def atomic_cycles(profile: KernelProfile) -> float:
    """Cycles in which the most contended address of an atomic is served, one lane a cycle: all lanes of a block that
    share it, times all blocks that do. A lower bound; no address is served faster."""
    extents = dict(zip("xyz", profile.grid, strict=True))
    longest = 0.0
    for role in profile.roles:
        for phase in role.phases:
            for access in phase.work.accesses:
                if access.mechanism == "atomic" and access.space is Space.GLOBAL:
                    lanes = access.bytes / max(access.footprint_bytes, 1.0) * (1.0 if access.loop_dependent else phase.trips.mean)
                    sharing = profile.blocks / float(np.prod([extents[a] for a in access.axes]))
                    longest = max(longest, lanes * sharing)
    return longest


def tile_coordinates(grid: tuple[int, int, int], rasterization: Rasterization) -> dict[str, NDArray[Any]]:
    """Tile index along x, y and z of each block in launch order (x fastest), after rasterization.

    Source: TileLang's `rasterization2DRow` and `rasterization2DColumn` (tl_templates, threadblock_swizzle.h): panels of
    `factor` rows (columns) are walked column by column (row by row), every other panel backwards.
    """
    gx, gy, gz = grid
    linear = np.arange(gx * gy)
    if rasterization.order == "row":
        x, y = _panels(linear, gx, gy, rasterization.factor)
    elif rasterization.order == "column":
        y, x = _panels(linear, gy, gx, rasterization.factor)
    else:
        x, y = linear % gx, linear // gx
    return {"x": np.tile(x, gz), "y": np.tile(y, gz), "z": np.repeat(np.arange(gz), gx * gy)}


def _panels(linear: NDArray[Any], across: int, along: int, factor: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Panels of `factor` lines of `along`; within a panel the lines advance fastest."""
    panel_size = factor * across
    panel, offset = linear // panel_size, linear % panel_size
    height = np.minimum(factor, along - panel * factor)
    position = offset // height
    position = np.where(panel % 2 == 1, across - 1 - position, position)
    return position, offset % height + panel * factor


def _streams(profile: KernelProfile) -> tuple[list[_Stream], dict[str, float]]:
    """Reads of whole blocks by tensor and axes, and the bytes that a block writes to each tensor."""
    merged: dict[tuple[str, frozenset[str]], list[float]] = {}
    written: dict[str, float] = {}
    for role in profile.roles:
        for phase in role.phases:
            for access in phase.work.accesses:
                if access.space is not Space.GLOBAL:
                    continue
                times = phase.trips.mean
                if access.write:
                    written[access.tensor] = written.get(access.tensor, 0.0) + sector_bytes(access) * times
                    continue
                entry = merged.setdefault((access.tensor, access.axes), [0.0, 0.0])
                repeats = times if access.loop_dependent else 1.0
                entry[0] += max(access.footprint_bytes, 1.0) * repeats
                entry[1] += sector_bytes(access) * times
    return [_Stream(tensor, axes, distinct, max(asked, 1.0)) for (tensor, axes), (distinct, asked) in merged.items()], written


def _misses(streams: list[_Stream], coordinates: dict[str, NDArray[Any]], together: int, capacity: float, constants: Constants) -> float:
    """Bytes that all waves fetch from behind the L2."""
    blocks = len(coordinates["x"])
    if not blocks:  # fewer blocks than clusters
        return 0.0
    waves = max(1, -(-blocks // together))
    chosen = range(waves) if waves <= WAVES_LOOKED_AT else np.unique(np.linspace(0, waves - 1, WAVES_LOOKED_AT).astype(int))
    # two streams of one tensor (loads before and inside a loop) fetch different parts of it
    total = 0.0
    for wave in chosen:
        now = slice(wave * together, min(blocks, (wave + 1) * together))
        before = slice(max(0, (wave - 1) * together), wave * together)
        tiles = {s: _tiles(coordinates, s.axes, now) for s in streams}
        size = sum(len(t) * s.bytes for s, t in tiles.items())
        kept = min(1.0, constants.kept_share * capacity / max(1.0, size))
        for stream, ids in tiles.items():
            again = len(np.intersect1d(ids, _tiles(coordinates, stream.axes, before))) if wave else 0
            fetched = len(ids) - again * kept
            # blocks that share a tile but have drifted apart fetch it again, where the panels in flight outgrow L2
            sharers = (now.stop - now.start) / len(ids)
            fetched *= 1 + constants.drift_share * (1 - kept) * math.log2(sharers)
            total += stream.bytes * fetched
    return total * waves / len(chosen)


def _tiles(coordinates: dict[str, NDArray[Any]], axes: frozenset[str], blocks: slice) -> NDArray[Any]:
    code = np.zeros(len(coordinates["x"][blocks]), dtype=np.int64)
    for axis in sorted(axes):
        code = code * (1 << 20) + coordinates[axis][blocks]
    return np.unique(code)


def _compulsory(streams: list[_Stream], profile: KernelProfile) -> float:
    """Bytes of all tensors that are read at least once."""
    extents = dict(zip("xyz", profile.grid, strict=True))
    sizes = {t.label: t.bytes for t in profile.tensors}
    read: dict[str, float] = {}
    for stream in streams:
        blocks = float(np.prod([extents[a] for a in stream.axes])) if stream.axes else 1.0
        read[stream.tensor] = read.get(stream.tensor, 0.0) + stream.bytes * blocks
    return sum(min(size, sizes[label]) if sizes.get(label) else size for label, size in read.items())


__all__ = ["Traffic", "atomic_cycles", "tile_coordinates", "traffic"]
