"""Search space of retention: chunks of tokens, and block_v columns of a head's state per block."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Parameter, SearchSpace
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
from .gated_delta_rule import ALIGNMENT_BYTES, FLOAT_BYTES, narrow_states, whole_products

CHUNKS = (16, 32, 64, 128)
TILES_V = (16, 32, 64, 128)


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    _, seq_len, _, head_k, head_v = workload.dims.values()
    width, element_bytes = -(-head_k // 16) * 16, DTYPE_BYTES[workload.dtype]
    parameters = (
        Parameter("chunk", CHUNKS, "tokens of one iteration of the main loop"),
        Parameter("block_v", TILES_V, "columns of a head's state that one block keeps"),
        Parameter("num_stages", (1, 2, 3), "iterations whose copies are in flight together"),
        Parameter("threads", (64, 128, 256), "threads of a block"),
        # an LDS of 64 KiB is too small for large tiles
        Parameter(
            "epilogue",
            ("shared", "direct") if target.kind == "hip" else ("shared",),
            "path of the outputs: through shared memory, or from registers",
        ),
    )

    def registers(config: Config) -> int:
        """The state, the outputs and the scores."""
        chunk, cols = config.int("chunk"), config.int("block_v")
        return width * cols + chunk * (chunk + cols)

    def shared_bytes(config: Config) -> int:
        chunk, cols, stages = config.int("chunk"), config.int("block_v"), config.int("num_stages")
        copied = stages * chunk * (2 * width + cols)
        passing = 1 if config["epilogue"] == "direct" else 2
        tiles = chunk * (chunk + passing * cols) + width * cols
        return (copied + tiles) * element_bytes + chunk * FLOAT_BYTES + ALIGNMENT_BYTES

    constraints = (
        pipelines(target),
        not_beyond("chunk", CHUNKS, "seq_len", seq_len),
        not_beyond("block_v", TILES_V, "head_v", head_v),
        stages_within_loop(lambda config: -(-seq_len // config.int("chunk")), "chunks"),
        fits_block(target, False),
        whole_products(target, width),
        narrow_states(head_k),
        fits_registers(target, False, registers, "take more threads or a smaller block_v"),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_v or chunk"),
    )
    return SearchSpace(parameters, constraints)
