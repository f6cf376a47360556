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
from .resident_chunks import (
    GROUP,
    ROWS,
    enough_heads,
    heads_parameter,
    if_resident,
    is_resident,
    resident_form,
    unless_resident,
)

__all__ = ["overhang", "space"]

TILES_M = (32, 64, 128, 256)  # and block_k: parts of every legal chunk
DEPTHS = (32, 64, 128)
SPARE_REGISTERS = 24  # of a thread beside its tiles: addresses and rows
WAY_OUT = "take more threads or a smaller block_m, block_n or block_k"


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    head_dim, d_state = workload.dims["head_dim"], workload.dims["d_state"]
    chunk, width = int(workload.attrs["chunk"]), -(-d_state // 16) * 16  # as the template pads rows
    element_bytes = DTYPE_BYTES[workload.dtype]
    hopper, by = is_hopper(target), copies(workload, target)
    parameters = (
        Parameter("block_m", TILES_M, "tokens of a chunk whose outputs one block computes"),
        Parameter("block_n", TILES_N, "elements of a head that one block computes"),
        Parameter("block_k", DEPTHS, "earlier tokens of one iteration of the main loop"),
        Parameter("num_stages", (1, 2, 3, 4), "iterations whose copies are in flight together"),
        Parameter("threads", (128, 256, 512) if hopper else (64, 128, 256, 512), "threads that compute"),
        by,
        *((heads_parameter(),) if "bulk" in by.values else ()),
    )

    def resident_registers(config: Config) -> int:
        """Registers of all threads: the sums, rows of C, two tiles of weights, and addresses."""
        elements = width + 2 * ROWS
        rows = chunk * (config.int("block_n") + elements * element_bytes // FLOAT_BYTES)
        return rows + SPARE_REGISTERS * config.int("threads")

    def resident_bytes(config: Config) -> int:
        cols, stages, groups = config.int("block_n"), config.int("num_stages"), chunk // ROWS
        weights = groups * (groups + 1) // 2 * ROWS * ROWS
        tiles = weights + stages * (chunk + width) * cols + chunk * cols
        factors = ROWS * groups * (groups - 1) // 2
        decays = 2 * stages * chunk + factors
        return tiles * element_bytes + decays * FLOAT_BYTES + 2 * TILE_ALIGNMENT

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
        stages_within_loop(
            lambda config: config.int("heads", 0) or -(-chunk // config.int("block_k")), "tokens or heads"
        ),
        rows_of_warps(target),
        causal_pipelines(target, "causal weights", lambda config: config["copies"] == "bulk"),
        resident_form(
            chunk,
            lambda _: {"block_m": chunk, "block_k": ROWS, "threads": chunk // ROWS * GROUP, "copies": "bulk"},
        ),
        enough_heads(workload.dims["nheads"], lambda _: 1),
        unless_resident(by_copies(fits_block(target, False), fits_block(target, True))),
        unless_resident(
            by_copies(*(fits_registers(target, bulk, registers, WAY_OUT) for bulk in (False, True)))
        ),
        if_resident(fits_registers(target, False, resident_registers, "take a smaller block_n or heads=0")),
        fits_shared_memory(
            target,
            lambda config: (resident_bytes if is_resident(config) else shared_bytes)(config),
            "lower num_stages, block_k, block_m or block_n",
        ),
    )
    return SearchSpace(parameters, constraints)
