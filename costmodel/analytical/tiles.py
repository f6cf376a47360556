"""The tile of a tensor that each block accesses, and the distinct tiles of each wave of blocks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...problem.rasterization import Rasterization
from ...profile.values import LAUNCH_AXIS, Access, Trips

SAMPLED_WAVES = 16  # waves repeat their pattern, so a sample represents all

Grid = tuple[int, int, int]


@dataclass(frozen=True, slots=True)
class Tiles:
    """The map from blocks to the tiles of one access. `digits`, `ids` and `turns` are those of `Access`."""

    axes: frozenset[str]
    digits: tuple[tuple[str, int, int], ...] = ()
    ids: tuple[int, ...] = ()
    turns: int = 1

    @staticmethod
    def of(access: Access) -> Tiles:
        """The tiles of `access`."""
        return Tiles(access.axes, access.tile_digits, access.tile_ids, access.turns)

    def count(self, grid: Grid) -> float:
        """Number of distinct tiles of all blocks."""
        extents = dict(zip("xyz", grid, strict=True)) | {LAUNCH_AXIS: math.prod(grid) * self.turns}
        if self.ids:
            return len(set(self.ids)) * max(1.0, math.prod(grid) * self.turns / len(self.ids))
        if self.digits:
            return float(
                math.prod(
                    min(modulus, -(-extents[axis] // divisor)) for axis, divisor, modulus in self.digits
                )
            )
        return float(math.prod(extents[axis] for axis in self.axes))


@dataclass(frozen=True, slots=True)
class Waves:
    """Sampled waves of blocks, one value for each."""

    weight: NDArray[Any]  # number of waves that the sample represents
    blocks: NDArray[Any]  # blocks of the wave
    tiles: NDArray[Any]  # distinct tiles of the wave
    again: NDArray[Any]  # tiles that the wave shares with the wave before it
    # mean distance in launch order from a block to the next one with the same tile, as a share of the wave
    apart: NDArray[Any]


@lru_cache(maxsize=16)
def tile_coordinates(grid: Grid, rasterization: Rasterization) -> dict[str, NDArray[Any]]:
    """Tile indices along x, y and z of each block in launch order, after rasterization.

    x is fastest, but for the blocks of a cluster along z.

    Source: TileLang's `rasterization2DRow` and `rasterization2DColumn` (tl_templates, threadblock_swizzle.h):
    panels of `factor` rows (columns) are walked column by column (row by row), every other panel backwards.
    """
    gx, gy, gz = grid
    linear = np.arange(gx * gy)
    if rasterization.order == "row":
        x, y = _panels(linear, gx, gy, rasterization.factor)
    elif rasterization.order == "column":
        y, x = _panels(linear, gy, gx, rasterization.factor)
    else:
        x, y = linear % gx, linear // gx
    depth = rasterization.depth if gz % rasterization.depth == 0 else 1
    x, y = (np.tile(np.repeat(values, depth), gz // depth) for values in (x, y))
    first, inner = np.repeat(np.arange(0, gz, depth), gx * gy * depth), np.arange(gx * gy * gz) % depth
    found = {"x": x, "y": y, "z": first + inner}
    for values in found.values():
        values.flags.writeable = False  # the cache shares it
    return found


def _panels(linear: NDArray[Any], across: int, along: int, factor: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """(position across, line along) of blocks in panels of `factor` lines. The lines advance fastest."""
    panel_size = factor * across
    panel, offset = linear // panel_size, linear % panel_size
    height = np.minimum(factor, along - panel * factor)
    position = offset // height
    position = np.where(panel % 2 == 1, across - 1 - position, position)
    return position, offset % height + panel * factor


def trips_in_launch_order(trips: Trips, grid: Grid, rasterization: Rasterization) -> NDArray[Any]:
    """Iterations of each block of a grid in launch order."""
    coordinates = tile_coordinates(grid, rasterization)
    index, stride = np.zeros(math.prod(grid), dtype=np.int64), 1
    for axis, extent in zip("xyz", grid, strict=True):
        if axis in trips.axes:
            index = index + coordinates[axis] * stride
            stride *= extent
    counts: NDArray[Any] = np.asarray(trips.per_block)[index]
    return counts


@lru_cache(maxsize=4096)
def waves_of(tiles: Tiles, grid: Grid, rasterization: Rasterization, together: int, clusters: int) -> Waves:
    """Waves of `together` blocks on the first of `clusters` clusters, to which blocks go in turn."""
    blocks = -(-math.prod(grid) // clusters)
    positions = blocks * tiles.turns
    together = max(1, min(together, blocks))
    waves = -(-positions // together)
    chosen = (
        np.arange(waves)
        if waves <= SAMPLED_WAVES
        else np.unique(np.linspace(0, waves - 1, SAMPLED_WAVES).astype(int))
    )
    weight = np.ones(len(chosen))
    if len(chosen) > 1:
        weight[1:] = (waves - 1) / (len(chosen) - 1)  # the first wave finds nothing in the caches
    count = np.minimum((chosen + 1) * together, positions) - chosen * together
    # the last position is repeated to fill the last wave, which adds no tile
    now = np.minimum(chosen[:, None] * together + np.arange(together), positions - 1)
    before = np.maximum(now - together, 0)
    before = np.where(
        chosen[:, None] > 0, np.maximum(chosen[:, None] - 1, 0) * together + np.arange(together), before
    )
    ids_now, ids_before = (_ids(tiles, grid, rasterization, p, clusters) for p in (now, before))
    distinct = _distinct(ids_now)
    again = distinct + _distinct(ids_before) - _distinct(np.concatenate([ids_now, ids_before], axis=1))
    return Waves(
        weight, count.astype(float), distinct, np.where(chosen > 0, again, 0.0), _apart(ids_now) / together
    )


@lru_cache(maxsize=1024)
def wave_positions(grid: Grid, together: int, clusters: int) -> NDArray[Any]:
    """Launch positions of the blocks of the sampled waves, shape (waves, blocks), for blocks of one turn."""
    blocks = -(-math.prod(grid) // clusters)
    together = max(1, min(together, blocks))
    waves = -(-blocks // together)
    chosen = (
        np.arange(waves)
        if waves <= SAMPLED_WAVES
        else np.unique(np.linspace(0, waves - 1, SAMPLED_WAVES).astype(int))
    )
    positions: NDArray[Any] = np.minimum(
        np.minimum(chosen[:, None] * together + np.arange(together), blocks - 1) * clusters,
        math.prod(grid) - 1,
    )
    positions.flags.writeable = False
    return positions


def _distinct(ids: NDArray[Any]) -> NDArray[Any]:
    """Number of distinct values of each row."""
    ordered = np.sort(ids, axis=1)
    count: NDArray[Any] = 1.0 + np.count_nonzero(np.diff(ordered, axis=1), axis=1)
    return count


def _apart(ids: NDArray[Any]) -> NDArray[Any]:
    """Mean distance between successive equal values in each row; 0 if no value is repeated."""
    order = np.argsort(ids, axis=1, kind="stable")
    same = np.diff(np.take_along_axis(ids, order, axis=1), axis=1) == 0
    distance = np.where(same, np.diff(order, axis=1), 0)
    mean: NDArray[Any] = distance.sum(axis=1) / np.maximum(1, same.sum(axis=1))
    return mean


def _ids(
    tiles: Tiles, grid: Grid, rasterization: Rasterization, positions: NDArray[Any], clusters: int
) -> NDArray[Any]:
    """A number for the tile of each launch position of the first cluster."""
    total = math.prod(grid)
    own = -(-total // clusters)
    block, turn = np.minimum(positions % own * clusters, total - 1), positions // own
    coordinates = tile_coordinates(grid, rasterization)
    values = {axis: found[block] for axis, found in coordinates.items()}
    linear = (values["z"] * grid[1] + values["y"]) * grid[0] + values["x"]
    if tiles.ids:
        listed = np.asarray(tiles.ids)[(linear + turn * total) % len(tiles.ids)]
        # ids that were sampled repeat, each time with other tiles
        ids: NDArray[Any] = listed + (linear + turn * total) // len(tiles.ids) * (max(tiles.ids) + 1)
        return ids
    values[LAUNCH_AXIS] = linear + turn * total
    digits = tiles.digits or tuple((axis, 1, 1 << 20) for axis in sorted(tiles.axes))
    code = np.zeros(positions.shape, dtype=np.int64)
    for axis, divisor, modulus in digits:
        code = code * modulus + values[axis] // divisor % modulus
    return code


__all__ = ["Tiles", "Waves", "tile_coordinates", "trips_in_launch_order", "wave_positions", "waves_of"]
