"""Search space of flash_attention: tiles of block_m queries, and loops over tiles of block_n keys."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import (
    causal_pipelines,
    fits_block,
    fits_instruction,
    fits_registers,
    fits_shared_memory,
    not_beyond,
    pipelines,
    rows_of_warps,
    stages_within_loop,
)
from .matrix_unit import MAX_WGMMA_COLUMNS, is_hopper, launch, matrix_unit

TILES = (16, 32, 48, 64, 80, 96, 128, 160, 192, 256)  # of queries or keys, on any target
HIP_REDUCTION_BYTES = 8  # shared memory per thread for reductions of rows, in warps of 64 threads


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    seq_len, head_dim = workload.dims["seq_len"], workload.dims["head_dim"]
    causal, width = bool(workload.attrs["causal"]), -(-head_dim // 16) * 16  # as the template pads rows
    element_bytes = DTYPE_BYTES[workload.dtype]
    bulk_copies = head_dim * element_bytes % 16 == 0
    hopper, hip = is_hopper(target), target.kind == "hip"
    rows = (64, 128, 192, 256) if hopper else (32, 64, 128, 256)
    # small steps, for an LDS of 64 KiB
    keys = (16, 32, 48, 64, 80, 96, 128) if hip else (32, 64, 96, 128, 160, 192, 256)
    parameters = (
        Parameter("block_m", rows, "queries of one block"),
        Parameter("block_n", keys, "keys and values of one iteration of the main loop"),
        Parameter("num_stages", (1, 2, 3), "iterations whose copies are in flight together"),
        Parameter("threads", (128, 256, 384, 512) if hopper else (64, 128, 256, 512), "threads that compute"),
        Parameter(
            "block_order",
            ("by_head", "by_length"),
            "which blocks run together: those of one head, or the longest of all heads",
        ),
    )

    def accumulators(config: Config) -> int:
        return config.int("block_m") * (config.int("block_n") + width)

    def shared_bytes(config: Config) -> int:
        threads = config.int("threads")
        # the output replaces the queries after the main loop
        tiles = config.int("block_m") + 2 * config.int("num_stages") * config.int("block_n")
        reduction = HIP_REDUCTION_BYTES * threads if hip else 0
        return tiles * width * element_bytes + reduction + launch(target, threads, bulk_copies).barrier_bytes

    def instruction_columns(config: Config) -> int:
        """Columns of the wider product: the scores have block_n, the output those of a head."""
        is_wgmma = matrix_unit(target, config.int("block_m"), config.int("threads")).name == "wgmma"
        return min(MAX_WGMMA_COLUMNS, max(config.int("block_n"), width)) if is_wgmma else 0

    constraints = (
        pipelines(target),
        not_beyond("block_m", rows, "seq_len", seq_len),
        not_beyond("block_n", keys, "seq_len", seq_len),
        rows_of_warps(target),
        fits_block(target, bulk_copies),
        stages_within_loop(lambda config: -(-seq_len // config.int("block_n")), "keys"),
        causal_pipelines(target, "causal attention", lambda _: not causal or (bulk_copies and hopper)),
        fits_registers(
            target, bulk_copies, accumulators, "take more threads or a smaller block_n or block_m"
        ),
        fits_instruction(
            target,
            bulk_copies,
            instruction_columns,
            "take threads=256 or fewer, and fewer rows",
            left_in_registers=True,
        ),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_n or block_m"),
        order_matters(workload, causal, target.int("core.count")),
    )
    return SearchSpace(parameters, constraints)


def order_matters(workload: Workload, causal: bool, cores: int) -> Constraint:
    """Starting the longest blocks first helps only if blocks differ in length and do not all run at once."""
    others = workload.dims["batch"] * workload.dims["heads"]

    def violation(config: Config) -> str | None:
        if config["block_order"] == "by_head":
            return None
        if not causal:
            return (
                "block_order=by_length orders nothing: without a causal mask all blocks are equally long; "
                "take by_head"
            )
        blocks = -(-workload.dims["seq_len"] // config.int("block_m")) * others
        if blocks <= cores or others == 1:
            reason = (
                f"{blocks} blocks run at once on {cores} cores" if blocks <= cores else "there is one head"
            )
            return f"block_order=by_length changes nothing where {reason}: take by_head"
        return None

    return Constraint("block order", violation, is_waste=True)
