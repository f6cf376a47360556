"""Constraints of kernels for few queries over a cache of keys, in tiles of block_n and split_k parts."""

from __future__ import annotations

from collections.abc import Callable

from ..problem.space import Config, Constraint, Parameter
from ..target.spec import Target
from .constraints import fits_block, fits_registers, fits_shared_memory, stages_within_loop
from .matrix_unit import MatrixUnit, is_hopper, launch

SPLITS = (1, 2, 3, 4, 6, 8, 16, 32)
MAX_COPIES = 8  # of a tile of keys, page by page; lowering takes a second for each
BLOCKS_OF_A_CORE = 32  # more parts than this only add work
REDUCTION_BYTES = 8  # shared memory of a thread for reductions of rows over several warps, of two kinds

STAGES = Parameter("num_stages", (1, 2, 3, 4), "iterations whose copies are in flight together")
PARTS = Parameter("split_k", SPLITS, "parts of the keys, which other blocks have")
GATHER = Parameter(
    "gather",
    ("by_page", "by_row"),
    "how keys are copied: as whole pages, or by threads that look up the place of each row",
)


def for_gather(rule: Callable[[bool], Constraint]) -> Constraint:
    """A rule that depends on whether a separate warpgroup copies: it does for whole pages, not for rows."""
    rules = {"by_page": rule(True), "by_row": rule(False)}

    def violation(config: Config) -> str | None:
        return rules[config.str("gather")].violation(config)

    return Constraint(rules["by_page"].name, violation)


def gathers(target: Target, page: int, columns: int) -> Constraint:
    """Rows are looked up one by one only where a tile has several pages, and must be without TMA."""

    def violation(config: Config) -> str | None:
        keys, by_row = config.int("block_n"), config["gather"] == "by_row"
        if page == 0 or page >= keys:
            if by_row:
                return f"gather=by_row looks up one page for all block_n={keys} keys: take by_page"
            return None
        copies = keys // page * -(-columns // 64)
        if by_row or (is_hopper(target) and copies <= MAX_COPIES):
            return None
        if not is_hopper(target):
            return (
                f"gather=by_page makes {copies} copies of block_n={keys} keys, whose bounds are checked one "
                f"by one without TMA on {target.name}: take by_row"
            )
        return (
            f"gather=by_page makes {copies} copies of block_n={keys} keys in pages of {page}, and "
            f"{MAX_COPIES} are the most: take by_row"
        )

    return Constraint("gather", violation)


def pipelined_parts(target: Target, has_lengths: bool) -> Constraint:
    """Without TMA, parts whose steps depend on an item's length have no pipeline.

    TileLang 0.1.15 fails on the waits of a pipeline of cp.async copies (`Downcast from tirx.Sub to ir.IntImm
    failed`), as in causal flash_attention.
    """

    def violation(config: Config) -> str | None:
        stages, bulk_copies = config.int("num_stages"), is_hopper(target) and config["gather"] == "by_page"
        if not has_lengths or stages == 1 or bulk_copies:
            return None
        return (
            f"num_stages={stages} cannot be compiled for lengths known at run time without TMA (TileLang "
            "0.1.15): take num_stages=1"
        )

    return Constraint("pipeline of a part", violation)


def parts(keys: int, others: int, cores: int) -> Constraint:
    """Each part has keys, and there are not many more blocks than run at once.

    Args:
        keys: keys of an item.
        others: blocks of one part.
        cores: cores of the target.
    """

    def violation(config: Config) -> str | None:
        split_k, steps = config.int("split_k"), -(-keys // config.int("block_n"))
        if split_k > steps:
            return f"split_k={split_k} leaves parts without any of {steps} tiles of keys: take fewer"
        if split_k > 1 and split_k * others > BLOCKS_OF_A_CORE * cores:
            most = max(1, BLOCKS_OF_A_CORE * cores // others)
            return (
                f"split_k={split_k} makes {split_k * others} blocks, more than {BLOCKS_OF_A_CORE} for each "
                f"of {cores} cores: take at most split_k={most}"
            )
        return None

    return Constraint("parts", violation, is_waste=True)


def steps_within_parts(keys: int) -> Constraint:
    """A pipeline has at most as many stages as a part of an item's `keys` has tiles."""

    def steps(config: Config) -> int:
        tiles = -(-keys // config.int("block_n"))
        return -(-tiles // config.int("split_k"))

    return stages_within_loop(steps, "keys")


def fits_core(
    target: Target, columns: int, tile_bytes: Callable[[Config], int]
) -> tuple[Constraint, Constraint, Constraint]:
    """Threads, registers and shared memory of a block are within the limits of the target.

    Args:
        target: the chip.
        columns: columns of the output.
        tile_bytes: shared memory of the tiles.
    """

    def accumulators(config: Config) -> int:
        return config.int("block_m") * (config.int("block_n") + columns)

    def shared_bytes(config: Config) -> int:
        threads = config.int("threads")
        barriers = launch(target, threads, config["gather"] == "by_page").barrier_bytes
        return tile_bytes(config) + REDUCTION_BYTES * threads + barriers

    fewer = "take more threads or a smaller block_n or block_m"
    return (
        for_gather(lambda bulk: fits_block(target, bulk)),
        for_gather(lambda bulk: fits_registers(target, bulk, accumulators, fewer)),
        fits_shared_memory(target, shared_bytes, "lower num_stages, block_n or block_m"),
    )


def unreducible(unit: MatrixUnit, block_n: int, warps: int) -> str | None:
    """The reason if TileLang 0.1.15 cannot reduce rows of scores whose columns are divided over `warps`."""
    if unit.name == "mma" and warps > 4 and block_n // warps > unit.cols:
        return (
            f"block_n={block_n} gives each of {warps} warps side by side {block_n // warps} columns of a "
            f"row, and TileLang 0.1.15 reduces at most {unit.cols} over that many (ReduceOp cannot lower a "
            f"layout): take block_n={unit.cols * warps} or fewer threads"
        )
    return None
