"""Search space of flash_attention: tiles of block_m queries, and loops over tiles of block_n keys.

On Hopper a schedule says what runs beside the softmax. `serial` has nothing but copies, as on other chips;
`overlapped` computes products of the next and the current tile meanwhile; with `ping_pong` the groups of
threads also take turns.
"""

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
from .matrix_unit import GROUP, MAX_WGMMA_COLUMNS, is_hopper, launch, matrix_unit

TILES = (16, 32, 48, 64, 80, 96, 128, 160, 192, 256)  # of queries or keys, on any target
SCHEDULES = ("serial", "overlapped", "ping_pong")
SPARE_REGISTERS = 24  # of a thread beside the tiles that overlapped schedules keep: addresses and rows
HIP_REDUCTION_BYTES = 8  # shared memory per thread for reductions of rows, in warps of 64 threads


def space(
    workload: Workload, target: Target, schedules: bool = True, positions: str = "seq_len"
) -> SearchSpace:
    """The search space of `workload` on `target`.

    Args:
        workload: the workload.
        target: the target.
        schedules: False for the serial loop alone.
        positions: the dimension of the positions of an item, or of all items together: then the loop has a
            length that is known at run time, and an item may be as long as all of them.
    """
    packed, head_dim = positions != "seq_len", workload.dims["head_dim"]
    seq_len, others = workload.dims[positions], workload.dims["heads"]
    others *= 1 if packed else workload.dims["batch"]
    causal, width = bool(workload.attrs["causal"]), -(-head_dim // 16) * 16  # as the template pads rows
    element_bytes = DTYPE_BYTES[workload.dtype]
    bulk_copies = head_dim * element_bytes % 16 == 0
    hopper, hip = is_hopper(target), target.kind == "hip"
    rows = (64, 128, 192, 256) if hopper else (32, 64, 128, 256)
    # small steps, for an LDS of 64 KiB
    keys = (16, 32, 48, 64, 80, 96, 128) if hip else (32, 64, 96, 128, 160, 192, 256)
    overlaps = schedules and hopper and bulk_copies
    cores = target.int("core.count")
    parameters = [
        Parameter("block_m", rows, "queries of one block"),
        Parameter("block_n", keys, "keys and values of one iteration of the main loop"),
        Parameter("num_stages", (1, 2, 3), "iterations whose copies are in flight together"),
        Parameter("threads", (128, 256, 384, 512) if hopper else (64, 128, 256, 512), "threads that compute"),
        Parameter(
            "block_order",
            ("by_head", "by_length"),
            "which blocks run together: those of one head, or the longest of all heads",
        ),
    ]
    if overlaps:
        parameters += [
            Parameter("schedule", SCHEDULES, "what runs beside the softmax", default="serial"),
            Parameter(
                "persistent",
                (0, cores),
                "blocks that stay and take one tile of queries after the other; 0: a block for each tile",
                default=0,
            ),
        ]

    def accumulators(config: Config) -> int:
        sums = config.int("block_m") * (config.int("block_n") + width)
        if config.str("schedule", "serial") == "serial":
            return sums
        # the weights of a tile are needed until the scores of the next tile are complete
        weights = config.int("block_m") * config.int("block_n") * element_bytes // 4
        return sums + weights + SPARE_REGISTERS * config.int("threads")

    def shared_bytes(config: Config) -> int:
        threads = config.int("threads")
        # the output replaces the queries after the main loop, unless the next queries are loaded meanwhile
        outputs = config.int("block_m") if config.int("persistent", 0) else 0
        tiles = config.int("block_m") + outputs + 2 * config.int("num_stages") * config.int("block_n")
        reduction = HIP_REDUCTION_BYTES * threads if hip else 0
        return tiles * width * element_bytes + reduction + launch(target, threads, bulk_copies).barrier_bytes

    def instruction_columns(config: Config) -> int:
        """Columns of the wider product: the scores have block_n, the output those of a head."""
        is_wgmma = matrix_unit(target, config.int("block_m"), config.int("threads")).name == "wgmma"
        return min(MAX_WGMMA_COLUMNS, max(config.int("block_n"), width)) if is_wgmma else 0

    constraints = (
        pipelines(target),
        not_beyond("block_m", rows, positions, seq_len),
        not_beyond("block_n", keys, positions, seq_len),
        rows_of_warps(target),
        fits_block(target, bulk_copies),
        stages_within_loop(lambda config: -(-seq_len // config.int("block_n")), "keys"),
        *((_groups(), _positions(seq_len, others, cores)) if overlaps else ()),
        causal_pipelines(
            target,
            "packed items" if packed else "causal attention",
            lambda _: not (causal or packed) or (bulk_copies and hopper),
        ),
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
        order_matters(seq_len, others, causal, cores),
    )
    return SearchSpace(parameters, constraints)


def _groups() -> Constraint:
    """Overlapped schedules are written for one to three groups of threads, with the rows of one wgmma each.

    With four groups their registers cannot be moved to the computing threads, and the kernels hang.
    """

    def violation(config: Config) -> str | None:
        schedule = config.str("schedule", "serial")
        if schedule == "serial":
            return None
        rows, threads = config.int("block_m"), config.int("threads")
        least, groups = (2 if schedule == "ping_pong" else 1), threads // GROUP
        if not least <= groups <= 3:
            return (
                f"schedule={schedule} is for {least} to 3 groups of {GROUP} threads, and threads={threads} "
                f"has {groups}: take threads={2 * GROUP}"
            )
        if rows != 64 * groups:
            return (
                f"schedule={schedule} gives each of {groups} groups 64 rows, and block_m={rows} has others: "
                f"take block_m={64 * groups}"
            )
        return None

    return Constraint("groups", violation)


def _positions(seq_len: int, others: int, cores: int) -> Constraint:
    """Blocks that stay are part of overlapped schedules, and help where there are more tiles than cores."""

    def violation(config: Config) -> str | None:
        stay = config.int("persistent", 0)
        if not stay:
            return None
        if config.str("schedule", "serial") == "serial":
            return f"persistent={stay} needs schedule=overlapped or ping_pong, not serial: take persistent=0"
        positions = -(-seq_len // config.int("block_m")) * others
        if positions <= cores:
            return f"persistent={stay} leaves nothing to stay for: {positions} blocks run at once; take 0"
        keys, threads = config.int("block_n"), config.int("threads")
        if config["block_order"] == "by_head" or keys & (keys - 1) == 0:
            return None
        # with these divisions in its loops, the solver that counts threads at barriers may give up early
        if (keys, threads) == (192, GROUP):
            return (
                f"persistent={stay} with block_n={keys}, which is no power of 2, and block_order=by_length: "
                f"TileLang 0.1.15 may count fewer than {threads} threads at a barrier (ThreadSync): take "
                "persistent=0"
            )
        return None

    return Constraint("persistent", violation)


def order_matters(seq_len: int, others: int, causal: bool, cores: int) -> Constraint:
    """Starting the longest blocks first helps only if blocks differ in length and do not all run at once.

    Args:
        seq_len: positions, which block_m divides.
        others: the product of the heads and items.
        causal: whether blocks differ in length.
        cores: of the target.
    """

    def violation(config: Config) -> str | None:
        if config["block_order"] == "by_head":
            return None
        if not causal:
            return (
                "block_order=by_length orders nothing: without a causal mask all blocks are equally long; "
                "take by_head"
            )
        blocks = -(-seq_len // config.int("block_m")) * others
        if blocks <= cores or others == 1:
            reason = (
                f"{blocks} blocks run at once on {cores} cores" if blocks <= cores else "there is one head"
            )
            return f"block_order=by_length changes nothing where {reason}: take by_head"
        return None

    return Constraint("block order", violation, is_waste=True)
