"""Search space of matmul_reduce_scatter: the ways to bring each tile of the product to its rank."""

from __future__ import annotations

from collections.abc import Mapping

from ..problem.group_operator import WORLD
from ..problem.space import SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .rank_products import (
    SUMMERS,
    SUMS,
    product_workload,
    rows_within,
    space_of_ways,
    sums_in_turns,
    sums_meanwhile,
)
from .ways import PUSH

ADD = "add"
WAYS: Mapping[str, str] = {
    ADD: "each tile is added to its rank's output by TMA, in the dtype of the output and in changing order",
    PUSH: "each tile is stored at its rank by TMA, which adds those of all ranks in float32",
}


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    m, world = workload.dims["m"], workload.dims[WORLD]
    rules = rows_within("a rank", m // world), sums_in_turns(world), sums_meanwhile(workload)
    fewer = {PUSH: {SUMS.name: SUMMERS}}
    return space_of_ways(product_workload(workload, m), target, WAYS, rules, fewer, (SUMS,))
