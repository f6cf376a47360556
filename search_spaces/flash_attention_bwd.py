"""Search space of flash_attention_bwd: tiles of block_m keys, and loops over tiles of block_n queries.

Rows of more than 128 elements are wide: for these the warps may divide the columns of dK and dV.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import (
    MIN_WGMMA_COLUMNS,
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
from .flash_attention import SPARE_REGISTERS, order_matters
from .matrix_unit import GROUP_ROWS, is_hopper, launch, matrix_unit, wgmma_columns

QUERIES = (32, 64, 96, 128)  # rows of a tile of the loop, on any target
SUM_BYTES = 4  # sums are float32
NARROW = 128  # elements of the longest rows whose sums a warpgroup always has room for


def overhang(dims: Mapping[str, int]) -> int:
    """Elements by which the sums of dQ, padded to whole tiles and rows, may exceed a tensor."""
    batch, heads, seq_len, head_dim = dims.values()
    rows = max(-(-seq_len // size) * size for size in QUERIES)
    return batch * heads * rows * -(-head_dim // 32) * 32 - math.prod(dims.values())


def is_wide(workload: Workload) -> bool:
    """Whether the space says how warps divide the sums of dK and dV."""
    return workload.dims["head_dim"] > NARROW


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    batch, heads, seq_len, head_dim = workload.dims.values()
    others = batch * heads
    causal, width = bool(workload.attrs["causal"]), -(-head_dim // 32) * 32  # as the template pads rows
    element_bytes, hopper = DTYPE_BYTES[workload.dtype], is_hopper(target)
    keys, has_slopes = (64, 128, 192) if hopper else (32, 64, 128), bool(workload.attrs.get("softcap"))
    wide, mixed = is_wide(workload), workload.attrs.get("lengths") == "mixed"
    # small steps of wide rows, for an LDS of 64 KiB
    steps = (16, *QUERIES) if wide and target.kind == "hip" else QUERIES
    parameters = [
        Parameter("block_m", keys, "keys of one block"),
        Parameter("block_n", steps, "queries of one iteration of the main loop"),
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
    ]
    if wide:
        parameters.append(
            Parameter(
                "split",
                ("keys", "columns"),
                "what warps divide: the keys, or the columns of dK and dV, with weights in shared memory",
            )
        )

    def accumulators(config: Config) -> int:
        rows, queries = config.int("block_m"), config.int("block_n")
        scores, share = rows * queries, 0 if config["dq"] == "separate" else queries * width
        # P and dP beside P in the dtype, and slopes; then P and dS in the dtype beside the share of dQ
        beside = max((5 + 2 * has_slopes) * scores // 2, scores + share)
        if by_columns(config):  # P and dS in the dtype are in shared memory
            beside = max((2 + has_slopes) * scores, share)
        # without spare ones ptxas spills the sums of wide rows
        return 2 * rows * width + beside + wide * SPARE_REGISTERS * config.int("threads")

    def shared_bytes(config: Config) -> int:
        rows, queries = config.int("block_m"), config.int("block_n")
        threads, dq = config.int("threads"), config["dq"]
        loop = config.int("num_stages") * (2 * queries * width * element_bytes + 2 * queries * SUM_BYTES)
        tiles = 2 if by_columns(config) else 0 if dq == "separate" else 1  # of P and dS, or of dS
        scores = tiles * rows * queries * element_bytes
        share = queries * width * SUM_BYTES if dq == "bulk_add" else 0
        barriers = launch(target, threads, hopper).barrier_bytes
        return 2 * rows * width * element_bytes + loop + scores + share + barriers

    def instruction_columns(config: Config) -> int:
        if not hopper or not by_columns(config):
            return max(config.int("block_n"), width) if hopper else 0
        rows, queries, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
        columns = [wgmma_columns(target, "full_col", rows, of, threads) for of in (queries, width)]
        return max(*columns, wgmma_columns(target, "square", queries, width, threads))

    constraints = (
        pipelines(target),
        not_beyond("block_m", keys, "seq_len", seq_len),
        not_beyond("block_n", steps, "seq_len", seq_len),
        _whole_parts(target, width),
        _whole_shares(target, width),
        fits_block(target, hopper),
        stages_within_loop(lambda config: -(-seq_len // config.int("block_n")), "queries"),
        causal_pipelines(
            target,
            "causal attention" if causal else "items of different lengths",
            lambda _: not (causal or mixed) or hopper,
        ),
        _overlaps(hopper),
        fits_registers(target, hopper, accumulators, "take more threads or a smaller block_n"),
        fits_instruction(
            target, hopper, instruction_columns, "take threads=256 or fewer", left_in_registers=True
        ),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_n or block_m"),
        order_matters(seq_len, others, causal, target.int("core.count")),
    )
    return SearchSpace(parameters, constraints)


def by_columns(config: Config) -> bool:
    """Whether the warps divide the columns of dK and dV."""
    return config.str("split", "keys") == "columns"


def _whole_parts(target: Target, width: int) -> Constraint:
    """Warps have whole rows, or whole instructions of columns of the weights and of dK and dV."""
    whole_rows = rows_of_warps(target)

    def violation(config: Config) -> str | None:
        if not by_columns(config):
            return whole_rows.violation(config)
        rows, threads = config.int("block_m"), config.int("threads")
        unit = matrix_unit(target, rows, threads)
        if unit.name == "wgmma" and rows > GROUP_ROWS:
            return (
                f"split=columns with block_m={rows} leaves each warpgroup as many sums as split=keys does, "
                f"and moves weights through shared memory: take block_m={GROUP_ROWS}, or split=keys"
            )
        for cols in (config.int("block_n"), width):
            split = unit.split("full_col", rows, cols, threads)
            if split is None:
                return uneven(unit, rows, cols, threads)
            if split[1] == 1:
                return (
                    f"split=columns gives {threads // unit.warp_threads} warps no columns of their own of a "
                    f"tile of {rows}x{cols}: take split=keys, or more threads"
                )
            if unit.name == "wgmma" and cols // split[1] < MIN_WGMMA_COLUMNS:
                return (
                    f"split=columns leaves each of {split[1]} warpgroups {cols // split[1]} columns of a "
                    f"tile of {rows}x{cols}, and TileLang 0.1.15 cannot lower wgmma on fewer than "
                    f"{MIN_WGMMA_COLUMNS} of a shared tile: take a larger block_n"
                )
        return None

    return Constraint(whole_rows.name, violation)


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
