"""Search space of flash_attention_bwd: tiles of block_m keys, and loops over tiles of block_n queries."""

from __future__ import annotations

import math
from collections.abc import Mapping

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
    uneven,
)
from .flash_attention import order_matters
from .matrix_unit import is_hopper, launch, matrix_unit

QUERIES = (32, 64, 96, 128)  # rows of a tile of the loop, on any target
SUM_BYTES = 4  # sums are float32


def overhang(dims: Mapping[str, int]) -> int:
    """Elements by which the sums of dQ, padded to whole tiles and rows, may exceed a tensor."""
    batch, heads, seq_len, head_dim = dims.values()
    rows = max(-(-seq_len // size) * size for size in QUERIES)
    return batch * heads * rows * -(-head_dim // 32) * 32 - math.prod(dims.values())


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    batch, heads, seq_len, head_dim = workload.dims.values()
    others = batch * heads
    causal, width = bool(workload.attrs["causal"]), -(-head_dim // 32) * 32  # as the template pads rows
    element_bytes, hopper = DTYPE_BYTES[workload.dtype], is_hopper(target)
    keys, has_slopes = (64, 128, 192) if hopper else (32, 64, 128), bool(workload.attrs.get("softcap"))
    parameters = (
        Parameter("block_m", keys, "keys of one block"),
        Parameter("block_n", QUERIES, "queries of one iteration of the main loop"),
        Parameter("num_stages", (1, 2, 3), "iterations whose copies are in flight together"),
        Parameter("threads", (128, 256, 384) if hopper else (64, 128, 256), "threads that compute"),
        Parameter(
            "dq",
            ("bulk_add", "add", "separate") if hopper else ("add", "separate"),
            "dQ: tiles added by TMA, elements added by atomics, or a kernel of its own",
        ),
        Parameter("overlap", (False, True), "whether products run while weights are computed"),
        Parameter(
            "block_order",
            ("by_head", "by_length"),
            "which blocks run together: those of one head, or the longest of all heads",
        ),
    )

    def accumulators(config: Config) -> int:
        rows, queries = config.int("block_m"), config.int("block_n")
        scores, share = rows * queries, 0 if config["dq"] == "separate" else queries * width
        # P and dP beside P in the dtype, and slopes; then P and dS in the dtype beside the share of dQ
        return 2 * rows * width + max((5 + 2 * has_slopes) * scores // 2, scores + share)

    def shared_bytes(config: Config) -> int:
        rows, queries = config.int("block_m"), config.int("block_n")
        threads, dq = config.int("threads"), config["dq"]
        loop = config.int("num_stages") * (2 * queries * width * element_bytes + 2 * queries * SUM_BYTES)
        scores = 0 if dq == "separate" else rows * queries * element_bytes
        share = queries * width * SUM_BYTES if dq == "bulk_add" else 0
        barriers = launch(target, threads, hopper).barrier_bytes
        return 2 * rows * width * element_bytes + loop + scores + share + barriers

    def instruction_columns(config: Config) -> int:
        return max(config.int("block_n"), width) if hopper else 0

    constraints = (
        pipelines(target),
        not_beyond("block_m", keys, "seq_len", seq_len),
        not_beyond("block_n", QUERIES, "seq_len", seq_len),
        rows_of_warps(target),
        _whole_shares(target, width),
        fits_block(target, hopper),
        stages_within_loop(lambda config: -(-seq_len // config.int("block_n")), "queries"),
        causal_pipelines(target, "causal attention", lambda _: not causal or hopper),
        _overlaps(hopper),
        fits_registers(target, hopper, accumulators, "take more threads or a smaller block_n"),
        fits_instruction(
            target, hopper, instruction_columns, "take threads=256 or fewer", left_in_registers=True
        ),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_n or block_m"),
        order_matters(seq_len, others, causal, target.int("core.count")),
    )
    return SearchSpace(parameters, constraints)


def _whole_shares(target: Target, width: int) -> Constraint:
    """The share of dQ of a tile, block_n x head_dim, is divided evenly over the warps."""

    def violation(config: Config) -> str | None:
        queries, threads = config.int("block_n"), config.int("threads")
        if config["dq"] == "separate":
            return None
        unit = matrix_unit(target, queries, threads)
        if unit.split("square", queries, width, threads) is None:
            return uneven(unit, queries, width, threads)
        return None

    return Constraint("whole shares of dQ", violation)


def _overlaps(hopper: bool) -> Constraint:
    """Only wgmma runs while its warps go on."""

    def violation(config: Config) -> str | None:
        queries = config.int("block_n")
        if not config["overlap"]:
            return None
        if not hopper:
            return (
                "overlap=True needs wgmma, of which sm_90 has 1 form and other chips none: take overlap=False"
            )
        if queries % 64 and config["dq"] != "separate":
            return f"overlap=True needs wgmma, and block_n={queries} is no multiple of its 64 rows: take 64"
        return None

    return Constraint("overlap", violation)
