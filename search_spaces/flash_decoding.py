"""Search space of flash_decoding: blocks of block_m rows that share a kv head, and parts of its keys."""

from __future__ import annotations

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import (
    MIN_WGMMA_COLUMNS,
    fits_instruction,
    not_beyond,
    pipelines,
)
from .matrix_unit import matrix_unit
from .split_kv import (
    GATHER,
    PARTS,
    STAGES,
    fits_core,
    for_gather,
    gathers,
    parts,
    pipelined_parts,
    steps_within_parts,
    unreducible,
)

ROWS = (16, 32, 64)
KEYS = (32, 64, 128)
WEIGHTS = Parameter(
    "weights",
    ("registers", "shared"),
    "where the second product finds its left operand: in registers of warps with whole rows, or in shared "
    "memory, where warps divide the columns",
)


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    batch, heads, kv_heads, kv_len, head_dim, q_len, _ = workload.dims.values()
    rows, page = heads // kv_heads * q_len, int(workload.attrs["page"])
    element_bytes = DTYPE_BYTES[workload.dtype]
    has_lengths = page > 0 or workload.attrs["lengths"] != "full"
    parameters = (
        Parameter("block_m", ROWS, "rows of a block: queries and heads that share a kv head, and padding"),
        Parameter("block_n", KEYS, "keys and values of one iteration of the main loop"),
        STAGES,
        Parameter("threads", (128, 256), "threads that compute"),
        PARTS,
        WEIGHTS,
        GATHER,
    )

    def tile_bytes(config: Config) -> int:
        block_m, block_n = config.int("block_m"), config.int("block_n")
        weights = block_m * block_n if config["weights"] == "shared" else 0
        return element_bytes * ((block_m + 2 * config.int("num_stages") * block_n) * head_dim + weights)

    def instruction_columns(config: Config) -> int:
        """Columns of the wider product of one warpgroup."""
        unit = matrix_unit(target, config.int("block_m"), config.int("threads"))
        groups = config.int("threads") // 128 if config["weights"] == "shared" else 1
        return max(config.int("block_n"), head_dim) // groups if unit.name == "wgmma" else 0

    constraints = (
        pipelines(target),
        pipelined_parts(target, has_lengths),
        no_idle_rows(rows),
        not_beyond("block_n", KEYS, "kv_len", kv_len),
        divides_over_warps(target, head_dim),
        gathers(target, page, head_dim),
        steps_within_parts(kv_len),
        parts(kv_len, batch * kv_heads, target.int("core.count")),
        for_gather(
            lambda bulk: fits_instruction(target, bulk, instruction_columns, "take threads=128", True)
        ),
        *fits_core(target, head_dim, tile_bytes),
    )
    return SearchSpace(parameters, constraints)


def no_idle_rows(rows: int) -> Constraint:
    """Rows of padding are waste, unless warps with whole rows keep the weights in registers."""
    largest = next((size for size in ROWS if size >= rows), ROWS[-1])

    def violation(config: Config) -> str | None:
        block_m = config.int("block_m")
        if config["weights"] == "registers" or block_m <= largest:
            return None
        return f"block_m={block_m} is wasted on {rows} rows with weights=shared: take block_m={largest}"

    return Constraint("idle rows", violation, is_waste=True)


def divides_over_warps(target: Target, head_dim: int) -> Constraint:
    """Warps divide either the rows of both products (weights in registers) or the columns of both."""

    def violation(config: Config) -> str | None:
        block_m, block_n, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
        unit = matrix_unit(target, block_m, threads)
        warps = threads // unit.warp_threads
        groups = warps // unit.group
        if config["weights"] == "registers":
            # warpgroups with several instructions' rows each cannot pass on weights, as in flash_attention
            if block_m == unit.rows * warps or (unit.group == 1 and block_m % (unit.rows * warps) == 0):
                return None
            return (
                f"weights=registers needs {unit.rows} rows of each of {warps} warps, and block_m={block_m}: "
                "take weights=shared"
            )
        if unit.group > 1 and groups == 1:
            return (
                f"weights=shared only adds copies to block_m={block_m} with threads={threads}, one "
                f"warpgroup: take weights=registers or threads={2 * threads}"
            )
        least = MIN_WGMMA_COLUMNS * groups if unit.group > 1 else unit.cols * warps
        for name, columns in (("block_n", block_n), ("head_dim", head_dim)):
            if columns % least:
                return (
                    f"weights=shared divides {name}={columns} over {warps} warps, in multiples of {least}: "
                    "take fewer threads or weights=registers"
                )
        return unreducible(unit, block_n, warps)

    return Constraint("division over warps", violation)
