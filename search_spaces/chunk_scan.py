"""Search space of chunk_scan: tiles of block_m tokens x block_n of a head, block_k tokens at a time."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .chunk_state import FLOAT_BYTES, TILE_ALIGNMENT, TILES_N, copies, overhang
from .constraints import (
    by_copies,
    causal_pipelines,
    fits_block,
    fits_registers,
    fits_shared_memory,
    not_beyond,
    pipelines,
    rows_of_warps,
    stages_within_loop,
)
from .matrix_unit import is_hopper, launch

__all__ = ["overhang", "space"]

TILES_M = (32, 64, 128, 256)  # and block_k: parts of every legal chunk
DEPTHS = (32, 64, 128)
WAY_OUT = "take more threads or a smaller block_m, block_n or block_k"


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    head_dim, d_state = workload.dims["head_dim"], workload.dims["d_state"]
    chunk, width = int(workload.attrs["chunk"]), -(-d_state // 16) * 16  # as the template pads rows
    element_bytes = DTYPE_BYTES[workload.dtype]
    hopper = is_hopper(target)
    parameters = (
        Parameter("block_m", TILES_M, "tokens of a chunk whose outputs one block computes"),
        Parameter("block_n", TILES_N, "elements of a head that one block computes"),
        Parameter("block_k", DEPTHS, "earlier tokens of one iteration of the main loop"),
        Parameter("num_stages", (1, 2, 3, 4), "iterations whose copies are in flight together"),
        Parameter("threads", (128, 256, 512) if hopper else (64, 128, 256, 512), "threads that compute"),
        copies(workload, target),
    )

    def registers(config: Config) -> int:
        """Registers of all threads: the sums, and the weights of an iteration."""
        rows = config.int("block_m")
        return rows * (config.int("block_n") + config.int("block_k") * element_bytes // FLOAT_BYTES)

    def shared_bytes(config: Config) -> int:
        rows, cols, depth = config.int("block_m"), config.int("block_n"), config.int("block_k")
        operands = config.int("num_stages") * (rows + cols) * depth
        # the result replaces the rows of C and of the state
        tiles = operands + max((rows + cols) * width, rows * cols)
        decays = -(-2 * chunk * FLOAT_BYTES // TILE_ALIGNMENT + 1) * TILE_ALIGNMENT
        barriers = launch(target, config.int("threads"), config["copies"] == "bulk").barrier_bytes
        return tiles * element_bytes + decays + barriers

    constraints = (
        pipelines(target),
        not_beyond("block_m", TILES_M, "chunk", chunk),
        not_beyond("block_n", TILES_N, "head_dim", head_dim),
        not_beyond("block_k", DEPTHS, "chunk", chunk),
        stages_within_loop(lambda config: -(-chunk // config.int("block_k")), "tokens"),
        rows_of_warps(target),
        causal_pipelines(target, "causal weights", lambda config: config["copies"] == "bulk"),
        by_copies(fits_block(target, False), fits_block(target, True)),
        by_copies(*(fits_registers(target, copies, registers, WAY_OUT) for copies in (False, True))),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_k, block_m or block_n"),
    )
    return SearchSpace(parameters, constraints)
