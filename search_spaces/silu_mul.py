"""Search space of silu_mul, by blocks of block_m rows of block_n columns."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .elementwise import ROWS, tile_space

__all__ = ["ROWS", "space"]


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    m, n = workload.dims["m"], workload.dims["n"]
    return tile_space(target, m, n, DTYPE_BYTES[workload.dtype], tensors=2)
