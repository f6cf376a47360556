"""Rasterization: the order in which the blocks of a kernel are launched."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Rasterization:
    """Order in which block ids are mapped to tiles.

    `linear`: x is fastest. `row`: panels of `factor` rows, each walked column by column. `column`: panels of
    `factor` columns, each walked row by row. Groups of `depth` blocks along z, which are a cluster, are
    launched together before the next x.
    """

    order: str = "linear"
    factor: int = 1
    depth: int = 1
