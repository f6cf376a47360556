"""Search space of rms_norm: y = x / rms(x) * w over rows of n, by blocks of block_m rows."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .row_reduction import ROWS, row_space

__all__ = ["ROWS", "space"]


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    m, n = workload.dims["m"], workload.dims["n"]
    tensors = 2 if workload.attrs.get("residual") else 1
    return row_space(target, m, n, DTYPE_BYTES[workload.dtype], tensors=tensors)
