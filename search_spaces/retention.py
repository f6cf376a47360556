"""Search space of retention: chunks of tokens, and block_v columns of a head's state per block."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .gated_delta_rule import ALIGNMENT_BYTES, FLOAT_BYTES, padded, state_parameters, state_rules

CHUNKS = (16, 32, 64, 128)


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    width, element_bytes = padded(workload.dims["head_k"]), DTYPE_BYTES[workload.dtype]
    # an LDS of 64 KiB is too small for large tiles
    epilogue = Parameter(
        "epilogue",
        ("shared", "direct") if target.kind == "hip" else ("shared",),
        "path of the outputs: through shared memory, or from registers",
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

    rules = state_rules(workload, target, CHUNKS, registers, shared_bytes)
    return SearchSpace((*state_parameters(CHUNKS), epilogue), rules)
