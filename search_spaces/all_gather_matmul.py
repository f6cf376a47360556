"""Search space of all_gather_matmul: the ways to bring the rows of all ranks to the product."""

from __future__ import annotations

from collections.abc import Mapping

from ..problem.group_operator import WORLD
from ..problem.space import SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .rank_products import product_workload, rows_within, space_of_ways

PULL = "pull"
WAYS: Mapping[str, str] = {
    PULL: "tiles read the rows of their rank by TMA, once for each column of tiles, the own ones first",
}


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    m, shard = workload.dims["m"], workload.dims["m"] // workload.dims[WORLD]
    return space_of_ways(product_workload(workload, m), target, WAYS, (rows_within("a rank", shard),))
