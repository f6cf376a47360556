"""Search space of flash_decoding."""

from __future__ import annotations

from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target

SPLITS = (1, 2, 3, 4, 6, 8, 16, 32)


def space(workload: Workload, target: Target) -> SearchSpace:
    return SearchSpace(
        (
            Parameter("block_m", (16, 32, 64), "x"),
            Parameter("block_n", (32, 64, 128, 256), "x"),
            Parameter("num_stages", (1, 2, 3, 4), "x"),
            Parameter("threads", (64, 128, 256), "x"),
            Parameter("split_k", SPLITS, "x"),
            Parameter("weights", ("registers", "shared"), "x"),
        ),
        (),
    )
