"""Search space of gated_delta_rule: chunks of tokens, and block_v columns of a head's state per block."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import (
    fits_block,
    fits_registers,
    fits_shared_memory,
    not_beyond,
    pipelines,
    stages_within_loop,
)
from .matrix_unit import matrix_unit

CHUNKS = (32, 64)
TILES_V = (16, 32, 64, 128)
FLOAT_BYTES = 4
SUB_BLOCK = 32  # rows of the systems that threads solve by substitution


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    _, seq_len, _, head_k, head_v = workload.dims.values()
    width, element_bytes = -(-head_k // 16) * 16, DTYPE_BYTES[workload.dtype]
    parameters = (
        Parameter("chunk", CHUNKS, "tokens of one iteration of the main loop"),
        Parameter("block_v", TILES_V, "columns of a head's state that one block keeps"),
        Parameter("num_stages", (1, 2, 3), "iterations whose copies are in flight together"),
        Parameter("threads", (64, 128, 256), "threads of a block"),
    )

    def registers(config: Config) -> int:
        """The state, three tiles of values, the scores, and the columns of the inverse."""
        chunk, cols, threads = config.int("chunk"), config.int("block_v"), config.int("threads")
        return width * cols + 3 * chunk * cols + chunk * chunk + SUB_BLOCK * threads

    def shared_bytes(config: Config) -> int:
        chunk, cols, stages = config.int("chunk"), config.int("block_v"), config.int("num_stages")
        copied = chunk * ((2 * width + cols) * element_bytes + 2 * FLOAT_BYTES)
        tiles = (3 * chunk * chunk + 4 * chunk * cols + width * cols) * element_bytes
        return stages * copied + tiles + chunk * (chunk + 5) * FLOAT_BYTES

    constraints = (
        pipelines(target),
        not_beyond("chunk", CHUNKS, "seq_len", seq_len),
        not_beyond("block_v", TILES_V, "head_v", head_v),
        stages_within_loop(lambda config: -(-seq_len // config.int("chunk")), "chunks"),
        fits_block(target, False),
        _whole_products(target, width),
        _narrow_states(head_k),
        fits_registers(target, False, registers, "take more threads or a smaller block_v"),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_v or chunk"),
    )
    return SearchSpace(parameters, constraints)


def _narrow_states(head_k: int) -> Constraint:
    """Wide tiles of short states raced in an earlier form of this kernel."""

    def violation(config: Config) -> str | None:
        cols = config.int("block_v")
        if head_k > 64 or cols < 64:
            return None
        return f"block_v={cols} races with head_k={head_k}, which is not above 64: take block_v=32"

    return Constraint("narrow states", violation)


def _whole_products(target: Target, width: int) -> Constraint:
    """Every product of a chunk divides evenly over the warps."""

    def violation(config: Config) -> str | None:
        chunk, cols, threads = config.int("chunk"), config.int("block_v"), config.int("threads")
        for rows, columns in ((chunk, chunk), (chunk, cols), (width, cols)):
            unit = matrix_unit(target, rows, threads)
            if not unit.splits(rows, columns, threads):
                return (
                    f"a product of {rows}x{columns} cannot be divided evenly over "
                    f"{threads // unit.warp_threads} warps of {unit.name}: take fewer threads, or a larger "
                    "chunk or block_v"
                )
        return None

    return Constraint("whole matrix instructions", violation)
