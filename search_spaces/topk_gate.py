"""Search space of topk_gate: block_m tokens by groups of `reduce_threads` lanes of a warp."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import fits_block
from .row_reduction import (
    ROWS,
    fits_thread,
    no_idle_threads,
    rows_of_a_thread,
    whole_rows,
    widest_vectors,
)

__all__ = ["ROWS", "space"]

VECTORS = (1, 2, 4, 8)
MOST_ROWS = 2  # of a thread


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    m, experts = workload.dims.values()
    parameters = (
        Parameter("block_m", ROWS, "tokens of one block"),
        Parameter("threads", (64, 128, 256, 512), "threads of a block"),
        Parameter("reduce_threads", (8, 16, 32), "threads that share a token"),
        Parameter("vector", VECTORS, "elements of one load of a thread"),
    )

    def registers(config: Config) -> int:
        step = config.int("reduce_threads") * config.int("vector")
        own = -(-experts // step) * config.int("vector")
        return rows_of_a_thread(config, "block_m") * (2 * own + 2 * int(workload.attrs["topk"]) + 8)

    constraints = (
        widest_vectors("experts", experts, DTYPE_BYTES[workload.dtype], VECTORS),
        fits_block(target, bulk_copies=False),
        whole_rows("block_m", MOST_ROWS),
        no_idle_threads("block_m", "m", m, "experts", experts, target.int("warp.threads")),
        fits_thread(target, registers, "take more reduce_threads or a smaller block_m"),
    )
    return SearchSpace(parameters, constraints)
