"""Search space of matmul_all_reduce: the ways to add the products of all ranks on all ranks."""

from __future__ import annotations

from collections.abc import Mapping

from ..problem.group_operator import WORLD
from ..problem.space import SearchSpace, Value
from ..problem.workload import Workload
from ..target.spec import Target
from .rank_products import (
    LAST,
    SUMMERS,
    SUMS,
    product_workload,
    rows_within,
    space_of_ways,
    sums_in_turns,
    sums_meanwhile,
)

ONE_SHOT, TWO_SHOT = "one_shot", "two_shot"
WAYS: Mapping[str, str] = {
    ONE_SHOT: "each tile is stored at all ranks by TMA, and each rank adds those of all in float32",
    TWO_SHOT: "each tile is stored at one rank by TMA, which adds those of all and stores the sum at all",
}


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`. Rows are divided among ranks for `two_shot`, evenly."""
    m, world = workload.dims["m"], workload.dims[WORLD]
    ways = {way: meaning for way, meaning in WAYS.items() if way == ONE_SHOT or m % world == 0}
    rules = (
        rows_within("a rank", m, ONE_SHOT),
        rows_within("a shard", m // world, TWO_SHOT),
        sums_in_turns(world),
        sums_meanwhile(workload),
    )
    # each tile of `one_shot` goes to all ranks, so there is no order of ranks
    fewer: dict[str, Mapping[str, tuple[Value, ...]]] = {
        ONE_SHOT: {"order": (LAST,)},
        TWO_SHOT: {SUMS.name: SUMMERS},
    }
    return space_of_ways(product_workload(workload, m), target, ways, rules, fewer, (SUMS,))
