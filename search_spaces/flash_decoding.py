"""Search space of flash_decoding: blocks of block_m query rows that share a kv head, and parts of its keys."""

from __future__ import annotations

from collections.abc import Callable

from ..dtypes import DTYPE_BYTES
from ..problem.space import Config, Constraint, Parameter, SearchSpace
from ..problem.workload import Workload
from ..target.spec import Target
from .constraints import (
    MIN_WGMMA_COLUMNS,
    fits_block,
    fits_instruction,
    fits_registers,
    fits_shared_memory,
    not_beyond,
    pipelines,
    stages_within_loop,
)
from .matrix_unit import is_hopper, launch, matrix_unit

ROWS = (16, 32, 64)
KEYS = (32, 64, 128)
SPLITS = (1, 2, 3, 4, 6, 8, 16, 32)
MAX_COPIES = 8  # of a tile of keys, page by page; lowering takes a second for each
BLOCKS_OF_A_CORE = 32  # more parts than this only add work
REDUCTION_BYTES = 8  # shared memory of a thread for reductions of rows over several warps, of two kinds


def space(workload: Workload, target: Target) -> SearchSpace:
    """The search space of `workload` on `target`."""
    batch, heads, kv_heads, kv_len, head_dim, q_len, _ = workload.dims.values()
    rows, page = heads // kv_heads * q_len, int(workload.attrs["page"])
    element_bytes = DTYPE_BYTES[workload.dtype]
    parameters = (
        Parameter("block_m", ROWS, "rows of a block: queries and heads that share a kv head, and padding"),
        Parameter("block_n", KEYS, "keys and values of one iteration of the main loop"),
        Parameter("num_stages", (1, 2, 3, 4), "iterations whose copies are in flight together"),
        Parameter("threads", (128, 256), "threads that compute"),
        Parameter("split_k", SPLITS, "parts of the keys, which other blocks have"),
        Parameter(
            "weights",
            ("registers", "shared"),
            "where the second product finds its left operand: in registers of warps with whole rows, or in "
            "shared memory, where warps divide the columns",
        ),
        Parameter(
            "gather",
            ("by_page", "by_row"),
            "how keys are copied: as whole pages, or by threads that look up the page of each row",
        ),
    )

    def accumulators(config: Config) -> int:
        return config.int("block_m") * (config.int("block_n") + head_dim)

    def shared_bytes(config: Config) -> int:
        block_m, block_n, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
        weights = block_m * block_n if config["weights"] == "shared" else 0
        tiles = (block_m + 2 * config.int("num_stages") * block_n) * head_dim + weights
        barriers = launch(target, threads, config["gather"] == "by_page").barrier_bytes
        return tiles * element_bytes + REDUCTION_BYTES * threads + barriers

    def instruction_columns(config: Config) -> int:
        """Columns of the wider product of one warpgroup."""
        unit = matrix_unit(target, config.int("block_m"), config.int("threads"))
        if unit.name != "wgmma":
            return 0
        groups = config.int("threads") // 128 if config["weights"] == "shared" else 1
        return max(config.int("block_n"), head_dim) // groups

    def steps(config: Config) -> int:
        return -(-(-(-kv_len // config.int("block_n"))) // config.int("split_k"))

    constraints = (
        pipelines(target),
        _no_idle_rows(rows),
        not_beyond("block_n", KEYS, "kv_len", kv_len),
        _divides(target, head_dim),
        _gathers(target, page, head_dim),
        for_gather("threads", fits_block, target),
        stages_within_loop(steps, "keys"),
        _parts(kv_len, batch * kv_heads, target.int("core.count")),
        for_gather(
            "registers",
            lambda target, bulk: fits_registers(
                target, bulk, accumulators, "take more threads or a smaller block_n or block_m"
            ),
            target,
        ),
        for_gather(
            "registers of an instruction",
            lambda target, bulk: fits_instruction(
                target, bulk, instruction_columns, "take threads=128", left_in_registers=True
            ),
            target,
        ),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_n or block_m"),
    )
    return SearchSpace(parameters, constraints)


def for_gather(name: str, rule: Callable[[Target, bool], Constraint], target: Target) -> Constraint:
    """A rule that depends on whether a separate warpgroup copies: it does for whole pages, not for rows."""
    rules = {"by_page": rule(target, True), "by_row": rule(target, False)}
    return Constraint(name, lambda config: rules[config.str("gather")].violation(config))


def _no_idle_rows(rows: int) -> Constraint:
    """Rows of padding are waste, unless warps with whole rows keep the weights in registers."""
    largest = next((size for size in ROWS if size >= rows), ROWS[-1])

    def violation(config: Config) -> str | None:
        block_m = config.int("block_m")
        if config["weights"] == "registers" or block_m <= largest:
            return None
        return f"block_m={block_m} is wasted on {rows} rows with weights=shared: {largest} covers them"

    return Constraint("idle rows", violation, is_waste=True)


def _divides(target: Target, head_dim: int) -> Constraint:
    """Both products divide their columns alike: over no warps (weights in registers) or over all of them."""

    def violation(config: Config) -> str | None:
        block_m, block_n, threads = config.int("block_m"), config.int("block_n"), config.int("threads")
        unit = matrix_unit(target, block_m, threads)
        warps, groups = threads // unit.warp_threads, threads // unit.warp_threads // unit.group
        if config["weights"] == "registers":
            if block_m == unit.rows * warps or (unit.group == 1 and block_m % (unit.rows * warps) == 0):
                return None
            return (
                f"weights=registers needs {unit.rows} rows of each of {warps} warps, and block_m={block_m}: "
                "take weights=shared"
            )
        if unit.group > 1 and groups == 1:
            return (
                f"weights=shared with {threads} threads, one warpgroup, only adds copies to block_m="
                f"{block_m}: take weights=registers or threads={2 * threads}"
            )
        least = MIN_WGMMA_COLUMNS * groups if unit.group > 1 else unit.cols * warps
        for name, columns in (("block_n", block_n), ("head_dim", head_dim)):
            if columns % least:
                return (
                    f"weights=shared divides {name}={columns} over {warps} warps, in multiples of {least}: "
                    "take fewer threads or weights=registers"
                )
        return None

    return Constraint("division of columns", violation)


def _gathers(target: Target, page: int, head_dim: int) -> Constraint:
    """Rows are looked up one by one only where a tile has several pages, and must be without TMA."""

    def violation(config: Config) -> str | None:
        keys, by_row = config.int("block_n"), config["gather"] == "by_row"
        if page == 0 or page >= keys:
            if by_row:
                return f"gather=by_row looks up one page for all block_n={keys} keys: take by_page"
            return None
        panels = -(-head_dim // 64)
        copies = keys // page * panels
        if not by_row and not is_hopper(target):
            return (
                f"gather=by_page makes {copies} copies of block_n={keys} keys, whose bounds are checked one "
                f"by one without TMA on {target.name}: take by_row"
            )
        if not by_row and copies > MAX_COPIES:
            return (
                f"gather=by_page makes {copies} copies of block_n={keys} keys in pages of {page}, and "
                f"{MAX_COPIES} are the most: take by_row"
            )
        return None

    return Constraint("gather", violation)


def _parts(kv_len: int, others: int, cores: int) -> Constraint:
    """Each part has keys, and there are not many more blocks than run at once."""

    def violation(config: Config) -> str | None:
        parts, steps = config.int("split_k"), -(-kv_len // config.int("block_n"))
        if parts > steps:
            return f"split_k={parts} leaves parts without any of {steps} tiles of keys: take fewer"
        if parts > 1 and parts * others > BLOCKS_OF_A_CORE * cores:
            most = max(1, BLOCKS_OF_A_CORE * cores // others)
            return (
                f"split_k={parts} makes {parts * others} blocks, more than {BLOCKS_OF_A_CORE} for each of "
                f"{cores} cores: take at most split_k={most}"
            )
        return None

    return Constraint("parts", violation, is_waste=True)
