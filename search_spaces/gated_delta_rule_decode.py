"""Search space of gated_delta_rule_decode: block_v columns of a head's state per block, in registers."""

from __future__ import annotations

from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import fits_block, not_beyond
from .row_reduction import fits_thread, widest_vectors

VECTORS = (1, 2, 4)
FLOAT_BYTES = 4
TILES_V = (8, 16, 32, 64, 128)


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    _, _, head_k, head_v = workload.dims.values()
    parameters = (
        Parameter("block_v", TILES_V, "columns of a head's state of one block"),
        Parameter("threads", (64, 128, 256, 512), "threads of a block"),
        Parameter("vector", VECTORS, "columns that a thread loads at once"),
    )

    def live_registers(config: Config) -> int:
        """The state and the terms of a sum."""
        return 2 * _rows(config, head_k) * config.int("block_v") // config.int("threads")

    constraints = (
        not_beyond("block_v", TILES_V, "head_v", head_v),
        fits_block(target, False),
        widest_vectors("head_v", head_v, FLOAT_BYTES, VECTORS),
        _whole_rows(target, head_k),
        fits_thread(target, live_registers, "take more threads or a smaller block_v"),
    )
    return SearchSpace(parameters, constraints)


def _together(config: Config) -> int:
    """Rows of the state that the block loads at a time."""
    return max(1, config.int("threads") * config.int("vector") // config.int("block_v"))


def _rows(config: Config, head_k: int) -> int:
    together = _together(config)
    return -(-head_k // together) * together


def _whole_rows(target: Target, head_k: int) -> Constraint:
    """The threads of a row are within a warp, and no thread is without rows."""
    warp = target.int("warp.threads")

    def violation(config: Config) -> str | None:
        cols, threads, vector = config.int("block_v"), config.int("threads"), config.int("vector")
        lanes = cols // vector
        if lanes > warp:
            return (
                f"block_v={cols} takes {lanes} threads for a row, more than the {warp} of a warp: take a "
                "larger vector or a smaller block_v"
            )
        together = _together(config)
        if together > head_k and threads > 64:
            return (
                f"threads={threads} load {together} rows at a time, and the state has head_k={head_k}: take "
                f"threads={threads // 2}"
            )
        return None

    return Constraint("whole rows", violation)
